"""The GPU's kernel on CPU tensors in triton's interpreter: as the CPU's."""

import pytest
import torch
from embedding_training import OURS

from manyhop_embedding.gradients import Change, Gradients, Kind, Rule
from manyhop_embedding.updating import distinct_rows, sort_ids, sum_by_row, update

pytest.importorskip("triton")
from manyhop_embedding.gpu import refresh_on_gpu, update_on_gpu

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
    return Gradients(*sort_ids(ids, 1000), torch.randn(count, width).to(dtype))


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
            apply(gradients, Change(rule, weights, states, first=7, scale=0.5, stamps=(stamps, number)))
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
    gradients = Gradients(*sort_ids(ids[torch.randperm(count)], count), torch.randn(count, 24))
    before, _ = distinct_rows(gradients.ids)
    sums = torch.empty(int(before[-1]), 24)
    sum_by_row(gradients, before, sums)
    got = torch.full_like(sums, float("nan"))
    place = torch.unique_consecutive(gradients.ids, return_inverse=True)[1]
    update_on_gpu(Gradients(place, gradients.order, gradients.values), Change(Rule(Kind.STORE), got))
    assert torch.equal(got, sums)
    exact = torch.zeros(sums.shape, dtype=torch.float64)
    exact.index_add_(0, place, gradients.values[gradients.order].double())
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("apply", [update, update_on_gpu])
def test_a_part_of_the_sums(apply):
    """A range of rows can be left out, and summed apart: the same bits as of all rows."""
    ids = torch.randint(0, 40, (900,)).sort().values
    gradients = Gradients(ids, torch.randperm(900), torch.randn(900, 20))
    sums, parts = torch.full((40, 20), 7.0), torch.full((40, 20), 7.0)
    apply(gradients, Change(Rule(Kind.STORE), sums))
    apply(gradients, Change(Rule(Kind.STORE), parts, left_out=torch.tensor([13, 29])))
    assert (parts[13:29] == 7).all()
    assert torch.equal(parts[:13], sums[:13])
    assert torch.equal(parts[29:], sums[29:])
    apply(gradients, Change(Rule(Kind.STORE), parts[13:29], first=13))
    assert torch.equal(parts, sums)


@pytest.mark.parametrize("copies", [1, 40, 200])
def test_one_row_many_times(copies):
    values = torch.randn(copies, 8)
    weights = torch.zeros(3, 8)
    gradients = Gradients(*sort_ids(torch.full((copies,), 2), 3), values)
    update_on_gpu(gradients, Change(Rule(Kind.SGD, 1.0), weights))
    torch.testing.assert_close(weights[2], -values.sum(0))
    nothing = Gradients(*sort_ids(torch.empty(0, dtype=torch.int64), 3), values[:0])
    update_on_gpu(nothing, Change(Rule(Kind.SGD, 1.0), weights))
    torch.testing.assert_close(weights[2], -values.sum(0))


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
