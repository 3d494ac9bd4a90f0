"""The functions that pick, compiled, on many columns at once."""

import gpu_pick_kernels as kernels
import numpy as np
import pytest
import torch
from triton import next_power_of_2

from manyhop.sampling.reference import picks as reference
from manyhop.sampling.reference.picks import alias_table

pytestmark = pytest.mark.gpu
N = 3000


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def on_gpu(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def empty(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    room = next_power_of_2(width)
    return torch.full((N, room), -1, device="cuda"), torch.full((N,), -1, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize(("width", "warps"), [(1, 1), (5, 1), (15, 1), (15, 4), (64, 1)])
@pytest.mark.parametrize("mode", ["uniform", "replace", "last"])
def test_unweighted_picks(rng, mode, width, warps):
    key = rng.integers(0, 2**64, N, np.uint64)
    d = np.minimum((rng.random(N) ** -1.5).astype(np.int64) - 1 + rng.integers(0, 2 * width, N), 2**32 - 1)
    k = np.where(rng.random(N) < 0.7, width, rng.integers(0, width + 1, N))
    out, taken = empty(width)
    tile = 32 * warps
    kernels.unweighted[(-(-N // tile),)](
        on_gpu(key.view(np.int64)), on_gpu(d), on_gpu(k.astype(np.int32)), out, taken, N,
        mode, width, out.shape[1], tile, num_warps=warps,
    )  # fmt: skip
    out, taken = out.cpu(), taken.cpu()
    for i in range(N):
        if mode == "last":
            want = range(max(d[i] - k[i], 0), d[i])
        else:
            want = reference.uniform(key[i], int(d[i]), int(k[i]), replace=mode == "replace") if k[i] else []
        assert out[i, : taken[i]].tolist() == list(want), (d[i], k[i])


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("probes", [2, 4, 16])
def test_limits_in_time(rng, probes, window):
    d = rng.integers(0, 500, N)
    start = np.cumsum(d) - d
    time = np.concatenate([np.sort(rng.integers(-50, 50, n)) for n in d])
    low, high = rng.integers(-60, 60, N), rng.integers(-60, 60, N)
    first, length = torch.full((N,), -1, device="cuda"), torch.full((N,), -1, device="cuda")
    kernels.cut[(-(-N // 64),)](
        *(on_gpu(a) for a in (time, start, d, low, high)), first, length, N, window, probes, 64, num_warps=2
    )
    first, length = first.cpu(), length.cpu()
    for i in range(N):
        column = time[start[i] : start[i] + d[i]]
        begin, end = reference.temporal(column, int(low[i]) if window else None, int(high[i]))
        assert length[i] == end - begin
        assert begin == end or first[i] == begin


@pytest.mark.parametrize(("width", "warps"), [(1, 1), (5, 1), (15, 1), (15, 4), (31, 1)])
@pytest.mark.parametrize("replace", [False, True])
def test_weighted_picks(rng, replace, width, warps):
    kinds = [
        lambda n: rng.random(n),
        lambda n: np.ones(n),
        lambda n: 10.0 ** rng.integers(-12, 12, n),
        lambda n: np.where(rng.random(n) < 0.5, 0.0, 1e9 ** rng.random(n)),
    ]
    lengths = np.where(rng.random(N) < 0.5, width + rng.integers(0, 5, N), rng.integers(0, 100, N))
    columns = [kinds[rng.integers(4)](n) * (rng.random(n) < 0.9) for n in lengths]
    tables = [alias_table(column) for column in columns]
    key = rng.integers(0, 2**64, N, np.uint64)
    k = np.where(rng.random(N) < 0.7, width, rng.integers(0, width + 1, N))
    p = np.array([np.count_nonzero(column) for column in columns])
    out, taken = empty(width)
    tile = 32 * warps
    kernels.by_weight[(-(-N // tile),)](
        on_gpu(np.concatenate(tables)), on_gpu(np.concatenate(columns)), on_gpu(key.view(np.int64)),
        on_gpu(np.cumsum(lengths) - lengths), on_gpu(lengths), on_gpu(p), on_gpu(k.astype(np.int32)), out, taken, N,
        replace, width, out.shape[1], tile, num_warps=warps,
    )  # fmt: skip
    out, taken = out.cpu(), taken.cpu()
    for i in range(N):
        want = reference.weighted(key[i], columns[i], reference.by_alias(tables[i]), int(k[i]), replace=replace)
        assert out[i, : taken[i]].tolist() == (want.tolist() if k[i] else [])
