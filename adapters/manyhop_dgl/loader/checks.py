"""What a loader's arguments mean here, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, get_args

import torch
from dgl.dataloading import BlockSampler
from dgl.distributed import DistGraph

from manyhop.arguments import flag, flags, seconds, torch_options
from manyhop.errors import InputError
from manyhop.placement import GPUMode
from manyhop_dgl.edges.prediction import EdgePredictionSampler
from manyhop_dgl.graph.topology import structure_of
from manyhop_dgl.loader.seeds import GivenBatches, Indices, Seeds
from manyhop_dgl.loader.tensors import sampler_of_nodes
from manyhop_dgl.samplers.arguments import canonical, fanouts_by_type, integer
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.plan import as_device
from manyhop_dgl.typing import GraphLike

_OF_GPU = "on a GPU only: give device='cuda', or leave it out"


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


def check_prefetching(
    device: torch.device, *, use_alternate_streams: object, pin_prefetcher: object, use_uva: bool, gpu_cache: object
) -> None:
    """Raise InputError for DGL's options about GPUs where there is none, or that mean nothing here."""
    for name, value in (("use_alternate_streams", use_alternate_streams), ("pin_prefetcher", pin_prefetcher)):
        if value is not None:
            flag(name, value)
    if device.type == "cpu":
        for name, value in (("use_uva", use_uva), ("pin_prefetcher", pin_prefetcher), ("gpu_cache", gpu_cache)):
            if value:
                raise InputError(f"Got {name}={value!r} for batches on the CPU. It works {_OF_GPU}.")
        return
    if gpu_cache is not None and not _is_cache(gpu_cache):
        raise InputError(
            "Expected gpu_cache as {'node': {name: rows}, 'edge': {name: rows}}: which data, and how many rows of them "
            f"to keep on the GPU, got {gpu_cache!r}."
        )
    for name, value in (("use_alternate_streams", use_alternate_streams), ("pin_prefetcher", pin_prefetcher)):
        if value is False:
            raise InputError(
                f"Got {name}=False, but batches on a GPU are always made on streams of their own, and what they are "
                "sent from is pinned. Leave it out."
            )


def _is_cache(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) <= {"node", "edge"}
        and all(isinstance(by_name, Mapping) for by_name in value.values())
        and all(type(rows) is int and rows >= 0 for by_name in value.values() for rows in by_name.values())
    )


def check_batches(
    seeds: Seeds | GivenBatches, *, batch_size: object, drop_last: bool, shuffle: bool, use_ddp: bool
) -> None:
    """Raise InputError where batches are given, but are to be cut, too."""
    flags(drop_last=drop_last, shuffle=shuffle)
    if isinstance(seeds, Seeds):
        if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
            raise InputError(f"Expected batch_size to be an integer of at least 1, got {batch_size!r}.")
        return
    kind = type(seeds.dataset).__name__
    given = {"batch_size": batch_size not in (1, None), "drop_last": drop_last, "use_ddp": use_ddp}
    for name in (name for name, is_given in given.items() if is_given):
        raise InputError(
            f"Got {name} with a {kind} as indices, each item of which is a batch already. Leave it out, or pass a "
            "tensor of indices."
        )
    if shuffle and not callable(getattr(seeds.dataset, "shuffle", None)):
        raise InputError(
            f"Got shuffle=True with a {kind} as indices, which has no method shuffle(). Give it one, which is called "
            "before each epoch, or let it shuffle by itself."
        )


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
    """Raise InputError for seeds of types that the graph does not have, or without a type, or that are no integers."""
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
    for ids in indices.values() if isinstance(indices, dict) else (indices,):
        if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dim() != 1):
            raise InputError(
                f"Expected indices as {kind} ids, integers of shape [n], got {ids.dtype} of shape {list(ids.shape)}."
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
                f"Got {name}, which a loader of graphs has no use for: indices say what is in the batches, "
                "graph_sampler what is made of them."
            )
        kwargs.pop(name, None)
    if kwargs.get("pin_memory"):
        raise InputError("Got pin_memory=True, which pins what torch has collated. For a GPU, pass device='cuda'.")


def check_ranks(use_ddp: bool, seed: object, ddp_seed: object, rank_timeout: float | None) -> None:
    """Raise InputError for arguments about ranks that are none, or do not go together."""
    flags(use_ddp=use_ddp)
    integer(ddp_seed, "ddp_seed")
    if use_ddp and seed is not None and ddp_seed != 0:
        raise InputError(f"Got seed={seed!r} and ddp_seed={ddp_seed!r}, which is the same with use_ddp=True: pass one.")
    if rank_timeout is not None and not use_ddp:
        raise InputError(f"Expected rank_timeout only with use_ddp=True, got {rank_timeout!r}: leave it out.")
    if rank_timeout is not None:
        seconds("rank_timeout", rank_timeout)


def check_placement(device: torch.device, placement: object, *, use_uva: bool) -> None:
    """Raise InputError for a placement that is none, or contradicts other arguments."""
    if placement is None:
        return
    if placement not in get_args(GPUMode):
        raise InputError(f"Expected placement to be one of {list(get_args(GPUMode))}, or None, got {placement!r}.")
    if device.type == "cpu":
        raise InputError(
            f"Expected placement only for a loader on a GPU, got {placement!r} with device='cpu'. Pass device='cuda', "
            "or leave placement out."
        )
    if use_uva:
        raise InputError(
            f"Expected either use_uva=True or placement, got both ({placement!r}). use_uva=True is "
            "placement='pinned-cuda'."
        )
