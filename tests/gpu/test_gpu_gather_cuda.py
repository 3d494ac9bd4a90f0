"""Gathering on a GPU equals indexing: rows in its own memory, in pinned memory, and in memory that it cannot read."""

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from manyhop.errors import CapacityError, FeatureError
from manyhop.features import (
    Checks,
    RowRequest,
    Visits,
    gather,
    gather_gpu,
    is_pinned,
    keep_hot,
    pin,
    pinned_bytes,
    unpin,
)
from manyhop.memory.sharing import share

pytestmark = pytest.mark.gpu

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64, torch.int16]
SHAPES = [(50,), (50, 1), (50, 3), (50, 16), (50, 129), (50, 4, 5), (50, 2, 0), (1, 7)]


def some(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (100 * torch.randn(shape)).to(dtype)


def cuda(count: int, high: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, high, (count,), dtype=dtype, device="cuda")


def assert_gathered(source: object, got: Tensor, expected: Tensor) -> None:
    assert got.is_cuda
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert torch.equal(got.cpu(), expected.cpu())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("memory", ["device", "pinned", "host"])
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...], memory: str) -> None:
    source = some(shape, dtype)
    index = cuda(33, shape[0], torch.int32 if len(shape) == 2 else torch.int64)
    expected = source[index.long().cpu()]
    source = {"device": source.cuda, "pinned": source.pin_memory, "host": source.clone}[memory]()
    assert_gathered(source, gather([(source, index)])[0], expected)


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 100, 400, 1000, 70_000])
def test_any_length_and_alignment(offset: int, width: int) -> None:
    source = torch.randint(0, 256, (20, width + offset), dtype=torch.uint8, device="cuda")[:, offset:]
    for index in (cuda(100, 20), cuda(101, 20, torch.int32)):
        assert torch.equal(gather([(source, index)])[0], source[index.long()])


def test_all_kinds_of_sources_in_one_call() -> None:
    x = torch.randn(100, 24)
    sources = [
        x.cuda(),
        x.pin_memory(),
        x,
        x.numpy(),
        x.cuda().t(),
        x.cuda()[::3],
        x.cuda().to_sparse(),
        x.cuda()[:, 5],
    ]
    sources += [torch.randn(100, k, device="cuda") for k in range(1, 30)]
    requests = [RowRequest(s, cuda(40 + k, s.shape[0])) for k, s in enumerate(sources)]
    for got, request in zip(gather(requests, threads=2), requests, strict=True):
        source = torch.as_tensor(request.source)
        expected = source.index_select(0, request.index.to(source.device))
        assert_gathered(source, got.to_dense(), expected.to_dense())


def test_indices_of_any_stride_in_one_call() -> None:
    source = torch.randn(5000, 16, device="cuda")
    indices = list(torch.randint(0, 5000, (4000, 8), device="cuda").unbind(1))
    for got, index in zip(gather([(source, index) for index in indices]), indices, strict=True):
        assert torch.equal(got, source[index])


def test_more_than_two_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 6 << 30:
        pytest.skip("needs 6 GiB of GPU memory")
    rows = (1 << 31) // 64 + 1000
    source = torch.empty(rows, 64, dtype=torch.int8, device="cuda")
    source.copy_((torch.arange(rows, device="cuda") % 127).to(torch.int8)[:, None].expand(-1, 64))
    index = torch.cat([cuda(1000, rows), torch.arange(rows - 1000, rows, device="cuda")])
    assert torch.equal(gather([(source, index)])[0], (index % 127).to(torch.int8)[:, None].expand(-1, 64))


def test_another_stream_and_many_calls() -> None:
    source = torch.randn(10_000, 64, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        results = [
            (i, gather([RowRequest(source, i, bound=10_000)])[0]) for i in (cuda(5000, 10_000) for _ in range(50))
        ]
        stream.synchronize()
    assert all(torch.equal(got, source[i]) for i, got in results)


@pytest.mark.parametrize("memory", ["device", "pinned", "host"])
@pytest.mark.parametrize("bad", [-1, 100, 2**62])
def test_an_index_out_of_range_is_named(memory: str, bad: int) -> None:
    x = torch.randn(100, 8)
    source = {"device": x.cuda, "pinned": x.pin_memory, "host": x.clone}[memory]()
    index = cuda(100_000, 100)
    index[77_777] = bad
    with pytest.raises(FeatureError, match=rf"\[0, 100\) for feature x, got {bad} \(at position 77777\)"):
        gather([RowRequest(source, index, name="feature x")])


def test_checks_raise_late_but_surely() -> None:
    checks, source = Checks(), torch.randn(100, 8, device="cuda")
    for index in (cuda(10, 100), torch.tensor([5, 100], device="cuda")):
        gather([(source, index)], checks=checks)
    with pytest.raises(FeatureError, match=r"got 100 \(at position 1\)"):
        checks.ask(wait=True)
    checks.ask(wait=True)


def test_pinning_in_place_ends_with_the_memory() -> None:
    before = pinned_bytes()
    source = torch.from_numpy(np.random.rand(100_000, 8))
    address, index = source.data_ptr(), cuda(1000, 100_000)
    assert not is_pinned(source)
    staged = gather([(source, index)])[0]
    pin(source)
    pin(source[5:10])
    assert (source.data_ptr(), is_pinned(source), source.is_pinned()) == (address, True, True)
    assert pinned_bytes() - before >= source.nbytes
    assert torch.equal(gather([(source, index)])[0], staged)
    kept = source[10:]
    del source
    gc.collect()
    assert is_pinned(kept)
    del kept
    gc.collect()
    assert pinned_bytes() == before


def test_small_tensors_may_share_a_page() -> None:
    before, memory = pinned_bytes(), torch.arange(10_000)
    parts = [memory[k * 100 : k * 100 + 100] for k in range(100)]
    for part in parts:
        pin(part)
    assert is_pinned(memory)
    assert pinned_bytes() - before <= memory.nbytes + 2 * 4096
    index = cuda(50, 100)
    for part in parts:
        assert torch.equal(gather([(part, index)])[0].cpu(), part[index.cpu()])
        unpin(part)
    assert (pinned_bytes(), is_pinned(memory)) == (before, False)


def test_shared_memory_is_pinned_too() -> None:
    source = share(lambda: torch.randn(50_000, 16), what="features")
    pin(source)
    index = cuda(1000, 50_000)
    assert torch.equal(gather([(source, index)])[0].cpu(), source[index.cpu()])


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_files_are_gathered_pinned_or_not(tmp_path: Path, mode: Literal["r", "c", "r+"]) -> None:
    array = np.random.rand(5000, 24).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    source, index = np.load(tmp_path / "x.npy", mmap_mode=mode), cuda(700, 5000)
    expected = torch.from_numpy(array[index.cpu().numpy()])
    assert torch.equal(gather([(source, index)])[0].cpu(), expected)
    try:
        pin(source)
    except CapacityError as error:  # not every system can
        assert "rows of a file" in str(error)  # noqa: PT017
    else:
        assert is_pinned(source)
    assert torch.equal(gather([(source, index)])[0].cpu(), expected)


@pytest.mark.parametrize("width", [1, 3, 4, 128])
@pytest.mark.parametrize("memory", ["device", "pinned", "host"])
def test_rows_come_from_the_cache_where_it_has_them(width: int, memory: str) -> None:
    source = torch.randn(10_000, width)
    if memory != "host":
        source = source.cuda() if memory == "device" else source.pin_memory()
    visits = Visits(torch.device("cuda", 0))
    for _ in range(5):
        visits.add([RowRequest(source, (cuda(5000, 100) ** 2))])
    kept = keep_hot(visits.hottest(0.005), torch.device("cuda", 0))[id(source)]
    assert kept.hot.count == 50
    kept.rows += 1000
    index = cuda(3000, 100) ** 2
    hit = torch.isin(index, visits.hottest(0.005)[0][1])
    expected = source.cuda()[index] + 1000 * hit[:, None]
    assert torch.equal(gather([(kept, index)])[0], expected)
    assert kept.take_counts() == (3000, int(hit.sum()))


@pytest.mark.parametrize("width", [1, 3, 128])
@pytest.mark.parametrize("bound", [1000, None])
def test_rows_asked_for_many_times(width: int, bound: int | None) -> None:
    source = torch.randn(1000, width).pin_memory()
    for index in (cuda(50_000, 30), cuda(20_000, 1000, torch.int32), torch.full((5000,), 999, device="cuda")):
        got = gather([RowRequest(source, index, bound=bound)])[0]
        assert torch.equal(got.cpu(), source[index.long().cpu()])


def test_threads_with_streams_of_their_own_while_plans_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_gpu, "_MOST_PLANS", 3)
    shared = [torch.randn(20_000, 64, device="cuda"), torch.randn(20_000, 3).pin_memory()]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(30):
                fresh = torch.full((20_000, 1 + turn), float(seed), device="cuda")
                index = torch.randint(0, 20_000, (3000,), generator=generator, device="cuda")
                sources = [shared[turn % 2], fresh, shared[1 - turn % 2]]
                rows = gather([RowRequest(source, index, bound=20_000) for source in sources])
                for got, source in zip(rows, sources, strict=True):
                    if not torch.equal(got, source.cuda()[index]):
                        wrong.append(f"thread {seed}, turn {turn}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert not wrong


def test_a_gather_is_captured_in_a_cuda_graph() -> None:
    sources = [torch.randn(1000, 64, device="cuda"), torch.randint(0, 9, (1000,), device="cuda")]
    index = cuda(500, 1000)
    requests = [RowRequest(source, index, bound=1000) for source in sources]
    gather(requests)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = gather(requests)
    for _ in range(3):
        index.copy_(cuda(500, 1000))
        graph.replay()
        assert all(torch.equal(got, source[index]) for got, source in zip(rows, sources, strict=True))


def test_whatever_the_default_device_is() -> None:
    sources = [torch.randn(100, 4, device="cuda"), torch.randn(100, 4), torch.randn(100, 4).pin_memory()]
    with torch.device("cuda"):
        for source in sources:
            index = torch.randint(0, 100, (50,))
            assert torch.equal(gather([(source, index)])[0], source.cuda()[index])


@pytest.mark.multigpu
@pytest.mark.parametrize("current", [0, 1])
def test_rows_go_to_the_gpu_of_the_index_which_is_checked_there(current: int) -> None:
    x = torch.randn(1000, 24)
    pinned = x.clone()
    pin(pinned)
    with torch.cuda.device(current):
        requests = [
            RowRequest(source, torch.randint(0, 1000, (300,), device=f"cuda:{k}"), bound=1000)
            for source in (x.to("cuda:0"), x.to("cuda:1"), pinned, x)
            for k in (0, 1)
        ]
        for got, request in zip(gather(requests), requests, strict=True):
            assert got.device == request.index.device
            assert torch.equal(got.cpu(), x[request.index.cpu()])
        assert torch.cuda.current_device() == current
    checks = Checks()
    for k in (0, 1):
        gather([(torch.zeros(10, 4, device=f"cuda:{k}"), torch.tensor([9, 10 * k], device=f"cuda:{k}"))], checks=checks)
    with pytest.raises(FeatureError, match=r"\[0, 10\) .* got 10 \(at position 1\)"):
        checks.ask(wait=True)
