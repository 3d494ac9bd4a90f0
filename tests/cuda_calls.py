"""Counts the calls of CUDA that batches and replays of steps would take on a GPU, on a CPU (``host_part.py``)."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gpu_stand_ins
import host_part
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from manyhop.pipeline import streams
from manyhop.pipeline.gpu import pad
from manyhop.sampling.gpu.launch.workspace import Workspace

_VIEWS = ("split", "slice", "view", "detach", "alias", "select", "unbind", "strided", "expand")


class CUDACalls:
    """The numbers of calls: ``launches`` of kernels, graphs and copies, ``allocations``, calls of ``events``."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def check(self, batches: Iterable[Any], use: Callable[[Any], object] | None = None, **most: float) -> None:
        """Check how many calls of each kind a batch takes at most, with what ``use`` does with it."""
        self.counts.clear()
        number = 0
        with _Operators(self.counts):
            for batch in batches:
                number += 1
                if use is not None:
                    use(batch)
        found = {kind: self.counts[kind] / number for kind in most}
        assert all(found[kind] <= count for kind, count in most.items()), found

    def event(self) -> None:
        self.counts["events"] += 1


class _Operators(TorchDispatchMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        if name.startswith(("empty", "new_empty")):
            self._counts["allocations"] += 1
        elif not any(view in name for view in _VIEWS):
            self._counts["launches"] += 1
            self._counts["allocations"] += not name.partition(".")[0].endswith("_")
        return func(*args, **(kwargs or {}))


class _Stream:
    stream_id = device_index = device_type = cuda_stream = 0
    wait_event: Callable[..., None]


@contextlib.contextmanager
def counting_cuda() -> Iterator[CUDACalls]:
    """Count what the loaders of ``host_part.py`` do that are made, and used, inside the context."""
    calls, stream = CUDACalls(), _Stream()

    class Event:
        def __init__(self, **options: Any) -> None:
            calls.event()

        record = synchronize = lambda self, *_: calls.event()

        def query(self) -> bool:
            calls.event()
            return True

        def elapsed_time(self, other: "Event") -> float:
            calls.event()
            return 0.0

    def counted(function: Callable[..., Any], **times: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.counts.update(times)
            with _disable_current_modes():
                return function(*args, **kwargs)

        return call

    class Streams(streams.Streams):
        _current = lambda self: stream  # noqa: E731

        def _stream(self) -> Any:
            return stream

    stream.wait_event = lambda event: calls.event()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in (
            (gpu_stand_ins, "NoStreams", Streams),
            (streams, "Event", Event),
            (streams, "_record", lambda tensor, stream: calls.event()),
            (torch.cuda, "current_stream", lambda device=None: stream),
            (torch.cuda, "synchronize", lambda device=None: None),
            (torch._C, "_cuda_getDevice", lambda: 0),
            (torch._C, "_cuda_getCurrentStream", lambda device: (0, 0, 0)),
            (torch._C, "_cuda_setStream", lambda *key: None),
            (host_part.NoKernel, "__call__", counted(lambda *_: None, launches=1)),
            (host_part, "positions", counted(host_part.positions, launches=1, allocations=1)),
            (host_part, "wait", counted(host_part.wait, events=1)),
            (pad, "host_table", counted(pad.host_table, launches=1, allocations=2)),  # on the host, on the GPU
            (Workspace, "launch", counted(Workspace.launch, launches=1, events=1)),
            (Workspace, "finish", counted(Workspace.finish, launches=1)),
        ):
            patch.setattr(owner, name, value, raising=False)
        patch.setattr("manyhop.pipeline.gpu.pad_launched.host_table", pad.host_table)
        yield calls
