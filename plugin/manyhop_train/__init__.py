"""Faster training steps: captured CUDA graphs, aggregation over sorted edges, masks for padded batches, Lightning."""
