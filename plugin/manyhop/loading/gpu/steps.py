"""The steps of an epoch's batches on a GPU: of a thread, per group and per batch, and of the caller, per batch."""

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
    """Return the steps of threads, which begin and complete groups, and the step of the caller, which finishes a batch.

    Batches are sampled in groups, unless the user defines the sampler or the batches.
    """
    streams, seeds, assembler, steps = gpu.streams, adapter.seeds, adapter.assembler, epoch.steps
    in_thread, transform, hands_out = assembler.in_thread, assembler.transform, assembler.hands_out
    merges = gpu.sampling is not None and not assembler.makes_alone
    lookup = gpu.lookup if gpu.finds_seeds(loader, adapter) else None
    plan = None if loader.plan is None else replace(loader.plan, seed=epoch.seed)
    joins = merges and in_thread and steps is None and assembler.joins

    def begin(batches: Sequence[tuple[int, Item]]) -> list[Callable[[], Any]]:
        group = None
        if merges:
            with streams.on_stream():
                numbers = [item[1] for _, item in batches]
                if lookup is not None and plan is not None:
                    inputs = lookup.of(plan, epoch.number, numbers)
                else:
                    inputs = seeds.inputs([epoch.to_index(item[1]) for _, item in batches])
                keys = [BatchKey(epoch.seed, epoch.number, batch) for batch, _ in batches]
                try:
                    group = InFlightGroup(gpu, adapter, inputs, keys, [item[0] for _, item in batches])
                except Exception as error:
                    if not gpu.collective:
                        raise
                    return [partial(_fail, error)] * len(batches)  # no batch begins again, without the other ranks
        if joins and group is not None:
            return [partial(complete_of_several, group, i, *one) for i, one in enumerate(batches)]
        return [partial(complete, group, i, *one) for i, one in enumerate(batches)]

    def complete_of_several(group: InFlightGroup, i: int, batch: int, item: Item) -> OnStream[Any]:
        if transform is None and group.is_ready(i):  # the fast path
            return group.pop_ready(i)
        with epoch.batch_context(batch, item[0], 1):
            made = group.pop_ready(i)
            if transform is None:
                return made
            if not made.source[0].is_current():
                made = group.retake(batch)
            with streams.on_stream():
                return streams.hand_over(transform(made.value), timed=made.timed)

    @ranged("assemble")
    def complete(group: InFlightGroup | None, i: int, batch: int, item: Item) -> OnStream[Any]:
        turn, index = item
        with streams.on_stream(), epoch.batch_context(batch, turn, int(merges)), epoch.in_step(turn):
            if group is None:
                value = assembler.make(epoch.to_index(index))
            else:
                value = group.take(i)
                if in_thread:
                    value = assembler.complete(value)
            return streams.hand_over(value if in_thread else (turn, value), timed=gpu.is_timed(turn))

    def tensors_of(batch: Any) -> list[Tensor]:
        return gpu.tensors_of(adapter, [batch])

    def finish(batch: int, made: OnStream[Any]) -> Any:
        if steps is not None and (failure := steps.failure) is not None and not streams.is_complete(made):
            raise failure  # the rows of this batch may never come
        if made.source is not None and not made.source[0].is_current():  # made ahead of time, and outdated by now
            made = made.source[1].retake(batch)
        if not in_thread:
            turn = made.value[0]
            with streams.on_stream(), epoch.batch_context(batch, turn, 1), epoch.in_step(turn):
                out = assembler.complete(streams.adopt(made)[1])
                made = streams.hand_over(out, timed=made.timed)
        value = gpu.receive(made, tensors_of)
        return assembler.hand_out(value) if hands_out else value

    size = gpu.group_size if merges else 1
    if joins and transform is None:
        return Groups(begin, size, in_a_row=partial(gpu.joined_at_once, size)), finish
    return Groups(begin, size), finish


def _fail(error: Exception) -> Any:
    raise error
