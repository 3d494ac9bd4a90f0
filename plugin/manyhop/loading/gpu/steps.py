"""The stages of an epoch's batches on a GPU: sample a group, assemble its batches, hand each one out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from manyhop.loading.adapter import Adapter, Columns
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.loading.iterator import Epoch, Item
from manyhop.loading.pipeline import Groups, OnStream, RankBatch
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged


class RowVersions:
    """Versions of a loader's tensors when their rows were gathered."""

    __slots__ = ("_fits", "_gpu", "_placed", "_versions")

    def __init__(self, gpu: GPURuntime, columns: Columns) -> None:
        self._gpu, self._fits = gpu, columns.fits
        self._placed = gpu.columns(columns)
        self._versions = gpu.versions()

    def are_current(self) -> bool:
        """Return whether no tensor has been replaced or changed in place since. Fast: runs between training steps."""
        for tensor, version in self._versions:
            if tensor._version != version:
                return False
        return self._gpu.placed is self._placed and self._fits(self._placed)


class SampledGroup:
    """A group of batches: sampled by one launch, assembled some at a time. Used by one thread.

    If a launch or a gather for multiple batches fails, it is repeated for each batch, so that only the faulty one
    raises an error. If all ranks sample together, no batch is sampled again without the other ranks.

    Without ``rank_batches``, batches are not returned to the caller.
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
        self._gpu, self._streams, self._adapter = gpu, gpu.streams, adapter
        self._inputs, self._keys, self._rank_batches = inputs, keys, rank_batches
        start = self._streams.mark()
        self._finish = adapter.seeds.begin(gpu.sampling, inputs, keys)
        self._streams.took(1, "sample", keys[0].batch, start, self._streams.mark())
        self._samples: list[Any] | None = None
        self._assembled: dict[int, OnStream[Any]] = {}
        self._versions: RowVersions

    def __len__(self) -> int:
        return len(self._keys)

    def take_sample(self, i: int) -> Any:
        """Remove the sample of batch ``i`` from the group and return it."""
        sample = self._sample(i)
        self._forget_sample(i)
        return sample

    def is_assembled(self, i: int) -> bool:
        """Return whether batch ``i`` was assembled together with an earlier one."""
        return i in self._assembled

    def take_batch(self, i: int) -> OnStream[Any]:
        """Return batch ``i`` before transforms; its ``source`` is the versions of its rows and this group."""
        made = self._assembled.pop(i, None)
        if made is None:
            self._assemble(i)
            made = self._assembled.pop(i)
        self._forget_sample(i)
        return made

    def assemble_again(self, batch: int) -> OnStream[Any]:
        """Return the batch of this number with its current rows; its sample is unchanged."""
        if not self._versions.are_current():
            self._assembled.clear()
        return self.take_batch(next(i for i, key in enumerate(self._keys) if key.batch == batch))

    @ranged("assemble")
    def _assemble(self, i: int) -> None:
        """Assemble batch ``i`` and some of the next ones at once, which costs less per batch."""
        streams, gpu, assembler = self._streams, self._gpu, self._adapter.assembler
        began = time.perf_counter()
        with streams.on_stream():
            samples = [self._sample(i)]
            assert self._samples is not None
            assert self._rank_batches is not None
            for sample in self._samples[i + 1 : i + gpu.joined_at_once(len(self) - i)]:
                if sample is None:
                    break
                samples.append(sample)
            self._versions = RowVersions(gpu, self._adapter.columns)
            rank_batches = self._rank_batches[i : i + len(samples)]
            try:
                batches, nbytes = assembler.assemble_group(samples, rank_batches)
            except Exception:
                if len(samples) == 1:
                    raise
                del samples[1:]  # one of them raises: assemble each alone
                batches, nbytes = assembler.assemble_group(samples, rank_batches[:1])
            timed = gpu.is_timed(rank_batches[0])
            ready = streams.mark(timed)
        together = gpu.tensors_of(self._adapter, batches)
        source = self._versions, self
        self._assembled = {
            k: OnStream(batch, ready, timed and k == i, together, source) for k, batch in enumerate(batches, i)
        }
        share = nbytes // len(samples)  # the rows of several are gathered at once
        for rank_batch in rank_batches[1 : len(samples)]:
            rank_batch.contents["gathered_bytes"] = share
        rank_batches[0].contents["gathered_bytes"] = nbytes - share * (len(samples) - 1)
        gpu.learn_size(share)
        self._streams.stats.record(rank_batches[0].batch, "assemble", began, time.perf_counter())

    def _sample(self, i: int) -> Any:
        """Return the sample of batch ``i``. The first call waits for the launch."""
        if self._samples is None:
            self._samples = self._sample_all()
        if self._samples[i] is None:  # a batch of the group is faulty
            one = slice(i, i + 1)
            (self._samples[i],) = self._adapter.seeds.begin(self._gpu.sampling, self._inputs[one], self._keys[one])()
            self._count(i, self._samples[i])
        return self._samples[i]

    def _sample_all(self) -> list[Any]:
        """Wait for the launch and return all samples; each is ``None`` if one of the batches is faulty."""
        try:
            return self._finish_launch()
        except Exception:
            if len(self) == 1 or self._gpu.collective:
                raise
            return [None] * len(self)

    @ranged("sample")
    def _finish_launch(self) -> list[Any]:
        start = self._streams.mark()
        samples = self._finish()
        self._streams.took(1, "sample", self._keys[0].batch, start, self._streams.mark())
        for i, sample in enumerate(samples):
            self._count(i, sample)
        return samples

    def _forget_sample(self, i: int) -> None:
        if not self._gpu.collective:
            assert self._samples is not None
            self._samples[i] = None

    def _count(self, i: int, sample: Any) -> None:
        if self._rank_batches is not None:
            self._rank_batches[i].contents.update(self._adapter.assembler.contents(sample))


class GPUStages:
    """The stages of the batches of one epoch.

    Batches are sampled in groups, unless the user defines the sampler or the batches. Batches of a group are gathered
    some at a time, if no user code and no other rank is involved in between.
    """

    def __init__(self, adapter: Adapter[Any, Any], epoch: Epoch, gpu: GPURuntime) -> None:
        assembler = adapter.assembler
        self._adapter, self._assembler, self._epoch, self._gpu = adapter, assembler, epoch, gpu
        self._streams, self._exchanges = gpu.streams, epoch.exchanges
        self._in_thread, self._hands_out = assembler.in_thread, assembler.hands_out
        self._transform = assembler.transform
        self._in_groups = gpu.sampling is not None and not assembler.samples_alone
        alone = not self._in_thread or self._exchanges is not None or not assembler.gathers_groups
        self._together = self._in_groups and not alone

    def groups(self) -> Groups[Item, Any]:
        """Return the groups for a :class:`Pipeline`."""
        size = self._gpu.group_size if self._in_groups else 1
        if self._together and self._transform is None:
            return Groups(self._sample, size, in_a_row=partial(self._gpu.joined_at_once, size))
        return Groups(self._sample, size)

    def _sample(self, batches: Sequence[tuple[int, Item]]) -> list[Callable[[], Any]]:
        """Begin to sample a group of batches; return a function for each, which assembles it."""
        if not self._in_groups:
            return [partial(self._assemble_alone, None, i, *one) for i, one in enumerate(batches)]
        keys = [BatchKey(self._epoch.seed, self._epoch.number, batch) for batch, _ in batches]
        with self._streams.on_stream():
            inputs = self._inputs(batches)
            try:
                group = SampledGroup(self._gpu, self._adapter, inputs, keys, [item[0] for _, item in batches])
            except Exception as error:
                if not self._gpu.collective:
                    raise
                return [partial(_fail, [error]) for _ in batches]  # no batch begins again, without the other ranks
        assemble = self._assemble_together if self._together else self._assemble_alone
        return [partial(assemble, group, i, *one) for i, one in enumerate(batches)]

    def _inputs(self, batches: Sequence[tuple[int, Item]]) -> Sequence[Any]:
        lookup, plan = self._gpu.lookup, self._epoch.plan
        if lookup is not None and plan is not None:
            return lookup.of(plan, self._epoch.number, [item[1] for _, item in batches])
        return self._adapter.seeds.inputs([self._epoch.to_index(item[1]) for _, item in batches])

    def _assemble_together(self, group: SampledGroup, i: int, batch: int, item: Item) -> OnStream[Any]:
        """Return batch ``i`` of a group, which is assembled together with the next ones, transformed."""
        if self._transform is None and group.is_assembled(i):  # the fast path
            return group.take_batch(i)
        with self._epoch.batch_context(batch, item[0], 1):
            made = group.take_batch(i)
            if self._transform is None:
                return made
            if not made.source[0].are_current():
                made = group.assemble_again(batch)
            with self._streams.on_stream():
                return self._streams.hand_over(self._transform(made.value), timed=made.timed)

    @ranged("assemble")
    def _assemble_alone(self, group: SampledGroup | None, i: int, batch: int, item: Item) -> OnStream[Any]:
        """Return one batch; if the caller's thread assembles batches, its ``RankBatch`` and sample."""
        rank_batch, index = item
        epoch, assembler = self._epoch, self._assembler
        context = epoch.batch_context(batch, rank_batch, int(self._in_groups))
        with self._streams.on_stream(), context:
            if group is None:
                value = assembler.collate(epoch.to_index(index))
            else:
                value = group.take_sample(i)
                if self._in_thread:
                    value = assembler.assemble(value)
            value = value if self._in_thread else (rank_batch, value)
            return self._streams.hand_over(value, timed=self._gpu.is_timed(rank_batch))

    def hand_out(self, batch: int, made: OnStream[Any]) -> Any:
        """Return a batch to the caller, in its thread."""
        exchanges, streams = self._exchanges, self._streams
        if exchanges is not None and exchanges.failure is not None and not streams.is_complete(made):
            raise exchanges.failure  # the rows of this batch may never arrive
        if made.source is not None and not made.source[0].are_current():  # made in advance, and outdated by now
            made = made.source[1].assemble_again(batch)
        if not self._in_thread:
            rank_batch = made.value[0]
            context = self._epoch.batch_context(batch, rank_batch, 1)
            with streams.on_stream(), context:
                out = self._assembler.assemble(streams.adopt(made)[1])
                made = streams.hand_over(out, timed=made.timed)
        value = self._gpu.receive(made, self._tensors_of)
        return self._assembler.hand_out(value) if self._hands_out else value

    def _tensors_of(self, batch: Any) -> list[Tensor]:
        return self._gpu.tensors_of(self._adapter, [batch])


def _fail(error: list[Exception]) -> Any:
    """Raise the only error in a list, and remove it: its traceback refers to this frame."""
    raise error.pop()
