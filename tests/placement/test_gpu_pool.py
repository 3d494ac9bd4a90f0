"""RMM and CuPy on torch's allocator: the calls they make; on a GPU, with RMM itself."""

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
import torch

import manyhop
from manyhop.errors import MissingExtraError
from manyhop.system.allocator import _TorchMemory


class Stream:
    """A stream of RMM."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


@pytest.fixture
def calls(monkeypatch):
    """What torch is asked, instead of a GPU."""
    calls = []

    class Waiting:
        def __init__(self, handle, device):
            self.handle = handle

        def wait_stream(self, other):
            calls.append(("wait", self.handle, other.handle))

    def alloc(nbytes, device, stream):
        calls.append(("alloc", nbytes, stream))
        return 4096 + len(calls)

    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", alloc)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", lambda block: calls.append(("free",)))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: Waiting(handle, device))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Waiting(0, device))
    return calls


@pytest.mark.parametrize(
    ("took", "gave", "expected"),
    [
        (77, 77, [("alloc", 10, 77), ("free",)]),
        (0, 1, [("alloc", 10, 0), ("free",)]),  # two names of the default stream
        (77, 88, [("alloc", 10, 77), ("wait", 77, 88), ("free",)]),
        (77, 0, [("alloc", 10, 77), ("wait", 77, 0), ("free",)]),
        # All threads call their own stream 2.
        (2, 2, [("alloc", 10, 0), ("wait", 2, 0), ("wait", 0, 2), ("free",)]),
    ],
)
def test_a_block_is_free_when_its_last_stream_is_done(calls, took, gave, expected):
    memory = _TorchMemory(0)
    block = memory.allocate(10, Stream(took))
    memory.deallocate(block, 10, Stream(gave))
    assert calls == expected
    assert memory._stream_of == {}


def test_too_much_is_an_error_that_rmm_knows(monkeypatch):
    def alloc(nbytes, device, stream):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", alloc)
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        _TorchMemory(0).allocate(10, Stream(0))


def test_without_rmm(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'rmm'.*\[cu13\]"):
        manyhop.use_torch_memory()


def test_rmm_and_cupy_take_the_pool(monkeypatch):
    calls = []
    modules = {name: types.ModuleType(name) for name in ("rmm", "rmm.allocators", "rmm.allocators.cupy", "cupy")}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    modules["rmm"].mr = types.SimpleNamespace(
        CallbackMemoryResource=lambda allocate, deallocate: (allocate.__name__, deallocate.__name__),
        set_per_device_resource=lambda device, resource: calls.append((device, resource)),
    )
    modules["rmm.allocators.cupy"].rmm_cupy_allocator = "rmm"
    modules["cupy"].cuda = types.SimpleNamespace(set_allocator=calls.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    manyhop.use_torch_memory()
    assert calls == [(3, ("allocate", "deallocate")), "rmm"]


@pytest.mark.gpu
def test_torch_counts_what_rmm_takes():
    rmm = pytest.importorskip("rmm")
    before = rmm.mr.get_current_device_resource()
    manyhop.use_torch_memory()
    try:
        taken = torch.cuda.memory_allocated()
        buffer = rmm.DeviceBuffer(size=1 << 20)
        assert torch.cuda.memory_allocated() == taken + (1 << 20)
        del buffer
        assert torch.cuda.memory_allocated() == taken
    finally:
        rmm.mr.set_current_device_resource(before)


def test_blocks_of_no_bytes(calls, monkeypatch):
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", lambda nbytes, device, stream: 0)
    memory = _TorchMemory(0)
    blocks = [memory.allocate(0, Stream(77)) for _ in range(2)]
    for block in blocks:
        memory.deallocate(block, 0, Stream(88))
    assert calls == []
