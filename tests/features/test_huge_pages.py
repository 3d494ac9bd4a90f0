"""Tensors of torch in huge pages: in place, only memory that is the process's alone, and only where it is wanted."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features.huge_pages import collapse
from manyhop.memory.segments import HUGE

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SIZE = 4 * HUGE


@pytest.fixture(autouse=True)
def _no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MANYHOP_HUGE_PAGES", raising=False)


def _huge_bytes(tensor: Tensor, field: str = "AnonHugePages:") -> int:
    """Return the bytes in huge pages of the mapping that holds the middle of a tensor."""
    address, inside = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            begin, end = (int(word, 16) for word in words[0].split("-"))
            inside = begin <= address < end
        elif inside and words[0] == field:
            return int(words[1]) << 10
    raise AssertionError("no mapping")


def _needs_huge_pages() -> None:
    if not _ENABLED.exists() or "[madvise]" not in _ENABLED.read_text():
        pytest.skip("needs a system that uses huge pages where they are asked for")


def test_a_tensor_is_put_into_huge_pages_in_place() -> None:
    _needs_huge_pages()
    x = torch.arange(_SIZE // 8)
    address, expected = x.data_ptr(), x.clone()
    thread = collapse([x, "no tensor"])
    assert thread is not None
    thread.join()
    assert x.data_ptr() == address
    assert torch.equal(x, expected)
    if _huge_bytes(x) == 0:
        pytest.skip("the kernel is older than 6.1, or has no huge pages free")


def test_a_tensor_lives_no_longer_than_the_thread_needs_it() -> None:
    _needs_huge_pages()
    x = torch.zeros(_SIZE // 8, dtype=torch.int64)
    alive = weakref.ref(x)
    thread = collapse([x])
    del x  # the thread holds it
    assert thread is not None
    thread.join()
    assert alive() is None


@pytest.mark.parametrize("kind", ["file", "shared"])
def test_memory_of_others_is_left_alone(kind: str, tmp_path: Path) -> None:
    if kind == "file":
        np.zeros(_SIZE, np.uint8).tofile(tmp_path / "x")
        x = torch.from_numpy(np.memmap(tmp_path / "x", np.uint8, "c"))
    else:
        x = torch.zeros(_SIZE, dtype=torch.uint8).share_memory_()
    thread = collapse([x])
    if thread is not None:
        thread.join()
    huge = sum(_huge_bytes(x, field) for field in ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"))
    assert huge == 0
    assert not x.any()


def test_small_and_strided_tensors_are_left_alone() -> None:
    assert collapse([torch.zeros(HUGE // 8), torch.zeros(4 * HUGE, 2)[:, 0], np.zeros(_SIZE)]) is None


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(_SIZE)
    monkeypatch.setenv("MANYHOP_HUGE_PAGES", "0")
    assert collapse([x]) is None
    monkeypatch.setenv("MANYHOP_HUGE_PAGES", "no")
    with pytest.raises(InputError, match=r"Expected MANYHOP_HUGE_PAGES to be 0 or 1, got 'no'"):
        collapse([x])
