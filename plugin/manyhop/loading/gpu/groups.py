"""Groups of batches in flight on a GPU: sampled by one launch, completed several at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from manyhop.loading.adapter import Adapter
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.loading.gpu.samples import SampledGroup
from manyhop.loading.gpu.state import State
from manyhop.loading.pipeline import OnStream, Turn
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged


class InFlightGroup(SampledGroup):
    """A group of batches whose sampling is in flight; used by one thread.

    Without ``turns``, its batches must not be handed out.
    """

    @ranged("sample")
    def __init__(
        self,
        gpu: GPURuntime,
        adapter: Adapter[Any, Any],
        inputs: Sequence[Any],
        keys: Sequence[BatchKey],
        turns: Sequence[Turn] | None = None,
    ) -> None:
        super().__init__(len(keys), collective=gpu.collective)
        self._gpu, self._streams, self._adapter, self._turns = gpu, gpu.streams, adapter, turns
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
            assert self._turns is not None
            for sample in self._samples[i + 1 : i + gpu.joined_at_once(len(self) - i)]:
                if sample is None:
                    break
                samples.append(sample)
            self._state = State(gpu, self._adapter.columns)
            turns = self._turns[i : i + len(samples)]
            try:
                batches, nbytes = assembler.join(samples, turns)
            except Exception:
                if len(samples) == 1:
                    raise
                del samples[1:]  # one of them raises: complete each alone
                batches, nbytes = assembler.join(samples, turns[:1])
            timed = gpu.is_timed(turns[0])
            ready = streams.mark(timed)
        together = gpu.tensors_of(self._adapter, batches)
        source = self._state, self
        self._made = {
            k: OnStream(batch, ready, timed and k == i, together, source) for k, batch in enumerate(batches, i)
        }
        share = nbytes // len(samples)  # the rows of several are gathered at once
        for turn in turns[1 : len(samples)]:
            turn.contents["gathered_bytes"] = share
        turns[0].contents["gathered_bytes"] = nbytes - share * (len(samples) - 1)
        gpu.learn_size(share)
        self._streams.stats.record(turns[0].batch, "assemble", began, time.perf_counter())

    @ranged("sample")
    def _collect(self) -> list[Any]:
        start = self._streams.mark()
        samples = self._finish()
        self._streams.took(1, "sample", self._batches[0], start, self._streams.mark())
        if self._turns is not None:
            self._count(self._turns, samples)
        return samples

    def _sample_alone(self, i: int) -> Any:
        samples = self._sample(slice(i, i + 1))()
        if self._turns is not None:
            self._count(self._turns[i : i + 1], samples)
        return samples[0]

    def _count(self, turns: Sequence[Turn], samples: Sequence[Any]) -> None:
        """Note what is in samples of batches of the group."""
        for turn, sample in zip(turns, samples, strict=True):
            turn.contents.update(self._adapter.assembler.contents(sample))
