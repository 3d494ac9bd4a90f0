"""What the statistics of a loader hold about minibatches: times of their stages, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from time import perf_counter
from typing import Any

from torch import Tensor

from manyhop.pipeline import Stage, Stats, Streams
from manyhop.sampling import BatchKey
from manyhop_dgl.graphbolt.items.minibatch import MiniBatch
from manyhop_dgl.graphbolt.stages.features import FeatureFetcher
from manyhop_dgl.graphbolt.stages.negative import NegativeSampler
from manyhop_dgl.graphbolt.stages.sampling import SubgraphSampler
from manyhop_dgl.graphbolt.stages.stage import CopyTo, drawing, is_ours, step


class TimedStages:
    """Stages of a chain, whose times go into the statistics.

    Copies to a device and functions of the user count as assembling. On a GPU, sampling and gathering are timed by the
    GPU, everything else by the host.

    Args:
        stages: in order.
        stats: of the loader.
        streams: of the loader; ``None``: it has no GPU.
        on_gpu: whether minibatches are on the GPU already.
    """

    def __init__(self, stages: Sequence[Any], stats: Stats, streams: Streams | None, *, on_gpu: bool = False) -> None:
        self._stats = stats
        self._parts: list[tuple[Stage, list[Any], Streams | None]] = []
        for name, some in groupby(stages, _stage_name):
            part = list(some)
            self._parts.append((name, part, streams if on_gpu and name != "assemble" else None))
            on_gpu = on_gpu or any(isinstance(stage, CopyTo) and stage.device.type == "cuda" for stage in part)

    def run(self, item: Any, key: BatchKey | None, batch: int, *, first_call: int, times: int = 1) -> Any:
        """Return what is left of an item after all stages.

        Args:
            item: the item.
            key: names the item, see :func:`~manyhop_dgl.graphbolt.stages.stage.run`.
            batch: its number in the epoch.
            first_call: what draws are counted from.
            times: how many batches the GPU's times stand for; 0: they are not measured.
        """
        if not self._parts:
            return item
        with drawing(key, first_call):
            for name, stages, streams in self._parts:
                if streams is None:
                    start = perf_counter()
                    for stage in stages:
                        item = step(stage, item)
                    self._stats.record(batch, name, start, perf_counter())
                    continue
                begun = streams.mark() if times else None
                for stage in stages:
                    item = step(stage, item)
                if begun is not None:
                    streams.took(times, name, batch, begun, streams.mark())
        return item


def _stage_name(stage: Any) -> Stage:
    if isinstance(stage, FeatureFetcher):
        return "gather"
    if isinstance(stage, SubgraphSampler | NegativeSampler) or (is_ours(stage) and not isinstance(stage, CopyTo)):
        return "sample"
    return "assemble"


# Generators and small functions would cost more than the counting.


def num_seeds(item: Any) -> int:
    """Return how many seed nodes, or seed edges, a minibatch has; 0 for other items."""
    if not isinstance(item, MiniBatch):
        return 0
    seeds = item.seeds
    if seeds is None:
        seeds = item.node_pairs
    number = 0
    for value in seeds.values() if isinstance(seeds, Mapping) else (seeds,):
        if isinstance(value, tuple) and value:
            value = value[0]
        if isinstance(value, Tensor) and value.dim() > 0:
            number += value.size(0)
    return number


def count_sampled(stats: Stats, item: Any) -> None:
    """Add edges, nodes and bytes of features of a minibatch; nothing for other items."""
    if not isinstance(item, MiniBatch):
        return
    edges = nodes = nbytes = 0
    for layer in item.sampled_subgraphs or ():
        csc = layer.sampled_csc
        for of_type in csc.values() if isinstance(csc, Mapping) else (csc,):
            indices = getattr(of_type, "indices", None)
            if isinstance(indices, Tensor):
                edges += indices.numel()
    inputs = item.input_nodes
    for ids in inputs.values() if isinstance(inputs, Mapping) else (inputs,):
        if isinstance(ids, Tensor):
            nodes += ids.numel()
    for features in (item.node_features, *(item.edge_features or ())):
        for rows in features.values() if isinstance(features, Mapping) else ():
            if isinstance(rows, Tensor):
                nbytes += rows.nbytes
    stats.count(edges=edges, nodes=nodes, gathered_bytes=nbytes)
