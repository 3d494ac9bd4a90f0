"""Rows that a GPU keeps: chosen by counting, found by the kernel; on CPU tensors, in triton's interpreter."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features import CachedRows, HotRows, RowRequest, Visits, gather, keep_hot

triton = pytest.importorskip("triton")
from manyhop.features.gather_gpu import gather_on_gpu  # noqa: E402
from manyhop.features.gathering import gather_on_cpu  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")

CPU = torch.device("cpu")


def cached(source: Tensor, ids: list[int]) -> CachedRows:
    """A cache whose rows differ from those of the source."""
    kept = torch.tensor(ids, dtype=torch.int64)
    return CachedRows(source, HotRows.of(kept, len(source)), source[kept] + 1000)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("is_far", [False, True])
def test_rows_come_from_the_cache_where_it_has_them(
    request: pytest.FixtureRequest, is_far: bool, data: st.DataObject
) -> None:
    if is_far:
        request.getfixturevalue("far")
    num_rows = data.draw(st.integers(1, 300))
    ids = data.draw(st.lists(st.integers(0, num_rows - 1), unique=True).map(sorted))
    width = data.draw(st.sampled_from([1, 3, 4, 40]))
    source = torch.randn(num_rows, width)
    index = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=80)), dtype=torch.int64)
    rows = cached(source, ids)
    (got,) = gather_on_gpu([RowRequest(rows, index)], CPU, on_cpu=gather_on_cpu)
    hit = torch.isin(index, torch.tensor(ids, dtype=torch.int64))
    assert torch.equal(got, source[index] + 1000 * hit[:, None])
    assert rows.counts.tolist() == ([len(index), int(hit.sum())] if ids else [0, 0])


def test_all_bits_of_a_group() -> None:
    source, index = torch.arange(256).float(), torch.arange(256)
    for ids in (list(range(256)), list(range(64, 128)), [63, 127, 255], [0, 64]):
        hit = torch.isin(index, torch.tensor(ids))
        assert torch.equal(
            gather_on_gpu([RowRequest(cached(source, ids), index)], CPU, on_cpu=gather_on_cpu)[0], index + 1000.0 * hit
        )


def test_beside_other_sources_and_with_bad_ids() -> None:
    plain, index = torch.randn(100, 8), torch.randint(0, 100, (50,))
    rows = cached(torch.randn(100, 4), [3, 50, 99])
    expected = rows.source[index] + 1000 * torch.isin(index, torch.tensor([3, 50, 99]))[:, None]
    for got, right in zip(
        gather_on_gpu([RowRequest(s, index) for s in (plain, rows, plain)], CPU, on_cpu=gather_on_cpu),
        [plain[index], expected, plain[index]],
        strict=True,
    ):
        assert torch.equal(got, right)
    index[7] = 100
    with pytest.raises(FeatureError, match=r"got 100 \(at position 7\)"):
        gather_on_gpu([RowRequest(rows, index)], CPU, on_cpu=gather_on_cpu)


def test_indices_on_the_cpu_read_the_source() -> None:
    rows, index = cached(torch.randn(100, 4), [3]), torch.tensor([3, 4])
    assert torch.equal(gather([(rows, index)])[0], rows.source[index])


def visited(batches: list[list[int]], *sources: Tensor) -> Visits:
    visits = Visits(CPU)
    for batch in batches:
        index = torch.tensor(batch)
        visits.add([RowRequest(source, index) for source in sources])
    return visits


def test_the_rows_that_most_batches_ask_for_are_kept() -> None:
    x, y = torch.randn(10, 4), torch.arange(10)
    visits = visited([[1, 2, 3], [3, 2, 2], [7, 3], [7, 9]], x, y)
    assert visits.rows == 9
    ((sources, ids),) = visits.hottest(0.3)
    assert [s.data_ptr() for s in sources] == [x.data_ptr(), y.data_ptr()]
    assert ids.tolist() == [2, 3, 7]
    assert visits.hottest(1.0)[0][1].tolist() == [1, 2, 3, 7, 9]
    assert visits.hottest(0.0)[0][1].tolist() == []
    assert visits.hottest(0.2, near=range(3, 4))[0][1].tolist() == [2, 7]
    assert visits.hottest(2 * 24)[0][1].tolist() == [2, 3]  # 16 and 8 bytes a row


def test_a_number_of_bytes_goes_to_the_hottest_rows_of_all_tensors() -> None:
    x, z = torch.randn(10, 4), torch.randn(20, 2)
    visits = visited([[1, 2], [1]], x)
    visits.add([RowRequest(z, torch.tensor([5, 6]))])
    visits.add([RowRequest(z, torch.tensor([6]))])
    visits.add([RowRequest(z, torch.tensor([6], dtype=torch.int32))])
    assert [ids.tolist() for _, ids in visits.hottest(24)] == [[1], [6]]
    assert [ids.tolist() for _, ids in visits.hottest(40)] == [[1, 2], [6]]


def test_kept_rows_are_those_of_the_source() -> None:
    x, y = torch.randn(70, 4), torch.arange(70)
    visits = visited([[1, 2, 3, 69], [3, 2], [2]], x, y)
    kept = keep_hot(visits.hottest(3 / 70), CPU)
    assert sorted(kept) == sorted([id(x), id(y)])
    assert kept[id(x)].hot is kept[id(y)].hot
    assert torch.equal(kept[id(x)].rows, x[[1, 2, 3]])
    index = torch.tensor([69, 3, 0, 2])
    for source in (x, y):
        rows = kept[id(source)]
        assert torch.equal(gather_on_gpu([RowRequest(rows, index)], CPU, on_cpu=gather_on_cpu)[0], source[index])
        assert (rows.shape, rows.counts.tolist()) == (source.shape, [4, 2])


def test_rows_have_to_be_copied_as_bytes() -> None:
    with pytest.raises(InputError, match="contiguous rows"):
        visited([[1]], torch.randn(5, 5).t())


def test_a_cache_on_another_device_is_not_read() -> None:
    rows, index = cached(torch.randn(70, 4), [3, 50]), torch.tensor([3, 4, 50])
    rows.rows = rows.rows.to("meta")
    assert torch.equal(gather_on_gpu([RowRequest(rows, index)], CPU, on_cpu=gather_on_cpu)[0], rows.source[index])


def test_a_source_with_a_cache_that_moves_in_memory() -> None:
    rows, index = cached(torch.randn(70, 4), [3]), torch.tensor([4, 50])
    for _ in range(2):
        assert torch.equal(gather_on_gpu([RowRequest(rows, index)], CPU, on_cpu=gather_on_cpu)[0], rows.source[index])
        rows.source.data = torch.randn(70, 4)


def test_visits_of_rows_that_do_not_exist_are_left_to_the_gather() -> None:
    visits, source = Visits(CPU), torch.randn(10, 4)
    visits.add([RowRequest(source, torch.tensor([3, 10, 3, -11]))])
    assert [ids.tolist() for _, ids in visits.hottest(1.0)] == [[3]]


def test_a_row_of_more_batches_than_a_byte_counts_stays_the_hottest() -> None:
    visits = visited([[3]] * 258 + [[5]] * 9, torch.randn(10, 4))
    assert visits.rows == 267
    assert visits.hottest(0.1)[0][1].tolist() == [3]
