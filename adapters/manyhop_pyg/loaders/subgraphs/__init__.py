"""Loaders whose batches are subgraphs of sets of nodes: ShaDow, PageRank, Cluster-GCN, GraphSAINT, random parts."""
