"""Runs the stages of a chain on minibatches, with what statistics hold about that: times, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import Any

from torch import Tensor

from manyhop.loading.pipeline import Stage as StageName
from manyhop.loading.pipeline import Stats, Streams
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged, wanted
from manyhop_graphbolt.features.feature import Gather
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.loader.chain import to_gpu
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.negative import NegativeSampler
from manyhop_graphbolt.stages.sampling import SubgraphSampler
from manyhop_graphbolt.stages.stage import CopyTo, Stage, Step, drawing, is_of_this_package, is_ours, step
from manyhop_graphbolt.types import Pipe

_Part = tuple[StageName, list[Step], Streams | None]


class TimedStages:
    """Stages of a chain, whose times go into the statistics.

    Copies to a device and functions of the user count as assembling. On a GPU, sampling and gathering are timed by the
    GPU, everything else by the host.

    Args:
        stages: in order.
        first: what their draws are counted from.
        gather: what features are gathered by.
        stats: of the loader.
        streams: of the loader; ``None``: it has no GPU.
        on_gpu: whether minibatches are on the GPU already.
        replaced: a stage, and what is done in its place; ``None``: nothing is.
    """

    def __init__(
        self,
        stages: Sequence[Pipe],
        first: int,
        gather: Gather,
        stats: Stats,
        streams: Streams | None = None,
        *,
        on_gpu: bool = False,
        replaced: tuple[Pipe, Step] | None = None,
    ) -> None:
        self._stats, self._first = stats, first
        self._parts: list[_Part] = []
        for name, some in groupby(stages, _stage_name):
            part = list(some)
            on_its_clock = streams if on_gpu and name != "assemble" else None
            steps = [_step_of(stage, gather, replaced) for stage in part]
            if name == "sample" and wanted():
                steps = [ranged(name)(partial(_in_a_row, steps))]
            self._parts.append((name, steps, on_its_clock))
            on_gpu = on_gpu or any(map(to_gpu, part))

    def __call__(self, item: object, key: BatchKey | None, batch: int, *, calls: int = 0, times: int = 1) -> object:
        """Return what all stages make of an item.

        Args:
            item: the item.
            key: names the item, see :func:`~manyhop_graphbolt.stages.stage.run`; ``None``: this thread makes it.
            batch: its number in the epoch.
            calls: draws that were made before.
            times: how many batches the GPU's times stand for; 0: they are not measured.
        """
        with nullcontext() if key is None else drawing(key, calls or self._first):
            for name, steps, streams in self._parts:
                if streams is None:
                    start = perf_counter()
                    for step_ in steps:
                        item = step_(item)
                    self._stats.record(batch, name, start, perf_counter())
                    continue
                begun = streams.mark() if times else None
                for step_ in steps:
                    item = step_(item)
                if begun is not None:
                    streams.took(times, name, batch, begun, streams.mark())
        return item


def _in_a_row(steps: Sequence[Step], item: Any) -> Any:
    for step_ in steps:
        item = step_(item)
    return item


def _step_of(stage: Pipe, gather: Gather, replaced: tuple[Pipe, Step] | None) -> Step:
    """Return what a stage does to an item."""
    if replaced is not None and stage is replaced[0]:
        return replaced[1]
    if isinstance(stage, FeatureFetcher) and is_of_this_package(stage):
        return partial(_fetch, stage, gather)
    return stage.step if isinstance(stage, Stage) else partial(step, stage)


def _fetch(stage: FeatureFetcher, gather: Gather, item: MiniBatch) -> MiniBatch:
    stage.fetch([item], gather)
    return item


def _stage_name(stage: Pipe) -> StageName:
    if isinstance(stage, FeatureFetcher):
        return "gather"
    if isinstance(stage, SubgraphSampler | NegativeSampler) or (is_ours(stage) and not isinstance(stage, CopyTo)):
        return "sample"
    return "assemble"


# Generators and small functions would cost more than the counting.


def num_seeds(item: object) -> int:
    """Return how many seed nodes, or seed edges, a minibatch has; 0 for other items."""
    if not isinstance(item, MiniBatch):
        return 0
    parts = item.seeds.values() if isinstance(item.seeds, Mapping) else (item.seeds,)
    return sum([part.size(0) for part in parts if isinstance(part, Tensor) and part.dim() > 0])


def contents_of(item: object) -> dict[str, int]:
    """Return nodes, edges and bytes of features of a minibatch; nothing for other items."""
    if not isinstance(item, MiniBatch):
        return {}
    if (padded := item.padding) is not None:
        nodes, edges = (sum(map(sum, some.values())) for some in (padded.counts.nodes, padded.counts.edges))
        fit = int(padded.grown == 0)
        return {"nodes": nodes, "edges": edges, "padded": 1, "fit": fit, "gathered_bytes": feature_bytes(item)}
    edges = nodes = 0
    for layer in item.sampled_subgraphs or ():
        csc = getattr(layer, "sampled_csc", None)  # samplers of the user's give what they like
        for of_type in csc.values() if isinstance(csc, Mapping) else (csc,):
            indices = getattr(of_type, "indices", None)
            if isinstance(indices, Tensor):
                edges += indices.numel()
    inputs = item.input_nodes
    for ids in inputs.values() if isinstance(inputs, Mapping) else (inputs,):
        if isinstance(ids, Tensor):
            nodes += ids.numel()
    return {"nodes": nodes, "edges": edges, "gathered_bytes": feature_bytes(item)}


def feature_bytes(item: object) -> int:
    """Return the bytes of the features of a minibatch; 0 for other items."""
    nbytes = 0
    for features in (item.node_features, *(item.edge_features or ())) if isinstance(item, MiniBatch) else ():
        for rows in features.values() if isinstance(features, Mapping) else ():
            if isinstance(rows, Tensor):
                nbytes += rows.nbytes
    return nbytes
