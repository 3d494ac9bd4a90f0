"""Check and convert the arguments of a loader."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import torch
from dgl import DGLGraph
from dgl.dataloading import BlockSampler
from dgl.distributed import DistGraph

from manyhop.arguments import flag, integer, torch_options
from manyhop.errors import InputError
from manyhop.loading import check_placement
from manyhop.loading.padding import Pad, check_names_of_masks, check_pad_option
from manyhop.memory.places import Place
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.graph.topology import edges_of
from manyhop_dgl.loader.source import GivenBatches, Seeds
from manyhop_dgl.samplers.arguments import by_type, fanouts_by_type
from manyhop_dgl.samplers.edges import EdgePredictionSampler, sampler_of_nodes
from manyhop_dgl.samplers.features import names_of
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.plan import as_device
from manyhop_dgl.typing import GraphLike

_METHODS = ("sample", "sample_tensors", "assign_lazy_features")


def check_options(
    *, use_ddp: bool, ddp_seed: int, seed: int | None, output: str, **threads_and_streams: bool | None
) -> None:
    """Raise InputError for values that no loader has, and for two seeds."""
    for name, value in threads_and_streams.items():
        if value is not None:
            flag(name, value)
    integer("ddp_seed", ddp_seed)
    if use_ddp and seed is not None and ddp_seed not in (0, seed):
        raise InputError(
            f"Expected either seed or ddp_seed with use_ddp=True, since both are the seed, got {seed!r} and "
            f"{ddp_seed!r}. Pass one."
        )
    if output not in ("blocks", "tensors"):
        raise InputError(f"Expected output to be 'blocks' or 'tensors', got {output!r}.")


def check_batches(
    seeds: Seeds | GivenBatches, batch_size: object, *, shuffle: bool, drop_last: bool, use_ddp: bool
) -> None:
    """Raise InputError for a wrong batch size, and for arguments that cut batches if the indices are batches."""
    if isinstance(seeds, Seeds):
        if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
            raise InputError(f"Expected batch_size to be an integer of at least 1, got {batch_size!r}.")
        return
    kind = type(seeds.dataset).__name__
    given = {"batch_size": batch_size not in (1, None), "drop_last": drop_last, "use_ddp": use_ddp}
    for name in (name for name, is_given in given.items() if is_given):
        raise InputError(
            f"Got {name} with a {kind} as indices, whose items are batches. Leave it out, or pass a tensor of indices."
        )
    if shuffle and not callable(getattr(seeds.dataset, "shuffle", None)):
        raise InputError(
            f"Got shuffle=True with a {kind} as indices, which has no method shuffle(). Add one, which is called "
            "before each epoch, or shuffle in the dataset."
        )


def check_device(
    device: torch.device, use_uva: bool, gpu_cache: object, placement: Place | None, **streams: bool | None
) -> None:
    """Raise InputError for options of GPUs without a GPU, and for options without a meaning here."""
    check_placement(placement, device)
    if device.type == "cpu":
        on_gpu = {"use_uva": use_uva, "pin_prefetcher": streams["pin_prefetcher"], "gpu_cache": gpu_cache}
        for name, value in on_gpu.items():
            if value:
                raise InputError(
                    f"Got {name}={value!r} for batches on the CPU. It works on a GPU only: give device='cuda', or "
                    "leave it out."
                )
        return
    if gpu_cache is not None and not _is_cache(gpu_cache):
        raise InputError(
            "Expected gpu_cache as {'node': {name: rows}, 'edge': {name: rows}}: which data, and how many rows of "
            f"them to keep on the GPU, got {gpu_cache!r}."
        )
    for name, value in streams.items():
        if value is False:
            raise InputError(
                f"Got {name}=False, but batches on a GPU always use separate streams and pinned memory. Leave it out."
            )
    if placement is not None and use_uva:
        raise InputError(
            f"Expected either use_uva=True or placement, got both ({placement!r}). use_uva=True is "
            "placement='pinned-cuda'."
        )


def _is_cache(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) <= {"node", "edge"}
        and all(isinstance(by_name, Mapping) for by_name in value.values())
        and all(type(rows) is int and rows >= 0 for by_name in value.values() for rows in by_name.values())
    )


def find_device(graph: GraphLike, device: torch.device | str | None, use_uva: bool) -> torch.device:
    """Return the device of the batches.

    Raises:
        InputError: no device, or a missing GPU.
    """
    if device is None:
        device = "cuda" if use_uva else graph.device
    return as_device(device)


def check_places(graph: GraphLike, seeds: Seeds | GivenBatches, device: torch.device, num_workers: int) -> None:
    """Raise InputError for graphs and indices on devices that the loader cannot read."""
    if num_workers > 0 and graph.device.type == "cuda":
        raise InputError(
            f"Expected num_workers=0 with a graph on a GPU, where DGL samples, got {num_workers}. Leave it out, or "
            "keep the graph on the CPU: with device='cuda' manyhop's samplers copy it to the GPU."
        )
    if isinstance(seeds, Seeds) and device.type == "cpu":
        tensors = seeds.indices.values() if isinstance(seeds.indices, dict) else (seeds.indices,)
        if there := [tensor.device for tensor in tensors if tensor.device.type != "cpu"]:
            raise InputError(f"Expected indices on the CPU, like the graph, got some on {there[0]}: move them.")


def with_graph(seeds: Seeds | GivenBatches, graph: GraphLike) -> Seeds | GivenBatches:
    """Return seeds in host memory for a graph there: DGL's scripts move them to the GPU for its samplers."""
    on_host = graph.device.type == "cpu"
    return seeds.on_host() if on_host and isinstance(seeds, Seeds) else seeds


def check_graph(graph: GraphLike, sampler: BlockSampler, seeds: Seeds | GivenBatches, *, output: str) -> None:
    """Raise InputError for anything but a graph, or for requests of manyhop's samplers that do not fit it."""
    if isinstance(graph, DistGraph):
        raise InputError(
            "Expected a DGLGraph or a manyhop_dgl.Graph, got a DistGraph. Its loaders are "
            "dgl.dataloading.DistNodeDataLoader and DistEdgeDataLoader."
        )
    if not isinstance(graph, Graph | DGLGraph):
        raise InputError(f"Expected a DGLGraph or a manyhop_dgl.Graph, got {type(graph).__name__}.")
    if not isinstance(sampler, EngineSampler | EdgePredictionSampler):
        return
    nodes = sampler_of_nodes(sampler)
    if isinstance(nodes, EngineSampler):
        edges_of(graph)
        for layer in nodes.arguments().fanouts:
            fanouts_by_type(layer, graph.canonical_etypes)
    if output == "blocks":
        sampler.check_prefetching(graph.ntypes, graph.canonical_etypes)
    if isinstance(seeds, Seeds):
        kind, known = ("node", graph.ntypes) if nodes is sampler else ("edge", graph.canonical_etypes)
        by_type(seeds.indices, known, kind, "indices")


def samples_tensors(sampler: BlockSampler) -> bool:
    """Return whether a sampler can sample without DGL's objects: manyhop's, with unchanged methods."""
    nodes = sampler_of_nodes(sampler)
    return (
        isinstance(nodes, EngineSampler)
        and _is_as_it_was(nodes, EngineSampler, (*_METHODS, "sample_blocks"))
        and (nodes is sampler or _is_as_it_was(sampler, EdgePredictionSampler, _METHODS))
    )


def _is_as_it_was(sampler: object, own: type, methods: tuple[str, ...]) -> bool:
    return all(getattr(type(sampler), name) is getattr(own, name) and name not in vars(sampler) for name in methods)


def check_tensors(sampler: BlockSampler, name: str, value: str) -> None:
    """Raise InputError unless a sampler can sample without DGL's objects, which an argument of the loader needs."""
    if not samples_tensors(sampler):
        raise InputError(
            f"Expected one of manyhop_dgl's samplers, with its own methods, for {name}={value!r}, also beneath "
            f"as_edge_prediction_sampler, got a {type(sampler_of_nodes(sampler)).__name__}. Leave {name} out."
        )
    if sampler.output_device is not None:
        raise InputError(f"Got a sampler with output_device for {name}={value!r}. Pass device to the loader instead.")


def check_pad(pad: Pad | None, sampler: BlockSampler, seeds: Seeds | GivenBatches) -> None:
    """Raise InputError if batches cannot be padded, FeatureError if they have data with the masks' names."""
    check_pad_option(pad)
    if pad is None:
        return
    check_tensors(sampler, "pad", pad)
    if isinstance(seeds, GivenBatches):
        raise InputError(
            f"Expected indices that the loader cuts into batches with pad='auto', got a {type(seeds.dataset).__name__} "
            "of batches. Pass a tensor of indices and batch_size."
        )
    nodes = sampler_of_nodes(sampler)
    check_names_of_masks(("node_mask",), {*names_of(nodes.prefetch_node_feats), *names_of(nodes.prefetch_labels)})
    labels = () if nodes is sampler else names_of(sampler.prefetch_labels)
    check_names_of_masks(("edge_mask",), {*names_of(nodes.prefetch_edge_feats), *labels})


def check_torch_arguments(kwargs: dict[str, object], own: type) -> None:
    """Remove arguments that Lightning adds when it creates a loader again, and raise for arguments without effect.

    Args:
        kwargs: other arguments of the user.
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
                "graph_sampler their content."
            )
        kwargs.pop(name, None)
    if kwargs.get("pin_memory"):
        raise InputError("Got pin_memory=True, which pins collated tensors. For a GPU, pass device='cuda'.")
