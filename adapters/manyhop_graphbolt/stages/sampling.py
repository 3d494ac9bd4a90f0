"""Stages that sample: from seeds to the layers of a minibatch, the input layer first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import as_tensor, check_no_mask, flags
from manyhop.errors import InputError
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.subgraph import SampledSubgraph, SampledSubgraphImpl
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.items.sets import UNSIGNED
from manyhop_graphbolt.pipes import check_hints, functional_datapipe
from manyhop_graphbolt.stages.functional import compact_csc_format, unique_and_compact
from manyhop_graphbolt.stages.layers import (
    AllLayers,
    check_graph,
    compacted,
    fanout_tensors,
    layer_by_layer,
    with_all_types,
)
from manyhop_graphbolt.stages.stage import MiniBatchTransformer
from manyhop_graphbolt.types import Nodes, Pipe, etype_str_to_tuple

Added: TypeAlias = tuple[str, int, torch.Size]
"""Where nodes are among the collected ones: their type, their part, the shape that they had."""


def begin_nodes(minibatch: MiniBatch) -> tuple[Nodes, Nodes | None]:
    """Return the nodes that sampling begins with, and their times (``None`` without a ``timestamp``).

    The minibatch gets the positions of its ``seeds`` among those nodes. Seeds that are nodes are taken unchanged,
    repetitions included, so that the last layer has a column for each of them; nodes of pairs are taken once each.
    If there are times, all repetitions are nodes of their own.

    Args:
        minibatch: one with ``seeds``.

    Returns:
        ``[num_nodes]`` each; by node type or not.

    Raises:
        InputError: there is nothing to begin with, or seeds that are neither ``[n]`` nor ``[n, 2]``.
    """
    if not isinstance(minibatch, MiniBatch):
        raise InputError(
            f"Expected a MiniBatch to sample for, got a {type(minibatch).__name__}. Name the items of the ItemSet: "
            "ItemSet(nodes, names='seeds')."
        )
    if minibatch.seeds is None:
        raise InputError("Expected a minibatch with seeds, got one without. Name the items of the ItemSet so.")
    return _of_seeds(minibatch, minibatch.seeds, getattr(minibatch, "timestamp", None))


class _Nodes:
    """Nodes that are collected from multiple tensors, by type."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self._nodes: dict[str, list[Tensor]] = {}
        self._times: dict[str, list[Tensor]] = {}
        self._places: dict[str, Sequence[Tensor]] = {}
        self._mixed: set[str] = set()

    def add(self, ntype: str, nodes: Tensor, times: Tensor | None, *, as_they_are: bool = False) -> Added:
        """Collect ``nodes``, of any shape, with a time for each of their rows. Returns what :meth:`place` requests.

        Those that are wanted ``as_they_are``, and are all of their type, are not looked through for repetitions.
        """
        if not as_they_are or ntype in self._nodes:
            self._mixed.add(ntype)
        parts = self._nodes.setdefault(ntype, [])
        parts.append(nodes.reshape(-1))
        if times is not None:
            copies = nodes.numel() // max(1, times.size(0))
            self._times.setdefault(ntype, []).append(times.repeat_interleave(copies, dim=0))
        return ntype, len(parts) - 1, nodes.shape

    def finish(self) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Return all nodes, each once unless they have times, and their times."""
        if not self._timed:
            found, self._places = unique_and_compact({ntype: self._nodes[ntype] for ntype in self._mixed})
            for ntype in self._nodes.keys() - self._mixed:
                (found[ntype],) = (only,) = self._nodes[ntype]
                self._places[ntype] = [torch.arange(only.numel(), dtype=only.dtype, device=only.device)]
            return {ntype: found[ntype] for ntype in self._nodes}, None
        nodes = {ntype: torch.cat(parts) for ntype, parts in self._nodes.items()}
        for ntype, parts in self._nodes.items():
            each = torch.arange(nodes[ntype].numel(), dtype=parts[0].dtype, device=parts[0].device)
            self._places[ntype] = torch.split(each, [part.numel() for part in parts])
        return nodes, {ntype: torch.cat(parts) for ntype, parts in self._times.items()}

    def place(self, added: Added) -> Tensor:
        """Return the positions of added nodes, in their original shape."""
        ntype, i, shape = added
        return self._places[ntype][i].view(shape)


_ONLY = "_N"


def _of_seeds(minibatch: MiniBatch, seeds: Nodes, times: Nodes | None) -> tuple[Nodes, Nodes | None]:
    hetero = isinstance(seeds, dict)
    nodes = _Nodes(times is not None)
    added: dict[Any, Any] = {}
    for name, given in seeds.items() if isinstance(seeds, dict) else [(_ONLY, seeds)]:
        what = f"seeds of type '{name}'" if hetero else "seeds"
        some = as_tensor(what, given)
        if some.dim() != 1 and (some.dim() != 2 or some.shape[1] != 2):
            raise InputError(
                f"Expected seeds of shape [n] (nodes) or [n, 2] (edges), got {list(some.shape)}"
                + (f" of type '{name}'." if hetero else ".")
                + " Cut hyperlinks into pairs of nodes."
            )
        check_no_mask(what, some)
        if some.is_floating_point() or some.is_complex():
            raise InputError(f"Expected {what} as ids, got {some.dtype}.")
        if some.dtype in UNSIGNED:
            some = some.long()
        when = None if times is None else _of_all(times[name] if isinstance(times, dict) else times, some.shape[0])
        if not hetero:
            added[name] = nodes.add(_ONLY, some, when, as_they_are=some.dim() == 1)
        elif some.dim() == 1:
            added[name] = nodes.add(name, some, when, as_they_are=True)
        else:
            src, _, dst = etype_str_to_tuple(name)
            added[name] = nodes.add(src, some[:, 0], when), nodes.add(dst, some[:, 1], when)
    found, found_times = nodes.finish()
    compacted = {
        name: torch.stack([nodes.place(end) for end in slot], dim=1)
        if isinstance(slot[0], tuple)
        else nodes.place(slot)
        for name, slot in added.items()
    }
    minibatch.compacted_seeds = compacted if hetero else compacted[_ONLY]
    return _unwrapped(hetero, found, found_times)


def _of_all(given: object, num_seeds: int) -> Tensor:
    """Repeat the times of positive pairs for the negative pairs that follow."""
    times = as_tensor("timestamp", given)
    number = times.size(0) if times.dim() else 0
    if times.shape not in ((number,), (number, 2)) or num_seeds % max(1, number):
        raise InputError(
            "Expected a time, or the beginning and the end of a window, for each seed or each positive pair, got "
            f"{list(times.shape)} for {num_seeds} seeds."
        )
    if number in (0, num_seeds):
        return times
    return torch.cat((times, times.repeat_interleave(num_seeds // number - 1, dim=0)))


def _unwrapped(hetero: bool, nodes: dict[str, Tensor], times: dict[str, Tensor] | None) -> tuple[Nodes, Nodes | None]:
    return (nodes, times) if hetero else (nodes[_ONLY], times and times[_ONLY])


@functional_datapipe("sample_subgraph")
class SubgraphSampler(MiniBatchTransformer):
    """The base of samplers. A subclass defines :meth:`sample_subgraphs`, or :meth:`sampling_stages`.

    Functional name: ``sample_subgraph``.

    Args:
        datapipe: minibatches with ``seeds``.
        args: go to :meth:`sampling_stages`, as do ``kwargs``.
    """

    def __init__(self, datapipe: Pipe, *args: object, **kwargs: object) -> None:
        begun = MiniBatchTransformer(datapipe, _begin)
        super().__init__(self.sampling_stages(begun, *args, **kwargs), _end)

    def sampling_stages(self, datapipe: Pipe) -> Pipe:
        """Add the stages that sample to a pipe, and return the last one.

        A minibatch has the nodes to begin with as ``_seed_nodes``, their times (or ``None``) as ``_seeds_timestamp``;
        it must get ``input_nodes`` and ``sampled_subgraphs``.
        """
        return MiniBatchTransformer(datapipe, self._sample)

    def sample_subgraphs(self, seeds: Nodes, seeds_timestamp: Nodes | None) -> tuple[Nodes, Sequence[SampledSubgraph]]:
        """Sample around nodes.

        Args:
            seeds: ``[num_nodes]``, by node type or not.
            seeds_timestamp: their times, ``[num_nodes]``; ``None`` without.

        Returns:
            The input nodes, and the layers, the input layer first.
        """
        raise NotImplementedError

    def _sample(self, minibatch: MiniBatch) -> MiniBatch:
        seeds, times = minibatch._seed_nodes, minibatch._seeds_timestamp
        minibatch.input_nodes, minibatch.sampled_subgraphs = self.sample_subgraphs(seeds, times)
        return minibatch


def _begin(minibatch: MiniBatch) -> MiniBatch:
    minibatch._seed_nodes, minibatch._seeds_timestamp = begin_nodes(minibatch)
    return minibatch


def _end(minibatch: MiniBatch) -> MiniBatch:
    del minibatch._seed_nodes, minibatch._seeds_timestamp
    return minibatch


@functional_datapipe("sample_neighbor")
class NeighborSampler(SubgraphSampler):
    """Samples neighbours of all nodes of a layer, layer by layer. Functional name: ``sample_neighbor``.

    Args:
        datapipe: minibatches with ``seeds``.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its methods.
        fanouts: edges per node and layer, the input layer first: an integer, ``[1]`` (counts for all edge types
            together) or ``[num_edge_types]`` integers; -1: all.
        replace: sample with replacement.
        prob_name: edge attribute with weights (floating-point) or a mask (bool) of the edges.
        deduplicate: number each node of a layer once; ``False``: once for each edge that leads to it.
        overlap_fetch: a hint; reads of the graph overlap without it.
        num_gpu_cached_edges: a hint for GraphBolt's cache of edges on the GPU; manyhop has none.
        gpu_cache_threshold: see ``num_gpu_cached_edges``.
        cooperative: only ``False``.
        asynchronous: a hint; sampling overlaps without it.

    Raises:
        InputError: (also at a batch) an argument does not make sense.
    """

    _one_layer = "sample_neighbors"
    _all_layers = "spec"
    _options: Mapping[str, Any] = {}

    def __init__(
        self,
        datapipe: Pipe,
        graph: object,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        overlap_fetch: bool = False,
        num_gpu_cached_edges: int = 0,
        gpu_cache_threshold: int = 1,
        cooperative: bool = False,
        asynchronous: bool = False,
    ) -> None:
        check_hints(
            overlap_fetch=overlap_fetch,
            num_gpu_cached_edges=num_gpu_cached_edges,
            gpu_cache_threshold=gpu_cache_threshold,
            cooperative=cooperative,
            asynchronous=asynchronous,
        )
        super().__init__(datapipe, graph, fanout_tensors(fanouts), replace, prob_name, deduplicate)

    def sampling_stages(  # type: ignore[override]  # as in DGL
        self,
        datapipe: Pipe,
        graph: Any,
        fanouts: Sequence[int | Tensor],
        replace: bool,
        prob_name: str | None,
        deduplicate: bool,
    ) -> object:
        """Add one stage for all layers."""
        flags(replace=replace, deduplicate=deduplicate)
        check_graph(graph, self._one_layer, prob_name)
        tensors = fanout_tensors(fanouts)
        if isinstance(graph, FusedCSCSamplingGraph) and deduplicate and len({f.numel() for f in tensors}) == 1:
            step: Any = AllLayers(graph, tensors, replace, prob_name, self._all_layers, **self._options)
        else:
            if self._options:
                raise InputError(
                    f"Expected {sorted(self._options)} only with deduplicate=True, fanouts of the same length in all "
                    "layers and a FusedCSCSamplingGraph, got something else. Leave them out."
                )
            step = partial(layer_by_layer, graph, tensors, replace, prob_name, deduplicate, self._one_layer)
        return MiniBatchTransformer(datapipe, step)


@functional_datapipe("sample_layer_neighbor")
class LayerNeighborSampler(NeighborSampler):
    """Samples neighbours that the nodes of a layer share. Functional name: ``sample_layer_neighbor``.

    By appendix A.3 of arXiv 2210.13339: exactly as many per node as :class:`NeighborSampler`.

    Args:
        datapipe: as for :class:`NeighborSampler`, like all others.
        graph: see there.
        fanouts: see there.
        replace: see there; on a CPU only.
        prob_name: see there.
        deduplicate: see there.
        layer_dependency: all layers have the same random numbers, so that they share more nodes.
        batch_dependency: over how many minibatches the random numbers change: minibatches in a row share more nodes. 1:
            new ones for each minibatch; 0: the same for all.
        overlap_fetch: see there, like the following ones.
        num_gpu_cached_edges: see there.
        gpu_cache_threshold: see there.
        cooperative: see there.
        asynchronous: see there.

    Raises:
        InputError: (also at a batch) an argument does not make sense.
    """

    _one_layer = "sample_layer_neighbors"
    _all_layers = "layer_spec"

    def __init__(
        self,
        datapipe: Pipe,
        graph: object,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        overlap_fetch: bool = False,
        num_gpu_cached_edges: int = 0,
        gpu_cache_threshold: int = 1,
        cooperative: bool = False,
        asynchronous: bool = False,
    ) -> None:
        if isinstance(batch_dependency, bool) or not isinstance(batch_dependency, int) or batch_dependency < 0:
            raise InputError(f"Expected batch_dependency as an integer of at least 0, got {batch_dependency!r}.")
        check_hints(layer_dependency=layer_dependency, overlap_fetch=overlap_fetch)
        dependency: dict[str, Any] = {"layer_dependency": True} if layer_dependency else {}
        self._options = dependency | ({"batch_dependency": batch_dependency} if batch_dependency != 1 else {})
        super().__init__(
            datapipe,
            graph,
            fanouts,
            replace,
            prob_name,
            deduplicate,
            overlap_fetch,
            num_gpu_cached_edges,
            gpu_cache_threshold,
            cooperative,
            asynchronous,
        )


@functional_datapipe("sample_in_subgraph")
class InSubgraphSampler(SubgraphSampler):
    """Takes all edges that lead to the nodes, as one layer. Functional name: ``sample_in_subgraph``.

    Args:
        datapipe: minibatches with ``seeds``.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its methods.
    """

    def __init__(self, datapipe: Pipe, graph: Any) -> None:
        check_graph(graph, "in_subgraph", None)
        super().__init__(datapipe)
        self.graph = graph

    def sample_subgraphs(self, seeds: Nodes, seeds_timestamp: Nodes | None) -> tuple[Nodes, Sequence[SampledSubgraph]]:
        """Return all in-edges of ``seeds``; their times do not matter."""
        seeds = with_all_types(self.graph, seeds)
        layer = compacted(self.graph.in_subgraph(seeds), seeds, deduplicate=True)
        assert layer.original_row_node_ids is not None
        return layer.original_row_node_ids, [layer]


@functional_datapipe("temporal_sample_neighbor")
class TemporalNeighborSampler(SubgraphSampler):
    """Samples neighbours earlier than their seed. Functional name: ``temporal_sample_neighbor``.

    The time of a seed is its entry in ``minibatch.timestamp``; with two times per seed, ``[n, 2]``, edges are not
    earlier than the first one. Each edge leads to a row of its own.

    Args:
        datapipe: minibatches with ``timestamp``.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its methods.
        fanouts: as for :class:`NeighborSampler`.
        replace: sample with replacement.
        prob_name: edge attribute with weights (floating-point; not for layers with the names of times) or a mask (bool)
            of the edges.
        node_timestamp_attr_name: node attribute with the times of nodes.
        edge_timestamp_attr_name: edge attribute with the times of edges.

    Raises:
        InputError: (at a batch) the minibatch has no ``timestamp``.
    """

    _one_layer = "temporal_sample_neighbors"

    def __init__(
        self,
        datapipe: Pipe,
        graph: object,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
    ) -> None:
        check_graph(graph, self._one_layer, prob_name)
        super().__init__(datapipe)
        self.graph = graph
        self.fanouts = fanout_tensors(fanouts)
        self._arguments = (replace, prob_name, node_timestamp_attr_name, edge_timestamp_attr_name)

    def sample_subgraphs(self, seeds: Nodes, seeds_timestamp: Nodes | None) -> tuple[Nodes, Sequence[SampledSubgraph]]:
        """Sample around ``seeds``, from before their times."""
        if seeds_timestamp is None:
            raise InputError(
                "Expected minibatches with a timestamp for temporal sampling, got one without. Name an item of the "
                "ItemSet 'timestamp'."
            )
        seeds, times = with_all_types(self.graph, seeds), with_all_types(self.graph, seeds_timestamp)
        layers: list[SampledSubgraph] = []
        for fanout in reversed(self.fanouts):
            sampled = getattr(self.graph, self._one_layer)(seeds, times, fanout, *self._arguments)
            rows, csc, times = compact_csc_format(sampled.sampled_csc, seeds, times)
            layers.insert(0, SampledSubgraphImpl(csc, seeds, rows, sampled.original_edge_ids))
            seeds = rows
        return seeds, layers


@functional_datapipe("temporal_sample_layer_neighbor")
class TemporalLayerNeighborSampler(TemporalNeighborSampler):
    """Samples earlier neighbours that the nodes share. Functional name: ``temporal_sample_layer_neighbor``.

    Neighbours are chosen as by :class:`LayerNeighborSampler`. The arguments are those of
    :class:`TemporalNeighborSampler`.
    """

    _one_layer = "temporal_sample_layer_neighbors"
