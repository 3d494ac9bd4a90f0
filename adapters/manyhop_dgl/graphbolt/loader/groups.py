"""On a GPU: the layers of several minibatches are sampled by the same launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch

from manyhop.loading.gpu.samples import SampledGroup, group_size
from manyhop.pipeline import Groups, OnStream, Streams
from manyhop.sampling import BatchKey
from manyhop_dgl.graphbolt.loader.chain import Part
from manyhop_dgl.graphbolt.loader.stats import TimedStages, count_sampled
from manyhop_dgl.graphbolt.stages.layers import AllLayers, Asked
from manyhop_dgl.graphbolt.stages.stage import REST, CopyTo, drawing, step

Items = list[tuple[BatchKey | None, Any]]
"""Items and their keys."""

MakeItems = Callable[[Sequence[Any], torch.device | None], Items]
"""``make(batches, device)`` makes items; they are on the device already, if it is easy."""

MakeNumbered = Callable[[Sequence[tuple[int, Any]], torch.device | None], Items]
"""The same of batches that come with their numbers in the epoch."""


class _Begun(NamedTuple):
    """A minibatch that has got as far as the sampling of its layers."""

    key: BatchKey | None
    item: Any
    asked: Asked
    calls: int


def groups_of(
    part: Part,
    make_items: MakeNumbered,
    streams: Streams,
    first_call: int,
    rest: TimedStages | None,
    *,
    is_last: bool,
) -> Groups[Any, Any] | None:
    """How the minibatches of a part are made in groups; ``None``: its stages have to be run one by one.

    Args:
        part: the part of the chain.
        make_items: makes the items, and their keys.
        streams: of the loader.
        first_call: what draws are counted from.
        rest: the last functions of the user; ``None``: they are not run here.
        is_last: whether the part is the last one of the chain, whose minibatches are counted.
    """
    stages = part.stages.ours
    at = next((i for i, stage in enumerate(stages) if isinstance(getattr(stage, "transformer", None), AllLayers)), None)
    if at is None or not any(isinstance(stage, CopyTo) and stage.device.type == "cuda" for stage in stages[:at]):
        return None
    before, layers, after = stages[:at], stages[at].transformer, stages[at + 1 :]
    first = before[0].device if isinstance(before[0], CopyTo) and before[0].device.type == "cuda" else None
    stats, timed_after = streams.stats, TimedStages(after, streams.stats, streams, on_gpu=True)

    def begin(batches: Sequence[tuple[int, Any]]) -> list[Callable[[], OnStream[Any]]]:
        with streams.here():
            begun: list[_Begun] = []
            made, began = make_items(batches, first), perf_counter()
            for key, item in made:
                begun.append(_begin(before, layers, key, item, first_call, begun[0].asked if begun else None))
            stats.record(batches[0][0], "assemble", began, perf_counter())
            start = streams.mark()
            group = _Group(begun, streams, batches[0][0])
            streams.took(1, "sample", batches[0][0], start, streams.mark())
        return [partial(complete, group, i, number) for i, (number, _) in enumerate(batches)]

    def complete(group: _Group, i: int, number: int) -> OnStream[Any]:
        with streams.here():
            sample = group.take(i)
            key, item, asked, calls = group.take_begun(i)
            item, times = layers.answer(item, asked, sample), 0 if i else len(group)
            item = timed_after.run(item, key, number, first_call=calls, times=times)
            if is_last:
                count_sampled(stats, item)
            if rest is not None:
                item = rest.run(item, key, number, first_call=first_call + REST)
            return streams.hand_over((key, item), timed=is_last and i == 0)

    return Groups(begin, group_size(getattr(part.source, "batch_size", None)))


class _Group(SampledGroup):
    """A group of minibatches whose sampling is under way."""

    def __init__(self, begun: Sequence[_Begun], streams: Streams, first: int) -> None:
        super().__init__(len(begun))
        self._streams, self._first = streams, first
        self._begun: list[_Begun | None] = list(begun)
        sampler = begun[0].asked.sampler
        together = all(one.asked.sampler is sampler for one in begun)  # else tables have changed in between
        self._pending = sampler.begin([one.asked.request for one in begun]) if together else None

    def take_begun(self, i: int) -> _Begun:
        """Return minibatch ``i``, which the group keeps no longer: it will have features."""
        begun, self._begun[i] = self._begun[i], None
        assert begun is not None
        return begun

    def _collect(self) -> list[Any]:
        pending, self._pending = self._pending, None
        if pending is None:
            return [None] * len(self)
        start = self._streams.mark()
        samples = pending.finish()
        self._streams.took(1, "sample", self._first, start, self._streams.mark())
        return samples

    def _sample_alone(self, i: int) -> Any:
        begun = self._begun[i]
        assert begun is not None
        return begun.asked.sampler.sample(begun.asked.request)


def _begin(
    before: Sequence[Any], layers: AllLayers, key: BatchKey | None, item: Any, first_call: int, like: Asked | None
) -> _Begun:
    """Run the stages before the sampling of layers."""
    draws = drawing(key, first_call)
    with draws:
        for stage in before:
            item = step(stage, item)
        asked = layers.ask(item, like)
    return _Begun(key, item, asked, getattr(draws, "calls", first_call))
