"""Groups of batches on their way through a GPU: sampled by one launch, completed some at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.pipeline import OnStream, Turn
from manyhop.sampling import BatchKey
from manyhop_pyg._gpu_sampling import Finish
from manyhop_pyg._gpu_state import State
from manyhop_pyg._join import join_all

if TYPE_CHECKING:
    from manyhop_pyg._on_gpu import OnGPU


class Begun:
    """A group of batches whose sampling is under way; used by one thread."""

    def __init__(
        self,
        gpu: OnGPU,
        loader: Any,
        inputs: Sequence[Any],
        keys: Sequence[BatchKey],
        turns: Sequence[Turn] | None,
    ) -> None:
        self._gpu, self._streams, self._turns = gpu, gpu.streams, turns
        self._batches = [key.batch for key in keys]
        self._sample: Callable[[slice], Finish] = lambda i: loader._begin_on_gpu(gpu.sampling, inputs[i], keys[i])
        start = self._streams.mark()
        self._finish = self._sample(slice(None))
        self._streams.took(1, "sample", self._batches[0], start, self._streams.mark())
        self._outs: list[Any] | None = None
        self._made: dict[int, OnStream[Any]] = {}
        self._state: State
        self._counted = 0

    def __len__(self) -> int:
        return len(self._batches)

    def take(self, i: int) -> Any:
        """The sample of batch ``i`` of the group."""
        out = self._out(i)
        assert self._outs is not None
        self._outs[i] = None
        return out

    def _out(self, i: int) -> Any:
        if self._outs is None:
            self._outs = self._all()
        if self._outs[i] is None:  # one of the group is at fault
            self._outs[i] = self._sample(slice(i, i + 1))()[0]
        return self._outs[i]

    def has_made(self, i: int) -> bool:
        """Whether batch ``i`` was made with one before."""
        return i in self._made

    def take_made(self, loader: Any, i: int) -> OnStream[Any]:
        """Batch ``i`` of the group, but for ``transform``: with the features that the data has now."""
        made = self._made.pop(i, None)
        if made is None or not self._state.holds():
            self._make(loader, i)
            made = self._made.pop(i)
        assert self._outs is not None
        self._outs[i] = None
        return made

    def take_again(self, loader: Any, batch: int) -> OnStream[Any]:
        """The batch of this number once more, since rows are not what they were: of a pure function's sample."""
        return self.take_made(loader, self._batches.index(batch))

    def _make(self, loader: Any, i: int) -> None:
        """Make batch ``i`` and some of the next ones: all that is done several times at once costs less."""
        streams, gpu = self._streams, self._gpu
        began = time.perf_counter()
        with streams.here():
            outs = [self._out(i)]
            assert self._outs is not None
            assert self._turns is not None
            for out in self._outs[i + 1 : i + gpu.joined_at_once()]:
                if out is None:
                    break
                outs.append(out)
            self._state = State(gpu, loader.data)
            turns = self._turns[i : i + len(outs)]
            try:
                batches, outs, nbytes = _joined(loader, outs, turns)
            except Exception:
                if len(outs) == 1:
                    raise
                batches, outs, nbytes = _joined(loader, outs[:1], turns[:1])  # one is at fault: each by itself
            timed = gpu.is_timed(turns[0])
            ready = streams.mark(timed)
        together, source = gpu.tensors_of(batches), (self._state, self)
        self._made = {
            k: OnStream(batch, ready, timed and k == i, together, source) for k, batch in enumerate(batches, i)
        }
        loader._count(*outs[max(0, self._counted - i) :])
        self._counted = max(self._counted, i + len(outs))
        gpu.learn_size(nbytes // len(outs))
        loader._stats.count(gathered_bytes=nbytes)
        loader._stats.record(turns[0].batch, "assemble", began, time.perf_counter())

    def _all(self) -> list[Any]:
        start = self._streams.mark()
        try:
            outs: list[Any] = self._finish()
        except Exception:
            if len(self._batches) == 1:
                raise
            return [None] * len(self._batches)  # one of them is at fault: each is made by itself
        self._streams.took(1, "sample", self._batches[0], start, self._streams.mark())
        return outs


def _joined(loader: Any, outs: list[Any], turns: Sequence[Turn]) -> tuple[list[Any], list[Any], int]:
    """Batches with all attributes, their samples, and the bytes of their features."""
    batches, outs, nbytes = join_all(loader, outs, [])
    marks: list[Tensor | None] = [None] * len(outs)
    if loader.distributed and len(outs) > 1:  # one kernel for all; unsafe: changes of one do not count as those of all
        sizes = [out.metadata[0].numel() for out in outs]
        together = torch.zeros(sum(sizes), dtype=torch.bool, device=outs[0].metadata[0].device)
        marks = list(together.unsafe_split_with_sizes(sizes))
    for batch, out, turn, mark in zip(batches, outs, turns, marks, strict=True):
        loader._dress(batch, out, turn, mark)
    return batches, outs, nbytes
