"""Rows that the CPU reads for a GPU, but for those that the GPU keeps; on CPU tensors, in triton's interpreter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhop import files
from manyhop.errors import FeatureError
from manyhop.features import BufferPool, CachedRows, HotRows, RowRequest, Visits, cache_files, file_cache, keep_hot
from manyhop.features import visits as counted

triton = pytest.importorskip("triton")
from manyhop.features.gather_gpu import gather_on_gpu  # noqa: E402
from manyhop.features.gathering import gather_on_cpu  # noqa: E402

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"),
    pytest.mark.usefixtures("out_of_reach"),
]

CPU = torch.device("cpu")


def cached(ids: list[int], *sources: Tensor) -> list[CachedRows]:
    """Caches whose rows differ from those of the sources."""
    kept = torch.tensor(ids, dtype=torch.int64)
    hot = HotRows.of(kept, len(sources[0]))
    return [CachedRows(source, hot, source[kept] + 1) for source in sources]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_cpu_reads_only_rows_that_the_gpu_does_not_keep(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(1, 200))
    ids = data.draw(st.lists(st.integers(0, num_rows - 1), unique=True, min_size=1).map(sorted))
    width, dtype = data.draw(st.sampled_from([1, 3, 40])), data.draw(st.sampled_from([torch.int32, torch.int64]))
    asked = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=60)), dtype=dtype)
    x, y, plain = torch.randn(num_rows, width), torch.arange(num_rows), torch.rand(num_rows, 2).half()
    rows = cached(ids, x, y)
    read: list[list[int]] = []

    def on_cpu(requests: Sequence[RowRequest], pool: BufferPool) -> list[Tensor]:
        read.extend(request.index.tolist() for request in requests)
        return gather_on_cpu(requests, pool)

    got = gather_on_gpu([RowRequest(source, asked) for source in (rows[0], plain, rows[1])], CPU, on_cpu=on_cpu)
    index = asked.long()
    hit = torch.isin(index, torch.tensor(ids))
    expected = x[index] + 1.0 * hit[:, None], plain[index], y[index] + 1 * hit
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    missing = index[~hit].tolist()
    assert read == [missing, index.tolist(), missing]
    assert [cache.take_counts() for cache in rows] == [(len(index), int(hit.sum()))] * 2
    assert rows[0].take_counts() == (0, 0)


def test_other_dtypes_and_shapes() -> None:
    index = torch.tensor([5, 2, 9, 5])
    for source in (torch.randn(10, 2, 3).bfloat16(), torch.rand(10) > 0.5, torch.randn(10).to(torch.float8_e5m2)):
        kept = torch.tensor([2, 5])
        rows = CachedRows(source, HotRows.of(kept, 10), source[kept])
        (got,) = gather_on_gpu([RowRequest(rows, index)], CPU, on_cpu=gather_on_cpu)
        assert got.dtype == source.dtype
        assert torch.equal(got.view(torch.uint8), source[index].view(torch.uint8))


def test_an_error_gives_the_position_in_the_index() -> None:
    (rows,) = cached([3, 5], torch.randn(10, 4))
    for bad in (10, -1, 1 << 40):
        with pytest.raises(FeatureError, match=rf"in \[0, 10\) for x, got {bad} \(at position 3\)"):
            gather_on_gpu([RowRequest(rows, torch.tensor([3, 5, 1, bad]), name="x")], CPU, on_cpu=gather_on_cpu)


def test_rows_are_copied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "_PIECE_BYTES", 72)  # three rows of both
    x, y, visits = torch.randn(50, 4), torch.arange(50), Visits(CPU)
    visits.add([RowRequest(source, torch.arange(7, 27, 2)) for source in (x, y)])
    kept = keep_hot(visits.hottest(1.0), CPU)
    assert torch.equal(kept[id(x)].rows, x[7:27:2])
    assert torch.equal(kept[id(y)].rows, y[7:27:2])


def test_what_the_gpu_does_not_keep_is_asked_of_the_cache_of_the_file(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((400, 33), dtype=np.float32)
    np.save(tmp_path / "x.npy", rows)
    mapped, expected = files.open(tmp_path / "x.npy").mapped(), torch.from_numpy(rows)
    cache_files([mapped], 0.25)
    of_file = file_cache(mapped)
    assert of_file is not None
    visits = Visits(CPU)
    visits.add([RowRequest(mapped, torch.arange(40))])
    kept = keep_hot(visits.hottest(1.0), CPU)[id(mapped)]
    assert of_file.take_counts() == (0, 0)  # of batches only
    for seed in range(4):
        index = torch.randint(0, 400, (300,), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(gather_on_gpu([RowRequest(kept, index)], CPU, on_cpu=gather_on_cpu)[0], expected[index])
        asked, found = kept.take_counts()
        assert (asked, found) == (300, int((index < 40).sum()))
        assert of_file.take_counts()[0] == asked - found
