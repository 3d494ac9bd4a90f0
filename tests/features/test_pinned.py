"""Which memory is pinned, and until when; CUDA itself is played by a recorder."""

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from manyhop.errors import CapacityError, InputError
from manyhop.features import is_pinned, pin, pinned_bytes, unpin
from manyhop.memory import pinned

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="plays the part of CUDA")

PAGE = pinned._PAGE


class FakeCuda:
    """Pins like CUDA: whole pages, each once."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.flags: list[int] = []
        self.limit, self.writable = 1 << 40, True

    def cudaHostRegister(self, begin: int, size: int, flags: int) -> int:  # noqa: N802
        assert (begin % PAGE, size % PAGE, size > 0) == (0, 0, True)
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
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    monkeypatch.setattr(pinned, "_registry", pinned._Registry())
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: False)
    yield fake
    assert sum(fake.pinned.values()) == pinned_bytes()


def test_a_tensor_stays_pinned_as_long_as_its_memory(cuda: FakeCuda) -> None:
    source = torch.zeros(5 * PAGE, dtype=torch.uint8)
    assert not is_pinned(source)
    for _ in range(3):
        pin(source)
    assert is_pinned(source)
    assert is_pinned(source[7:9])
    assert is_pinned(source.numpy())
    assert len(cuda.pinned) == 1
    view = source.view(5, PAGE)[1:]
    del source
    gc.collect()
    assert is_pinned(view)
    del view
    gc.collect()
    assert not cuda.pinned


def test_pinned_until_unpinned(cuda: FakeCuda) -> None:
    source = np.zeros(3 * PAGE, np.uint8)
    generation = pinned.generation()
    pin(source)
    assert pinned.generation() != generation
    generation = pinned.generation()
    unpin(source)
    unpin(source)
    assert (cuda.pinned, is_pinned(source)) == ({}, False)
    assert pinned.generation() != generation
    pin(source)
    assert is_pinned(source)


def test_tensors_share_pages(cuda: FakeCuda) -> None:
    memory = torch.zeros(40 * PAGE, dtype=torch.uint8)
    begin = -memory.data_ptr() % PAGE
    parts = [memory[begin + int(a * PAGE) : begin + int(b * PAGE)] for a, b in ((1, 3.5), (3, 6), (8, 9), (0.5, 20))]
    for part in parts:
        pin(part)
    assert all(map(is_pinned, parts))
    assert pinned_bytes() == 20 * PAGE
    assert not is_pinned(memory)
    for k, part in enumerate(parts):
        unpin(part)
        assert all(map(is_pinned, parts[k + 1 :]))
    assert not cuda.pinned


def test_views_with_gaps_and_backwards(cuda: FakeCuda) -> None:
    source = np.zeros((100, PAGE), np.uint8)
    pin(source[50:20:-2, :10])
    assert is_pinned(source[22:50])
    assert not is_pinned(source[10:51])
    pin(torch.empty(0))
    pin(np.empty((3, 0)))
    assert is_pinned(torch.empty(0))


def test_files_are_pinned_for_reading_where_writing_is_not_allowed(cuda: FakeCuda, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1000))
    pin(anonymous := np.zeros(PAGE))
    cuda.writable = False
    for mode in ("r", "c", "r+"):
        source = np.load(tmp_path / "x.npy", mmap_mode=mode)
        pin(source)
        assert is_pinned(source)
    assert [flags & 8 for flags in cuda.flags] == [0, 8, 8, 8]
    del source
    gc.collect()
    assert list(cuda.pinned) == [anonymous.ctypes.data // PAGE * PAGE]


def test_too_much_is_refused_and_nothing_stays(cuda: FakeCuda) -> None:
    source = torch.zeros(20 * PAGE, dtype=torch.uint8)
    pin(source[9 * PAGE : 10 * PAGE])
    before, cuda.limit = dict(cuda.pinned), 12 * PAGE
    with pytest.raises(CapacityError, match="CUDA error 2 from cudaHostRegister"):
        pin(source)
    assert cuda.pinned == before
    assert not is_pinned(source)


def test_what_cannot_be_pinned(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="got a list"):
        pin([1])
    with pytest.raises(InputError, match=r"in CPU memory to pin, got .* on meta"):
        pin(torch.empty(3, device="meta"))
    with pytest.raises(InputError, match="dense tensor"):
        pin(torch.eye(3).to_sparse())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="Expected a CUDA device"):
        pin(torch.zeros(3))


def test_small_tensors_in_one_page_are_pinned_each_for_itself(cuda: FakeCuda) -> None:
    memory = torch.zeros(3 * PAGE, dtype=torch.uint8)
    begin = -memory.data_ptr() % PAGE
    one, other = memory[begin : begin + 100], memory[begin + 200 : begin + 300]
    pin(one)
    pin(other)
    pin(other)
    unpin(one)
    assert is_pinned(other)
    unpin(other)
    assert not cuda.pinned


def test_a_forked_child_pins_for_itself(cuda: FakeCuda) -> None:
    source = torch.zeros(3 * PAGE, dtype=torch.uint8)
    pin(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads
        child = os.fork()
    if child == 0:
        try:
            cuda.pinned.clear()  # CUDA starts anew
            fine = not is_pinned(source) and pinned_bytes() == 0
            pin(source)
            fine &= is_pinned(source) and len(cuda.pinned) == 1
            unpin(source)
            os._exit(0 if fine and not cuda.pinned else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_pinned(source)
