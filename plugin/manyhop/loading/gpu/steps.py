"""The stages of an epoch's batches on a GPU: sample a group, assemble its batches, hand each one out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from manyhop.loading.adapter import Adapter, Columns
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.loading.gpu.samples import SampledGroup
from manyhop.loading.iterator import Item
from manyhop.loading.pipeline import Groups, OnStream, RankBatch
from manyhop.loading.steps import Epoch
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged


class State:
    """A snapshot of the versions of a loader's tensors.

    Args:
        gpu: the GPU runtime of the loader.
        columns: the tensors.
    """

    __slots__ = ("_fits", "_gpu", "_placed", "_versions")

    def __init__(self, gpu: GPURuntime, columns: Columns) -> None:
        self._gpu, self._fits = gpu, columns.fits
        self._placed = gpu.columns(columns)
        self._versions = gpu.versions()

    def is_current(self) -> bool:
        """Return whether no tensor has been replaced or changed in place since. Fast: runs between training steps."""
        for tensor, version in self._versions:
            if tensor._version != version:
                return False
        return self._gpu.placed is self._placed and self._fits(self._placed)


class InFlightGroup(SampledGroup):
    """A group of batches whose sampling is in flight; used by one thread.

    Without ``rank_batches``, its batches must not be handed out.
    """

    @ranged("sample")
    def __init__(
        self,
        gpu: GPURuntime,
        adapter: Adapter[Any, Any],
        inputs: Sequence[Any],
        keys: Sequence[BatchKey],
        rank_batches: Sequence[RankBatch] | None = None,
    ) -> None:
        super().__init__(len(keys), collective=gpu.collective)
        self._gpu, self._streams, self._adapter, self._rank_batches = gpu, gpu.streams, adapter, rank_batches
        self._batches = [key.batch for key in keys]
        self._sample: Callable[[slice], Callable[[], list[Any]]] = lambda i: adapter.seeds.begin(
            gpu.sampling, inputs[i], keys[i]
        )
        start = self._streams.mark()
        self._finish = self._sample(slice(None))
        self._streams.took(1, "sample", self._batches[0], start, self._streams.mark())
        self._made: dict[int, OnStream[Any]] = {}
        self._state: State

    def is_ready(self, i: int) -> bool:
        """Return whether batch ``i`` was completed together with an earlier one."""
        return i in self._made

    def pop_ready(self, i: int) -> OnStream[Any]:
        """Return batch ``i`` of the group before transforms; its ``source`` is its state and this group."""
        made = self._made.pop(i, None)
        if made is None:
            self._make(i)
            made = self._made.pop(i)
        assert self._samples is not None
        if not self._collective:
            self._samples[i] = None
        return made

    def retake(self, batch: int) -> OnStream[Any]:
        """Return the batch of this number again after rows have changed; its sample is a pure function, and stays."""
        if not self._state.is_current():
            self._made.clear()
        return self.pop_ready(self._batches.index(batch))

    @ranged("assemble")
    def _make(self, i: int) -> None:
        """Complete batch ``i`` and some of the next ones at once, which costs less per batch."""
        streams, gpu, assembler = self._streams, self._gpu, self._adapter.assembler
        began = time.perf_counter()
        with streams.on_stream():
            samples = [self._sample_of(i)]
            assert self._samples is not None
            assert self._rank_batches is not None
            for sample in self._samples[i + 1 : i + gpu.joined_at_once(len(self) - i)]:
                if sample is None:
                    break
                samples.append(sample)
            self._state = State(gpu, self._adapter.columns)
            rank_batches = self._rank_batches[i : i + len(samples)]
            try:
                batches, nbytes = assembler.join(samples, rank_batches)
            except Exception:
                if len(samples) == 1:
                    raise
                del samples[1:]  # one of them raises: complete each alone
                batches, nbytes = assembler.join(samples, rank_batches[:1])
            timed = gpu.is_timed(rank_batches[0])
            ready = streams.mark(timed)
        together = gpu.tensors_of(self._adapter, batches)
        source = self._state, self
        self._made = {
            k: OnStream(batch, ready, timed and k == i, together, source) for k, batch in enumerate(batches, i)
        }
        share = nbytes // len(samples)  # the rows of several are gathered at once
        for rank_batch in rank_batches[1 : len(samples)]:
            rank_batch.contents["gathered_bytes"] = share
        rank_batches[0].contents["gathered_bytes"] = nbytes - share * (len(samples) - 1)
        gpu.learn_size(share)
        self._streams.stats.record(rank_batches[0].batch, "assemble", began, time.perf_counter())

    @ranged("sample")
    def _collect(self) -> list[Any]:
        start = self._streams.mark()
        samples = self._finish()
        self._streams.took(1, "sample", self._batches[0], start, self._streams.mark())
        if self._rank_batches is not None:
            self._count(self._rank_batches, samples)
        return samples

    def _sample_alone(self, i: int) -> Any:
        samples = self._sample(slice(i, i + 1))()
        if self._rank_batches is not None:
            self._count(self._rank_batches[i : i + 1], samples)
        return samples[0]

    def _count(self, rank_batches: Sequence[RankBatch], samples: Sequence[Any]) -> None:
        """Note what is in samples of batches of the group."""
        for rank_batch, sample in zip(rank_batches, samples, strict=True):
            rank_batch.contents.update(self._adapter.assembler.contents(sample))


def steps_on_gpu(
    adapter: Adapter[Any, Any], epoch: Epoch, gpu: GPURuntime
) -> tuple[Groups[Item, Any], Callable[[int, Any], Any]]:
    """Return the steps of threads, which sample groups and assemble batches, and the caller's, which hands one out."""
    stages = GPUStages(adapter, epoch, gpu)
    return stages.groups(), stages.hand_out


class GPUStages:
    """The stages of the batches of one epoch.

    Batches are sampled in groups, unless the user defines the sampler or the batches. Those of a group are assembled
    several at a time, by one gather, where no code of the user and no other rank comes in between.

    Args:
        adapter: adapter of the loader.
        epoch: names the batches.
        gpu: the loader's runtime.
    """

    def __init__(self, adapter: Adapter[Any, Any], epoch: Epoch, gpu: GPURuntime) -> None:
        assembler = adapter.assembler
        self._adapter, self._assembler, self._epoch, self._gpu = adapter, assembler, epoch, gpu
        self._streams, self._steps = gpu.streams, epoch.steps
        self._in_thread, self._hands_out = assembler.in_thread, assembler.hands_out
        self._transform = assembler.transform
        self._samples = gpu.sampling is not None and not assembler.makes_alone
        self._joins = self._samples and self._in_thread and self._steps is None and assembler.joins

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
        lookup, plan = self._gpu.lookup, self._epoch.plan
        if lookup is not None and plan is not None:
            return lookup.of(plan, self._epoch.number, [item[1] for _, item in batches])
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
        """Return one batch, or where the caller's thread assembles batches its rank's batch and sample."""
        rank_batch, index = item
        epoch, assembler = self._epoch, self._assembler
        with (
            self._streams.on_stream(),
            epoch.batch_context(batch, rank_batch, int(self._samples)),
            epoch.in_step(rank_batch),
        ):
            if group is None:
                value = assembler.make(epoch.to_index(index))
            else:
                value = group.take(i)
                if self._in_thread:
                    value = assembler.complete(value)
            value = value if self._in_thread else (rank_batch, value)
            return self._streams.hand_over(value, timed=self._gpu.is_timed(rank_batch))

    def hand_out(self, batch: int, made: OnStream[Any]) -> Any:
        """Return a batch to the caller, in its thread."""
        steps, streams = self._steps, self._streams
        if steps is not None and (failure := steps.failure) is not None and not streams.is_complete(made):
            raise failure  # the rows of this batch may never come
        if made.source is not None and not made.source[0].is_current():  # made ahead of time, and outdated by now
            made = made.source[1].retake(batch)
        if not self._in_thread:
            rank_batch = made.value[0]
            with streams.on_stream(), self._epoch.batch_context(batch, rank_batch, 1), self._epoch.in_step(rank_batch):
                out = self._assembler.complete(streams.adopt(made)[1])
                made = streams.hand_over(out, timed=made.timed)
        value = self._gpu.receive(made, self._tensors_of)
        return self._assembler.hand_out(value) if self._hands_out else value

    def _tensors_of(self, batch: Any) -> list[Tensor]:
        return self._gpu.tensors_of(self._adapter, [batch])


def _fail(error: Exception) -> Any:
    raise error
