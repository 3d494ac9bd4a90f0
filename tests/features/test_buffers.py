"""Recycled memory: used again when nobody sees it any more, never before."""

import copy
import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import dlpack

from manyhop.errors import InputError
from manyhop.features import BufferPool

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.uint16,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip
SHAPE = (1000, 128)


def taken_again(pool: BufferPool, address: int) -> bool:
    """Whether the pool hands out the memory at an address, as all requests of this file are equally large."""
    held = [pool.empty(SHAPE, torch.float32) for _ in range(4)]
    return any(t.data_ptr() == address for t in held)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 0, 3), (70_000,), (1000, 37), (20, 30, 40, 5), (1 << 20, 1)])
def test_tensors_are_ordinary(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    pool = BufferPool()
    for _ in range(2):  # fresh and used memory
        t = pool.empty(shape, dtype)
        assert (t.dtype, tuple(t.shape), t.device.type) == (dtype, shape, "cpu")
        assert t.is_contiguous()
        assert not t._is_view()
        assert t.storage_offset() == 0
        assert t.untyped_storage().nbytes() == t.numel() * t.element_size()
        if t.numel() * t.element_size() >= 1 << 16:
            assert t.data_ptr() % 64 == 0
        t.copy_(torch.ones(shape).to(dtype))
        assert (t.to(torch.complex64 if dtype.is_complex else torch.float32) == 1).all()
        del t


def test_memory_is_used_again() -> None:
    pool = BufferPool()
    t = pool.empty(SHAPE, torch.float32)
    address = t.data_ptr()
    assert pool.idle_bytes == 0
    del t
    assert 512_000 <= pool.idle_bytes <= 512_000 * 9 / 8
    t = pool.empty((500, 256), torch.int32)
    assert t.data_ptr() == address
    assert pool.idle_bytes == 0


def test_memory_is_used_for_slightly_smaller_requests_but_not_for_small_ones() -> None:
    pool = BufferPool()
    pool.empty((1000, 1000), torch.uint8)
    small = pool.empty((500, 1000), torch.uint8)
    assert pool.idle_bytes > 0
    similar = pool.empty((900, 1000), torch.uint8)
    assert pool.idle_bytes == 0
    assert small.data_ptr() != similar.data_ptr()


ALIASES: dict[str, Callable[[Tensor], Any]] = {
    "the tensor": lambda t: t,
    "row slice": lambda t: t[3:5],
    "element": lambda t: t[999, 127],
    "transposed": lambda t: t.t(),
    "other dtype": lambda t: t.view(torch.int32),
    "detached": lambda t: t.detach(),
    "storage": lambda t: t.untyped_storage(),
    "numpy": lambda t: t.numpy(),
    "part of numpy": lambda t: t.numpy()[5:, ::2],
    "numpy's memoryview": lambda t: memoryview(t.numpy()),
    "tensor of numpy": lambda t: torch.from_numpy(t.numpy()[2:]),
    "dlpack": dlpack.to_dlpack,
    "tensor of dlpack": lambda t: torch.from_dlpack(t),
    "numpy of dlpack": lambda t: np.from_dlpack(t),
    "parameter": lambda t: torch.nn.Parameter(t),
    "set_": lambda t: torch.empty(0).set_(t),
    "saved for backward": lambda t: t * torch.ones(128, requires_grad=True),
    "hidden in a cycle": lambda t: (lambda box: (box.append(box), box.append(t), box)[2])([]),
    "in-place result": lambda t: t.add_(torch.ones(128, requires_grad=True)),
}


@pytest.mark.parametrize("name", ALIASES)
def test_memory_is_not_used_again_while_somebody_sees_it(name: str) -> None:
    pool = BufferPool()
    t = pool.empty(SHAPE, torch.float32)
    t.fill_(7)
    address = t.data_ptr()
    alias = ALIASES[name](t)
    del t
    gc.collect()
    assert not taken_again(pool, address), name
    del alias
    gc.collect()
    assert taken_again(pool, address), name


def test_share_memory_moves_the_tensor_out() -> None:
    pool = BufferPool()
    t = pool.empty(SHAPE, torch.float32)
    t.fill_(3)
    address, view = t.data_ptr(), t[5:7]
    t.share_memory_()
    assert t.is_shared()
    assert t.data_ptr() != address
    assert taken_again(pool, address)
    pool.empty(SHAPE, torch.float32).fill_(-1)
    assert (t == 3).all()
    assert (view == 3).all()


def test_cannot_grow_but_shrink() -> None:
    t = BufferPool().empty(SHAPE, torch.float32)
    assert t.resize_(10, 10).shape == (10, 10)
    with pytest.raises(RuntimeError, match="not resizable"):
        t.resize_(10_000, 1000)


def test_idle_memory_is_bounded() -> None:
    pool = BufferPool(max_idle_bytes=3 << 20)
    held = [pool.empty((1 << 20,), torch.uint8) for _ in range(10)]
    newest = held[-1].data_ptr()
    while held:
        held.pop(0)
        assert pool.idle_bytes <= 3 << 20
    assert pool.idle_bytes == 3 << 20
    assert pool.empty((1 << 20,), torch.uint8).data_ptr() == newest
    pool.empty((8 << 20,), torch.uint8)
    assert pool.idle_bytes <= 3 << 20
    pool.clear()
    assert pool.idle_bytes == 0


def test_tensors_outlive_their_pool() -> None:
    pool = BufferPool()
    t = pool.empty(SHAPE, torch.float32).fill_(1)
    del pool
    gc.collect()
    assert (t == 1).all()
    del t


def test_a_copy_of_a_pool_is_a_new_one() -> None:
    pool = BufferPool(12345)
    held = pool.empty(SHAPE, torch.float32)
    other = pickle.loads(pickle.dumps(pool))
    assert other.max_idle_bytes == copy.deepcopy(pool).max_idle_bytes == 12345
    assert other.empty(SHAPE, torch.float32).data_ptr() != held.data_ptr()


def test_a_negative_limit() -> None:
    with pytest.raises(InputError, match="max_idle_bytes"):
        BufferPool(-1)


@pytest.fixture
def busy_switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("busy_switching")
def test_threads_never_share_memory() -> None:
    """Threads fill, hand on, check and drop tensors at random; a buffer given out twice would show a wrong number."""
    pool = BufferPool(2 << 20)
    wrong: list[int] = []
    shared: list[tuple[Tensor, int]] = []

    def work(me: int) -> None:
        rng = random.Random(me)
        mine: list[tuple[Tensor, int]] = []
        for step in range(300):
            mark = me * 1000 + step
            t = pool.empty((rng.randrange(8_000, 40_000),), torch.int64)
            t.fill_(mark)
            mine.append((t[rng.randrange(100) :], mark))
            del t
            if rng.random() < 0.3:
                shared.append(mine.pop())
            if shared and rng.random() < 0.3:
                try:
                    mine.append(shared.pop(0))
                except IndexError:
                    continue
            while len(mine) > 6:
                x, expected = mine.pop(rng.randrange(len(mine)))
                if not (x == expected).all():
                    wrong.append(expected)
            if rng.random() < 0.02:
                gc.collect()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert not wrong
    shared.clear()
    gc.collect()
    assert 0 < pool.idle_bytes <= 2 << 20
    assert not pool._leases


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_memory_of_its_own() -> None:
    pool = BufferPool()
    held = pool.empty(SHAPE, torch.float32).fill_(1)
    pool.empty(SHAPE, torch.float32)
    process = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(pool, held))
    process.start()
    process.join(120)
    process.kill()
    assert process.exitcode == 0
    assert (held == 1).all()


def _use_in_child(pool: BufferPool, held: Tensor) -> None:
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork: torch itself would hang
    for _ in range(5):
        pool.empty(SHAPE, torch.float32).fill_(2)
    held.fill_(3)


def test_the_interpreter_ends_with_tensors_around() -> None:
    code = """
import atexit, sys, threading, torch
from manyhop.features import BufferPool
pool = BufferPool()
held = [pool.empty((1000, 128), torch.float32).fill_(k) for k in range(5)]
held.append(held)
sys.modules["keeps"] = type("Keeps", (), {"t": pool.empty((1000, 128), torch.float32)})()
torch.kept = pool.empty((1000, 128), torch.float32)
atexit.register(lambda: print(pool.empty((1000, 128), torch.float32).fill_(1).sum().item()))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "128000.0\n", "")


def test_memory_is_the_cpus_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        for n in (10, 1_000_000):
            assert BufferPool().empty((n,), torch.int64).device.type == "cpu"
