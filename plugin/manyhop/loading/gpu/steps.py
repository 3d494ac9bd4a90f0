"""The stages of an epoch's batches on a GPU: sample a group, assemble its batches, hand each one out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from manyhop.loading.adapter import Adapter, LoaderView
from manyhop.loading.epoch import Epoch
from manyhop.loading.gpu.groups import InFlightGroup
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.loading.iterator import Item
from manyhop.loading.pipeline import Groups, OnStream
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged


def steps_on_gpu(
    loader: LoaderView, adapter: Adapter[Any, Any], epoch: Epoch, gpu: GPURuntime
) -> tuple[Groups[Item, Any], Callable[[int, Any], Any]]:
    """Return the steps of threads, which sample groups and assemble batches, and the caller's, which hands one out."""
    stages = GPUStages(loader, adapter, epoch, gpu)
    return stages.groups(), stages.hand_out


class GPUStages:
    """The stages of the batches of one epoch.

    Batches are sampled in groups, unless the user defines the sampler or the batches. Those of a group are assembled
    several at a time, by one gather, where no code of the user and no other rank comes in between.

    Args:
        loader: what the loader is at the beginning of the epoch.
        adapter: adapter of the loader.
        epoch: names the batches.
        gpu: the loader's runtime.
    """

    def __init__(self, loader: LoaderView, adapter: Adapter[Any, Any], epoch: Epoch, gpu: GPURuntime) -> None:
        assembler = adapter.assembler
        self._adapter, self._assembler, self._epoch, self._gpu = adapter, assembler, epoch, gpu
        self._streams, self._steps = gpu.streams, epoch.steps
        self._in_thread, self._hands_out = assembler.in_thread, assembler.hands_out
        self._transform = assembler.transform
        self._samples = gpu.sampling is not None and not assembler.makes_alone
        self._joins = self._samples and self._in_thread and self._steps is None and assembler.joins
        self._lookup = gpu.lookup if gpu.finds_seeds(loader, adapter) else None
        self._plan = None if loader.plan is None else replace(loader.plan, seed=epoch.seed)

    def groups(self) -> Groups[Item, Any]:
        """Return how threads make the batches."""
        size = self._gpu.group_size if self._samples else 1
        if self._joins and self._transform is None:
            return Groups(self._begin, size, in_a_row=partial(self._gpu.joined_at_once, size))
        return Groups(self._begin, size)

    def _begin(self, batches: Sequence[tuple[int, Item]]) -> list[Callable[[], Any]]:
        """Begin a group of batches; return what assembles each of them."""
        group = None
        if self._samples:
            keys = [BatchKey(self._epoch.seed, self._epoch.number, batch) for batch, _ in batches]
            with self._streams.on_stream():
                inputs = self._inputs(batches)
                try:
                    group = InFlightGroup(self._gpu, self._adapter, inputs, keys, [item[0] for _, item in batches])
                except Exception as error:
                    if not self._gpu.collective:
                        raise
                    return [partial(_fail, error)] * len(batches)  # no batch begins again, without the other ranks
        if self._joins and group is not None:
            return [partial(self._assemble_joined, group, i, *one) for i, one in enumerate(batches)]
        return [partial(self._assemble_alone, group, i, *one) for i, one in enumerate(batches)]

    def _inputs(self, batches: Sequence[tuple[int, Item]]) -> Sequence[Any]:
        """Return the sampler's inputs of some batches."""
        if self._lookup is not None and self._plan is not None:
            return self._lookup.of(self._plan, self._epoch.number, [item[1] for _, item in batches])
        return self._adapter.seeds.inputs([self._epoch.to_index(item[1]) for _, item in batches])

    def _assemble_joined(self, group: InFlightGroup, i: int, batch: int, item: Item) -> OnStream[Any]:
        """Return batch ``i`` of a group, which is assembled together with the next ones, and transform it."""
        if self._transform is None and group.is_ready(i):  # the fast path
            return group.pop_ready(i)
        with self._epoch.batch_context(batch, item[0], 1):
            made = group.pop_ready(i)
            if self._transform is None:
                return made
            if not made.source[0].is_current():
                made = group.retake(batch)
            with self._streams.on_stream():
                return self._streams.hand_over(self._transform(made.value), timed=made.timed)

    @ranged("assemble")
    def _assemble_alone(self, group: InFlightGroup | None, i: int, batch: int, item: Item) -> OnStream[Any]:
        """Return one batch, or where the caller's thread assembles batches its turn and sample."""
        turn, index = item
        epoch, assembler = self._epoch, self._assembler
        with self._streams.on_stream(), epoch.batch_context(batch, turn, int(self._samples)), epoch.in_step(turn):
            if group is None:
                value = assembler.make(epoch.to_index(index))
            else:
                value = group.take(i)
                if self._in_thread:
                    value = assembler.complete(value)
            value = value if self._in_thread else (turn, value)
            return self._streams.hand_over(value, timed=self._gpu.is_timed(turn))

    def hand_out(self, batch: int, made: OnStream[Any]) -> Any:
        """Return a batch to the caller, in its thread."""
        steps, streams = self._steps, self._streams
        if steps is not None and (failure := steps.failure) is not None and not streams.is_complete(made):
            raise failure  # the rows of this batch may never come
        if made.source is not None and not made.source[0].is_current():  # made ahead of time, and outdated by now
            made = made.source[1].retake(batch)
        if not self._in_thread:
            turn = made.value[0]
            with streams.on_stream(), self._epoch.batch_context(batch, turn, 1), self._epoch.in_step(turn):
                out = self._assembler.complete(streams.adopt(made)[1])
                made = streams.hand_over(out, timed=made.timed)
        value = self._gpu.receive(made, self._tensors_of)
        return self._assembler.hand_out(value) if self._hands_out else value

    def _tensors_of(self, batch: Any) -> list[Tensor]:
        return self._gpu.tensors_of(self._adapter, [batch])


def _fail(error: Exception) -> Any:
    raise error
