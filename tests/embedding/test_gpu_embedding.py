"""The GPU's kernel on CPU tensors in triton's interpreter: as the CPU's."""

import itertools

import pytest
import torch
from embedding_training import OURS

from manyhop.features import HotRows
from manyhop_embedding.gradients import Change, Gradients, Hot, Kind, Rule, Stamps
from manyhop_embedding.updating import distinct_rows, numbered, sort_gradients, sum_apart, sum_by_row, update

pytest.importorskip("triton")
from manyhop_embedding.gpu import merge_on_gpu, number_on_gpu, refresh_on_gpu, routes_on_gpu, update_on_gpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")

RULES = {
    "STORE": (Rule(Kind.STORE), 0),
    "SGD": (Rule(Kind.SGD, 0.3), 0),
    "ADAM": (Rule(Kind.ADAM, 0.02, 0.2, 0.05, 1e-6), 2),
    "ADAGRAD": (Rule(Kind.ADAGRAD, 0.1, h3=1e-6), 1),
    "RMSPROP": (Rule(Kind.RMSPROP, 0.05, 0.1, h3=1e-6), 1),
}


def some(count: int, width: int, dtype: torch.dtype) -> Gradients:
    ids = torch.randint(0, max(1, count // 2), (count,)) + 10
    return sort_gradients(ids, torch.randn(count, width).to(dtype), num_rows=1000)


def test_every_optimizer_has_a_rule():
    assert len(RULES) == len(Kind) == len(OURS) + 1


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("count", "width", "grads"), [(70, 16, torch.float32), (33, 300, torch.bfloat16)], ids=str)
def test_updates_as_on_the_cpu(name, weight, count, width, grads):
    rule, num_states = RULES[name]
    gradients = some(count, width, grads)
    rows = 10 + count
    start = torch.randn(rows, width).to(weight)
    found = []
    for apply in (update, update_on_gpu):
        weights, states = start.clone(), [torch.full((rows, width), 0.5) for _ in range(num_states)]
        stamps = torch.zeros(rows, 1, dtype=torch.int32)
        for number in (1, 2):
            apply(gradients, Change(rule, weights, states, first=7, scale=0.5, stamps=Stamps(stamps, number)))
        found.append([weights, *states, stamps])
    for ours, theirs in zip(*found, strict=True):
        exact = ours.dtype != torch.bfloat16
        torch.testing.assert_close(ours, theirs, rtol=1e-6 if exact else 1e-2, atol=1e-6 if exact else 1e-3)
    untouched = torch.ones(rows, dtype=torch.bool)
    untouched[gradients.ids - 7] = False
    assert torch.equal(found[1][0][untouched], start[untouched])
    assert torch.equal(found[1][-1].view(-1) == 2, ~untouched)


@pytest.mark.parametrize(("count", "repeats"), [(200, 2), (500, 130), (300, 300), (64, 64), (65, 65)])
def test_sums_are_those_of_the_cpu_bit_for_bit(count, repeats):
    """Also of rows that have gradients in several pieces."""
    ids = torch.arange(count) // repeats
    gradients = sort_gradients(ids[torch.randperm(count)], torch.randn(count, 24), num_rows=count)
    before, _ = distinct_rows(gradients)
    sums = sum_by_row(numbered(gradients, before))[: before[-1]]
    got = torch.full_like(sums, float("nan"))
    place = torch.unique_consecutive(gradients.ids, return_inverse=True)[1]
    update_on_gpu(Gradients(place, gradients.order, gradients.values), Change(Rule(Kind.STORE), got))
    assert torch.equal(got, sums)
    exact = torch.zeros(sums.shape, dtype=torch.float64)
    exact.index_add_(0, place, gradients.values[gradients.order].double())
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 130), (130, 390), (390, 500)])
def test_sums_of_positions_later(dtype, begin, end):
    """The same bits as in one go, and nothing is written elsewhere."""
    ids = (torch.arange(500) // 130).to(dtype)
    gradients = Gradients(ids, torch.randperm(500), torch.randn(500, 24))
    (before, _), apart = distinct_rows(gradients), torch.tensor([begin, (begin + end) // 2, end])
    by_number = numbered(gradients, before)
    sums, others = sum_by_row(by_number), sum_by_row(by_number, apart)
    first, last = int(before[begin]), int(before[end])
    found = torch.full((last - first, 24), float("nan"))
    sum_apart(by_number, begin, end, first, found)
    assert torch.equal(torch.cat([others[:first], found, others[last:4]]), sums[:4])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("repeats", [1, 3, 130])
def test_parts_are_updated_as_all_at_once(dtype, repeats):
    """The same bits, of any place where they are cut; a part reads no gradients of the next ones."""
    rows = torch.arange(500) // repeats
    gradients = Gradients(rows.to(dtype), torch.randperm(500), torch.randn(500, 24))
    rule, num_states = RULES["ADAM"]
    found = []
    for apply, cuts in ((update_on_gpu, [0, 500]), (update_on_gpu, [0, 67, 131, 500]), (update, [0, 0, 200, 260, 500])):
        ends = [*torch.searchsorted(rows, rows[[min(cut, 499) for cut in cuts]])[:-1].tolist(), 500]
        values = torch.full_like(gradients.values, float("nan"))
        come = Gradients(rows if apply is update else gradients.ids, gradients.order, values)
        weights, states = torch.zeros(500, 24), [torch.full((500, 24), 0.5) for _ in range(num_states)]
        for begin, end in itertools.pairwise(ends):
            values[gradients.order[begin:end]] = gradients.values[gradients.order[begin:end]]
            apply(come.part(begin, end), Change(rule, weights, states))
        found.append([weights, *states])
    for whole, parts, on_cpu in zip(*found, strict=True):
        assert torch.equal(whole, parts)
        torch.testing.assert_close(whole, on_cpu, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("count", [1, 1024, 3000])
def test_rows_and_routes_as_on_the_cpu(dtype, count):
    ids = torch.sort(torch.randint(0, count // 2 + 1, (count,))).values.to(dtype)
    before, rows = number_on_gpu(ids)
    expected, expected_rows = distinct_rows(Gradients(ids, ids, torch.empty(count, 1)))
    assert torch.equal(before, expected)
    assert torch.equal(rows[: before[-1]], expected_rows[: before[-1]])
    bounds = torch.tensor(
        [[0, 0, count // 3], [count // 3, count // 2, count // 2], [0, count // 2, count]], dtype=dtype
    )
    at, routes = (torch.empty(shape, dtype=torch.int64) for shape in ((3, 3), (3, 4)))
    routes_on_gpu(ids, before, bounds, -1, at, routes)
    assert torch.equal(at, torch.searchsorted(ids, bounds))
    assert torch.equal(routes[:, :-1], before[at])
    assert routes[:, -1].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("sizes", [(0,), (7,), (3, 0, 5), (1000, 1, 2000, 0, 900)], ids=str)
def test_runs_are_merged_as_they_are_sorted(dtype, sizes):
    ids = torch.cat([torch.sort(torch.randint(0, 900, (size,))).values for size in sizes]).to(dtype)
    expected = torch.sort(ids, stable=True)
    rows, order = merge_on_gpu(ids, sizes)
    assert torch.equal(rows, expected.values)
    assert torch.equal(order, expected.indices)


@pytest.mark.parametrize("copies", [1, 40, 200])
def test_one_row_many_times(copies):
    values = torch.randn(copies, 8)
    weights = torch.zeros(3, 8)
    gradients = sort_gradients(torch.full((copies,), 2), values, num_rows=3)
    update_on_gpu(gradients, Change(Rule(Kind.SGD, 1.0), weights))
    torch.testing.assert_close(weights[2], -values.sum(0))
    nothing = sort_gradients(torch.empty(0, dtype=torch.int64), values[:0], num_rows=3)
    update_on_gpu(nothing, Change(Rule(Kind.SGD, 1.0), weights))
    torch.testing.assert_close(weights[2], -values.sum(0))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16], ids=str)
def test_hot_rows_are_updated_where_they_reside(name, weight):
    rule, num_states = RULES[name]
    gradients = some(70, 20, torch.float32)
    start = torch.randn(80, 20).to(weight)
    states = [torch.rand(80, 20) for _ in range(num_states)]
    expected = [start.clone(), *(state.clone() for state in states)]
    update_on_gpu(gradients, Change(rule, expected[0], expected[1:], scale=0.5))
    tables = [start.clone(), *states]
    ids = torch.arange(5, 45, 3)
    rows_set = HotRows.of(ids, 80)
    hot = [Hot.of(ids, rows_set, table) for table in tables]
    for table in tables:
        table[ids] = 7
    update_on_gpu(gradients, Change(rule, tables[0], tables[1:], scale=0.5, hot=hot))
    for table, rows, whole in zip(tables, hot, expected, strict=True):
        assert (table[ids] == 7).all()
        rows.settle(table)
        assert torch.equal(table, whole)


def test_outdated_hot_rows_are_read_where_they_reside():
    table, ids = torch.randn(50, 8), torch.arange(0, 50, 2)
    hot = Hot.of(ids, HotRows.of(ids, 50), table)
    hot.rows.add_(1)
    rows, asked = torch.zeros(6, 8), torch.tensor([4, 5, 0, 49, 48, 4])
    stamps = (torch.arange(50) > 3).int().view(-1, 1)
    refresh_on_gpu(asked, stamps, 0, table, rows, hot)
    expected = table[asked] + (asked % 2 == 0)[:, None]
    expected[2] = 0
    assert torch.equal(rows, expected)


@pytest.mark.parametrize("width", [1, 32, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ids_dtype", [torch.int64, torch.int32], ids=str)
def test_outdated_rows_are_read_again(width, dtype, ids_dtype):
    table, stamps = torch.randn(50, width).to(dtype), torch.randint(0, 6, (50, 1), dtype=torch.int32)
    ids = torch.randint(0, 50, (75,), dtype=ids_dtype)
    ids[3], ids[70] = 50, -1  # which their gather reports
    rows = torch.zeros(75, width, dtype=dtype)
    refresh_on_gpu(ids, stamps, 3, table, rows)
    inside = (ids >= 0) & (ids < 50)
    outdated = inside & (stamps[ids.clamp(0, 49).long(), 0] > 3)
    expected = torch.where(outdated[:, None], table[ids.clamp(0, 49).long()], torch.zeros_like(rows))
    assert 0 < outdated.sum() < 75
    assert torch.equal(rows, expected)
