"""Samplers of subgraphs around seeds, sets of nodes or walks; personalised PageRank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from manyhop.arguments import as_ids, check_range, integer
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, Graph, build_graph, place
from manyhop.sampling import BatchKey, CPUPageRankSampler, NodeRequest, PageRankNeighbors, PageRankSpec, SampledSubgraph
from manyhop.sampling.walks import SaintDraws, SaintMethod
from manyhop.system.progress import Progress
from manyhop_pyg.data.convert import edge_list, nodes_in
from manyhop_pyg.samplers.neighbor import NeighborSampler, to_sampler_output
from manyhop_pyg.typing import PyGData, Sample


class EgoSampler(NeighborSampler):
    """Samples the neighbourhood of each seed for itself, with all edges inside: the subgraphs of ShaDow-GNN.

    The nodes of a sample are sorted by subgraph, the seed of each first, the edges by destination.
    """

    def __init__(self, data: PyGData, depth: int, num_neighbors: int, *, replace: bool) -> None:
        super().__init__(data, [num_neighbors] * depth, subgraph_type="induced", replace=replace, disjoint=True)

    def node_output(self, sample: SampledSubgraph) -> Sample:
        """Convert the engine's sample to PyG's."""
        out = to_sampler_output(sample, self.topology)  # nodes by hop
        batch, order = out.batch.sort(stable=True)
        position = torch.empty_like(order)
        position[order] = torch.arange(order.numel(), device=order.device)
        col, by_col = position[out.col].sort(stable=True)
        dtype = out.col.dtype
        return replace(
            out,
            node=out.node[order],
            row=position[out.row[by_col]].to(dtype),
            col=col.to(dtype),
            edge=out.edge[by_col],
            batch=batch,
        )


class NodeSetSampler(NeighborSampler):
    """Samples the subgraph induced by a set of nodes: clusters, random draws, or neighbours of seeds.

    Edges are sorted by destination, or with ``sample_direction="backward"`` by source.
    """

    def __init__(self, data: PyGData, sample_direction: Literal["forward", "backward"]) -> None:
        super().__init__(data, [], subgraph_type="induced", sample_direction=sample_direction)

    def nodes_of(self, index: Tensor, key: BatchKey) -> Tensor:
        """Return the nodes of a batch with the seeds ``index [batch_size] int64``."""
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        """Return settings that the sets depend on, besides the graph."""
        raise NotImplementedError

    def node_request(self, index: NodeSamplerInput, key: BatchKey) -> NodeRequest:
        """Return the request for the engine."""
        return NodeRequest(key=key, seeds={HOMOGENEOUS_NODE: self.nodes_of(index.node, key)})


class SaintSampler(NodeSetSampler):
    """Samples subgraphs of GraphSAINT; see :class:`manyhop.sampling.walks.SaintDraws`."""

    def __init__(self, data: Data, method: SaintMethod, num_draws: int, walk_length: int) -> None:
        super().__init__(data, "backward")
        self._arguments = method, num_draws, walk_length
        self._draws = SaintDraws(self.topology.graph, *self._arguments)

    def __getstate__(self) -> dict[str, object]:
        state = super().__getstate__()
        del state["_draws"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._draws = SaintDraws(self.topology.graph, *self._arguments)

    def nodes_of(self, index: Tensor, key: BatchKey) -> Tensor:
        """Draw the nodes of a batch."""
        return self._draws.draw(key)

    def facts(self) -> dict[str, object]:
        """Return how nodes are drawn."""
        return {"draws": self._arguments}


class ClusterSampler(NodeSetSampler):
    """Samples the subgraph of some clusters; the nodes of each, from ``begin [num_clusters + 1]``, are consecutive."""

    def __init__(self, data: Data, sample_direction: Literal["forward", "backward"], begin: Tensor) -> None:
        super().__init__(data, sample_direction)
        self._begin = begin

    def nodes_of(self, index: Tensor, key: BatchKey) -> Tensor:
        """Return the nodes of the clusters, cluster by cluster."""
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self._begin.numel() - 1:
            raise InputError(f"Expected clusters in [0, {self._begin.numel() - 1}), got {index.tolist()}.")
        first = self._begin[index]
        size = self._begin[index + 1] - first
        within = torch.arange(int(size.sum())) - (size.cumsum(0) - size).repeat_interleave(size)
        return first.repeat_interleave(size) + within

    def facts(self) -> dict[str, object]:
        """Return where clusters begin."""
        return {"clusters": self._begin}


_MOST_BYTES = 1 << 30
"""Bytes of prefetched neighbours on a GPU; more are stored in host memory."""


class PageRankSampler(NodeSetSampler):
    """Samples the subgraph of seeds and the nodes of their highest personalised PageRank.

    Raises:
        InputError: heterogeneous data, or wrong numbers.
    """

    def __init__(self, data: PyGData, num_neighbors: int, alpha: float, eps: float) -> None:
        super().__init__(data, "forward")
        if self.is_hetero:
            raise InputError("Expected data without types, got some with. Convert it: data.to_homogeneous().")
        self._page_rank = PageRankSpec(edge_type=HOMOGENEOUS_EDGE, alpha=alpha, eps=eps, top_k=num_neighbors)
        CPUPageRankSampler(self.topology.graph, self._page_rank)  # checks the numbers
        self._row = torch.empty(0, dtype=torch.int64)
        self._begin, self._neighbors = torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)

    def find(self, seeds: Tensor, num_threads: int) -> None:
        """Find and keep the neighbours of seeds in advance; neighbours of others are found with their batch."""
        seeds = torch.unique(seeds)
        bar = Progress("Neighbours by PageRank", seeds.numel(), unit="nodes")
        found = self._neighbors_of(seeds, num_threads, bar)
        bar.close()
        num_nodes = self.topology.graph.num_nodes[HOMOGENEOUS_NODE]
        device = found.node.device
        if 8 * (num_nodes + found.begin.numel() + found.node.numel()) > _MOST_BYTES:
            device = torch.device("cpu")
        self._row = torch.full((num_nodes,), -1, device=device)
        self._row[seeds.to(device)] = torch.arange(seeds.numel(), device=device)
        self._begin, self._neighbors = found.begin.to(device), found.node.to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # batches use other streams

    def nodes_of(self, index: Tensor, key: BatchKey) -> Tensor:
        """Return the seeds, then the other neighbours in ascending order."""
        neighbors = torch.unique(self._of(index)[0])
        return torch.cat([index, neighbors[~torch.isin(neighbors, index)]])

    def node_request(self, index: NodeSamplerInput, key: BatchKey) -> NodeRequest:
        """Return the request for the engine."""
        seeds = index.node.to(self._row.device)  # where the neighbours are looked up
        check_range("seeds", seeds, self.topology.graph.num_nodes[HOMOGENEOUS_NODE])
        return NodeRequest(key=key, seeds={HOMOGENEOUS_NODE: self.nodes_of(seeds, key)})

    def facts(self) -> dict[str, object]:
        """Return how neighbours are found."""
        spec = self._page_rank
        return {"page_rank": (spec.alpha, spec.eps, spec.top_k)}

    def _of(self, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the neighbours of all seeds, and their number per seed."""
        row = self._row[seeds] if self._row.numel() else seeds.new_full((1,), -1)
        if bool((row < 0).any()):
            found = self._neighbors_of(seeds, 1)
            return found.node.to(seeds.device), found.begin.diff().to(seeds.device)
        begin = self._begin[row]
        size = self._begin[row + 1] - begin
        first = begin - (size.cumsum(0) - size)  # relative to the result
        at = torch.repeat_interleave(first, size)
        return self._neighbors[at + torch.arange(at.numel(), device=at.device)], size

    def _neighbors_of(self, seeds: Tensor, num_threads: int, bar: Progress | None = None) -> PageRankNeighbors:
        """Find neighbours on the GPU that samples for a loader, otherwise on the CPU."""
        sampling: Any = next(iter(self.gpu_samplings.values()), None)  # a GPUSampling
        if sampling is None:
            return _find(self.topology.graph, self._page_rank, seeds, None, num_threads, bar)
        return _find(sampling.graph, self._page_rank, seeds, sampling.device, num_threads, bar)

    def __getstate__(self) -> dict[str, object]:
        tables = {name: getattr(self, name).cpu() for name in ("_row", "_begin", "_neighbors")}
        return super().__getstate__() | tables


def get_ppr(
    edge_index: Tensor,
    alpha: float = 0.2,
    eps: float = 1e-5,
    target: Tensor | None = None,
    num_nodes: int | None = None,
    *,
    top_k: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute personalised PageRank of nodes: PyG's ``get_ppr``, with fewer pushes, on all of torch's threads.

    If the edges are on a GPU, the GPU computes the same result. Nodes are pushed first in, first out; PyG pushes the
    last one first. The bound on the error is the same, but errors below it differ.

    Args:
        edge_index: ``[2, num_edges]`` integers; walks follow edges from source to destination.
        alpha: probability that a walk ends before each step.
        eps: a node is pushed while its residual is at least ``alpha * eps`` times its number of out-edges.
        target: ``[num_targets]`` nodes; ``None``: all.
        num_nodes: number of nodes; ``None``: the highest in ``edge_index``, plus 1.
        top_k: number of nodes of the highest rank per target; ``None``: all pushed nodes.

    Returns:
        ``edge_index [2, num_found]`` of targets and nodes, and ``weight [num_found]``, their ranks. Sorted by target in
        the given order, then by falling rank with ``top_k``, otherwise in the order of the pushes.

    Raises:
        InputError: arguments that do not make sense.
        GraphError: edges with ids out of range.
    """
    src, dst = ends = edge_list(edge_index)
    num_nodes = nodes_in(ends) if num_nodes is None else num_nodes
    # The engine walks from destination to source.
    edges = {HOMOGENEOUS_EDGE: EdgeInput(row=dst, col=src, reversed=True)}
    nodes = {HOMOGENEOUS_NODE: integer("num_nodes", num_nodes, 0)}
    graph = build_graph(nodes, edges, defer=edge_index.is_cuda)
    spec = PageRankSpec(edge_type=HOMOGENEOUS_EDGE, alpha=alpha, eps=eps, top_k=top_k)
    target = torch.arange(num_nodes) if target is None else as_ids("target", target).long().contiguous()
    bar = Progress("Personalised PageRank", target.numel(), unit="nodes")
    gpu = edge_index.device if edge_index.is_cuda else None
    found = _find(graph if gpu is None else place(graph, gpu), spec, target, gpu, torch.get_num_threads(), bar)
    bar.close()
    target = target.to(found.node.device)
    pairs = torch.stack([target.repeat_interleave(found.begin.diff()), found.node])
    return pairs.to(edge_index.device), found.value.to(edge_index.device, torch.get_default_dtype())


def _find(
    graph: Graph, spec: PageRankSpec, nodes: Tensor, gpu: torch.device | None, num_threads: int, bar: Progress | None
) -> PageRankNeighbors:
    """Find neighbours on a GPU, otherwise on the CPU."""
    if gpu is None:
        return CPUPageRankSampler(graph, spec).sample(nodes.cpu(), num_threads=num_threads, bar=bar)
    from manyhop.sampling import GPUPageRankSampler

    return GPUPageRankSampler(graph, spec, device=gpu).sample(nodes, bar=bar)
