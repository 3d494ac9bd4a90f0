"""What a loader's arguments mean here, and what is refused."""

from __future__ import annotations

from typing import Any

import torch
from dgl.dataloading import BlockSampler
from dgl.distributed import DistGraph

from manyhop.arguments import flags, torch_options
from manyhop.errors import InputError
from manyhop_dgl.edges.prediction import EdgePredictionSampler
from manyhop_dgl.graph.topology import structure_of
from manyhop_dgl.loader.prefetched import sampler_of_nodes
from manyhop_dgl.loader.seeds import GivenBatches, Indices, Seeds
from manyhop_dgl.samplers.arguments import canonical, fanouts_by_type
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.plan import as_device
from manyhop_dgl.typing import GraphLike


def find_device(graph: GraphLike, device: torch.device | str | None, use_uva: bool) -> torch.device:
    """Where the batches go.

    Raises:
        InputError: no device, a GPU that is not there, or ``use_uva`` without a GPU.
    """
    flags(use_uva=use_uva)
    if device is None:
        device = "cuda" if use_uva else getattr(graph, "device", "cpu")
    return as_device(device)


def check_places(graph: GraphLike, seeds: Seeds | GivenBatches, device: torch.device, num_workers: int) -> None:
    """Raise InputError for graphs and indices that are where the batches cannot be made of them."""
    if num_workers > 0 and torch.device(getattr(graph, "device", "cpu")).type == "cuda":
        raise InputError(
            f"Expected num_workers=0 with a graph on a GPU, where DGL samples, got {num_workers}. Leave it out, or "
            "keep the graph on the CPU: with device='cuda' manyhop's samplers have it on the GPU by themselves."
        )
    if isinstance(seeds, Seeds) and device.type == "cpu":
        tensors = seeds.indices.values() if isinstance(seeds.indices, dict) else (seeds.indices,)
        if there := [tensor.device for tensor in tensors if tensor.device.type != "cpu"]:
            raise InputError(f"Expected indices on the CPU, where the graph is, got some on {there[0]}: move them.")


def with_graph(seeds: Seeds | GivenBatches, graph: GraphLike) -> Seeds | GivenBatches:
    """Return seeds in host memory where the graph is there: scripts of DGL's move them to the GPU for its samplers."""
    on_host = torch.device(getattr(graph, "device", "cpu")).type == "cpu"
    return seeds.on_host() if on_host and isinstance(seeds, Seeds) else seeds


def check_graph(graph: GraphLike, sampler: BlockSampler, seeds: Seeds | GivenBatches, *, output: str) -> None:
    """Raise InputError for what is no graph, or where what one of manyhop's samplers is asked for does not fit it."""
    if isinstance(graph, DistGraph):
        raise InputError(
            "Expected a DGLGraph or a manyhop_dgl.Graph, got a DistGraph. Its loaders are "
            "dgl.dataloading.DistNodeDataLoader and DistEdgeDataLoader."
        )
    if not isinstance(sampler, EngineSampler | EdgePredictionSampler):
        return
    nodes = sampler_of_nodes(sampler)
    if isinstance(nodes, EngineSampler):
        structure_of(graph)
        for layer in nodes.arguments().fanouts:
            fanouts_by_type(layer, graph.canonical_etypes)
    if output == "blocks":
        sampler.check_prefetching(graph.ntypes, graph.canonical_etypes)
    if isinstance(seeds, Seeds):
        _check_seeds(graph, seeds.indices, of_edges=nodes is not sampler)


def _check_seeds(graph: GraphLike, indices: Indices, *, of_edges: bool) -> None:
    """Raise InputError for seeds of types that the graph does not have, or without a type."""
    kind, known = ("edge", graph.canonical_etypes) if of_edges else ("node", graph.ntypes)
    if isinstance(indices, dict):
        for name in indices:
            if of_edges:
                canonical(name, graph.canonical_etypes, "indices")
            elif name not in known:
                raise InputError(f"Unknown node type {name!r} in indices. The graph has: {list(known)}.")
    elif len(known) > 1:
        raise InputError(
            f"Expected indices as a dict, {kind} type -> ids, since the graph has several {kind} types: {list(known)}."
        )


def check_torch_arguments(kwargs: dict[str, Any], own: type) -> None:
    """Take out what Lightning hands back when it makes a loader anew, and refuse what would be ignored.

    Args:
        kwargs: further arguments of the user.
        own: the class of a loader's ``collate_fn``.
    """
    if isinstance(kwargs.get("collate_fn"), own):
        for name in ("collate_fn", "dataset", "sampler", "batch_sampler", "pin_memory"):
            kwargs.pop(name, None)
    torch_options(kwargs)
    for name in ("dataset", "sampler", "batch_sampler", "collate_fn"):
        if kwargs.get(name) is not None:
            raise InputError(
                f"Got {name}, which a loader of graphs has no use for: the indices define the batches, "
                "graph_sampler what is made of them."
            )
        kwargs.pop(name, None)
    if kwargs.get("pin_memory"):
        raise InputError("Got pin_memory=True, which pins what torch has collated. For a GPU, pass device='cuda'.")
