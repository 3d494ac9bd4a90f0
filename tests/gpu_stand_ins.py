"""What stands for a GPU, its memory and its driver where there is none.

``patch(owner, name, value)`` is ``setattr``, or that of a ``monkeypatch``, which undoes it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
import torch
from tape import Tape

from manyhop.loading.gpu import steps
from manyhop.loading.pipeline import OnStream
from manyhop.sampling.seed_edges import sample_together

Patch: TypeAlias = Callable[[Any, str, Any], object]

CPU = torch.device("cpu")

MEMORY = SimpleNamespace(
    topology="device",
    placement=SimpleNamespace(features=(), summary=lambda: ""),
    take_cache_counts=lambda: (0, 0),
    placed=lambda name, value, watch: value,
    cached={},
    exchanges=False,
    cache_bytes=0,
    has_hot_rows=False,
    take_hot_rows=lambda: None,
)
"""What loaders decide on: all is in the memory of the GPU."""


class NoStreams:
    """Where there is no GPU, everything is in order by itself."""

    def __init__(self, device: torch.device, stats: Any, *, backlog: int) -> None:
        self.stats = stats

    def begin(self) -> None: ...
    def settle(self) -> None: ...
    def synchronize(self) -> None: ...
    def take_times(self) -> None: ...
    def forget_times(self) -> None: ...
    def mark(self, timed: bool = True) -> float:
        return 0.0

    def on_stream(self) -> Any:
        return contextlib.nullcontext()

    def took(self, *what: Any) -> None: ...

    def hand_over(self, value: Any, timed: bool = False) -> Any:
        return OnStream(value, None)  # type: ignore[arg-type]

    def is_complete(self, made: Any) -> bool:
        return True

    def lend(self, value: Any) -> Any:
        return OnStream(value, None)  # type: ignore[arg-type]

    def adopt(self, made: Any) -> Any:
        return made.value

    def receive(self, made: Any, tensors_of: Any, times: int) -> Any:
        return made.value


def stand_for_gpu(patch: Patch, *, memory: Any = MEMORY) -> None:
    """Let loaders of this process make batches of a "GPU" on the CPU; ``memory=None``: they decide on it themselves."""
    from manyhop.graph import placed
    from manyhop.loading.gpu import runtime

    patch(runtime, "Streams", NoStreams)
    patch(placed, "place_graph", lambda graph, *_: graph)
    if memory is not None:
        patch(runtime, "decide_memory", lambda *_, **__: memory)


def pyg_works_on(patch: Patch, device: torch.device | None) -> None:
    """Let PyG's loaders find that the process works on a device; ``None``: on the CPU."""
    import manyhop_pyg.loaders  # noqa: F401

    patch(sys.modules["manyhop_pyg.loaders.loader"], "find_device", lambda wanted, data: device)


class PendingEdges:
    """Samples around seed edges when it is finished, by the CPU's samplers of ``samplers``."""

    def __init__(self, samplers: Any, batches: Any) -> None:
        self._samplers, self._batches = [sampler._sampler for sampler in samplers], batches

    def finish(self) -> Any:
        return [sample_together(self._samplers, requests) for requests in self._batches]


class Positions:
    """Looks up on the host what a kernel would, which takes long where it is interpreted."""

    def __init__(self, device: torch.device) -> None: ...

    def __call__(self, plan: Any, epoch: int, batches: Any, tables: Any) -> Any:
        found = [torch.from_numpy(positions) for positions in plan.many_indices(epoch, batches)]
        index = torch.cat(found)
        return [index, *[table[index] for table in tables]], [len(positions) for positions in found]


@pytest.fixture
def gpu_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process sees a GPU, which it has not used so far."""
    monkeypatch.setattr("manyhop.ranks.cuda.in_reach", lambda: True)


@pytest.fixture
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Kernels, interpreted, take the place of torch's operators on a CPU, too, unless it is called with ``False``."""

    def switch(on: bool) -> None:
        monkeypatch.setattr("manyhop.system.triton_compiler.runs_on", lambda device: on or device.type == "cuda")

    switch(True)
    return switch


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted gathers read all sources over the bus, in the order of row numbers."""
    monkeypatch.setattr("manyhop.features.gather_gpu._is_near", lambda layout, device: False)
    monkeypatch.setattr("manyhop.memory.pinned.is_pinned", lambda source: True)


@pytest.fixture
def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted gathers leave all sources to the CPU."""
    monkeypatch.setattr("manyhop.features.gather_gpu._is_near", lambda layout, device: False)


@pytest.fixture
def host_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``host_memory(nbytes)``: so many bytes are free."""

    def limit(nbytes: int) -> None:
        monkeypatch.setattr("manyhop.system.memory._meminfo", lambda: nbytes)

    return limit


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edge lists of 100 edges or more are large: kernels group them, where and when they are read."""
    monkeypatch.setattr("manyhop.graph.columns.SMALL", 100)


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Captured steps are recorded on the CPU, too."""
    from manyhop_train.capture import step

    tape = Tape()
    monkeypatch.setattr("manyhop_train.capture.step.recorder_of", lambda device: tape)
    monkeypatch.setattr(step, "_NOT_THE_USERS", step._NOT_THE_USERS | {"tape"})
    return tape


class Driver:
    """Pins memory as CUDA does: whole pages, each once."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.pinned: dict[int, int] = {}
        self.flags: list[int] = []
        self.limit, self.writable = 1 << 40, True

    def cudaHostRegister(self, begin: int, size: int, flags: int) -> int:  # noqa: N802
        assert (begin % self.page, size % self.page, size > 0) == (0, 0, True)
        assert all(begin + size <= b or b + s <= begin for b, s in self.pinned.items())
        if size + sum(self.pinned.values()) > self.limit:
            return 2
        if not self.writable and not flags & 8:
            return 1
        self.pinned[begin] = size
        self.flags.append(flags)
        return 0

    def cudaHostUnregister(self, begin: int) -> int:  # noqa: N802
        del self.pinned[begin]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """CUDA as far as it pins memory."""
    from manyhop.memory import pinned

    if torch.cuda.is_available():
        pytest.skip("plays the part of CUDA")
    driver = Driver(pinned._PAGE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: False)
    monkeypatch.setattr(pinned, "registry", pinned.Registry())
    yield driver
    assert sum(driver.pinned.values()) == pinned.pinned_bytes()
    pinned.registry.forget()  # what is freed later has nothing to unpin


@pytest.fixture
def pinned_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``pinned_from(nbytes)``: memory of so many bytes is pinned in place."""

    def limit(nbytes: int) -> None:
        monkeypatch.setattr("manyhop.memory.pinned._PAGES_OF_ITS_OWN", nbytes)

    return limit


class NoSteps:
    """Exchanges of an epoch in which nothing is exchanged."""

    failure = None

    def gather(self, number: int, requests: Any, pool: Any) -> Any: ...
    def fail(self, number: int, error: Exception) -> None: ...


def exchange_nothing(patch: Patch, loader: Any) -> None:
    """Let a loader make its batches as where ranks exchange rows on GPUs: one by one."""

    def in_step(adapter: Any, epoch: Any, gpu: Any, really: Any = steps.GPUStages) -> Any:
        return really(adapter, epoch._replace(exchanges=NoSteps()), gpu)

    patch(steps, "GPUStages", in_step)
    patch(loader, "_exchanges", lambda: True)
    if loader._ranks is not None:
        begin = loader._ranks.begin
        patch(loader._ranks, "begin", lambda _, epoch, rounds: begin(None, epoch, rounds))
