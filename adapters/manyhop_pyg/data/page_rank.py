"""PyG's function for personalised PageRank."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop.arguments import as_ids, integer
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, Graph, build_graph, place
from manyhop.sampling import CPUPageRankSampler, PageRankNeighbors, PageRankSpec
from manyhop.system.progress import Progress
from manyhop_pyg.data.convert import edge_list, nodes_in


def get_ppr(
    edge_index: Tensor,
    alpha: float = 0.2,
    eps: float = 1e-5,
    target: Tensor | None = None,
    num_nodes: int | None = None,
    *,
    top_k: int | None = None,
) -> tuple[Tensor, Tensor]:
    """PyG's ``get_ppr``: personalised PageRank of nodes, with fewer pushes, by as many threads as torch has.

    Edges on a GPU are pushed along by that GPU, with the same result.

    Nodes are pushed first in, first out, where PyG pushes the last first: the bound on the error is the same, what is
    left below it is not.

    Args:
        edge_index: ``[2, num_edges]`` integers; walks follow edges from source to destination.
        alpha: probability that a walk ends before each step.
        eps: a node is pushed while its residual is at least ``alpha * eps`` times its number of out-edges.
        target: ``[num_targets]`` nodes; ``None``: all.
        num_nodes: number of nodes; ``None``: the highest in ``edge_index``, plus 1.
        top_k: at most so many nodes per target, those of the highest rank; ``None``: all that were pushed.

    Returns:
        ``edge_index [2, num_found]``, targets and what they reach, and ``weight [num_found]``, its rank. Sorted by
        target as given; then, with ``top_k``, by falling rank, else in the order of the pushes.

    Raises:
        InputError: arguments that do not make sense.
        GraphError: edges that lead to nodes that there are not.
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
    found = _find(graph, spec, target, edge_index.device, bar)
    bar.close()
    target = target.to(found.node.device)
    pairs = torch.stack([target.repeat_interleave(found.begin.diff()), found.node])
    return pairs.to(edge_index.device), found.value.to(edge_index.device, torch.get_default_dtype())


def _find(graph: Graph, spec: PageRankSpec, nodes: Tensor, device: torch.device, bar: Progress) -> PageRankNeighbors:
    """Find neighbours by the GPU that the edges are on; elsewhere on the CPU."""
    if device.type != "cuda":
        return CPUPageRankSampler(graph, spec).sample(nodes.cpu(), num_threads=torch.get_num_threads(), bar=bar)
    from manyhop.sampling import GPUPageRankSampler

    return GPUPageRankSampler(place(graph, device), spec, device=device).sample(nodes, bar=bar)
