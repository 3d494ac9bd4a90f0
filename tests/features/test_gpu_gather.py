"""The GPU's gather, on CPU tensors in triton's interpreter: equal to indexing, for every source that kernels read."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features import Checks, RowRequest

triton = pytest.importorskip("triton")
from manyhop.features import gather_gpu  # noqa: E402
from manyhop.features.gather_gpu import gather_on_gpu  # noqa: E402
from manyhop.features.gathering import gather_on_cpu  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")

CPU = torch.device("cpu")


def gathered(*requests: tuple[object, Tensor] | RowRequest, checks: Checks | None = None) -> list[Tensor]:
    asked = [r if isinstance(r, RowRequest) else RowRequest(*r) for r in requests]
    return gather_on_gpu(asked, CPU, on_cpu=gather_on_cpu, checks=checks)


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("num", [1, 2, 4, 5, 16, 17, 35])
def test_many_sources_of_all_widths_in_one_call(num: int) -> None:
    sources = [random_bytes(20 + k, 1 + 5 * k) if k % 3 else torch.randn(20, 4 * k + 4) for k in range(num)]
    indices = [torch.randint(0, 20, (7 * (k % 4),), dtype=(torch.int64, torch.int32)[k % 2]) for k in range(num)]
    for got, source, index in zip(gathered(*zip(sources, indices, strict=True)), sources, indices, strict=True):
        assert torch.equal(got, source[index.long()])
    assert gathered() == []


def test_sources_that_change_between_calls() -> None:
    x, index = torch.randn(20, 8), torch.randint(0, 10, (30,))
    for _ in range(2):
        assert torch.equal(gathered((x, index))[0], x[index])
        x += 1  # in place: the same memory
    x.data = torch.randn(10, 8)  # other memory
    assert torch.equal(gathered((x, index))[0], x[index])
    x.requires_grad_()
    assert gathered((x, index))[0].requires_grad
    for k in range(30):  # fresh tensors may have the address of one that is gone
        y = torch.full((10, 8), float(k))
        assert torch.equal(gathered((y, index))[0], y[index])


def test_an_empty_source_has_no_rows() -> None:
    with pytest.raises(FeatureError, match=r"\[0, 0\)"):
        gathered((torch.zeros(0, 3), torch.tensor([0])))


def test_a_bound_is_believed_only_as_far_as_there_are_rows() -> None:
    source, index = torch.randn(10, 4), torch.tensor([3, 9])
    for bound in (10, 11):
        assert torch.equal(gathered(RowRequest(source, index, bound=bound))[0], source[index])
    with pytest.raises(FeatureError, match=r"\[0, 10\) .* got 10 \(at position 1\)"):
        gathered(RowRequest(source, torch.tensor([3, 10]), bound=11))


def test_checks_collect_and_raise_when_asked() -> None:
    checks, source = Checks(), torch.randn(10, 4)
    good, bad = torch.tensor([1]), torch.tensor([1, 10])
    gathered((source, good), checks=checks)
    checks.ask()
    (rows,) = gathered((source, bad), checks=checks)
    assert torch.equal(rows[0], source[1])
    with pytest.raises(FeatureError, match=r"got 10 \(at position 1\)"):
        checks.ask()
    checks.ask(wait=True)  # nothing is left


def test_plans_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_gpu, "_MOST_PLANS", 2)
    sources = [torch.randn(10, k + 1) for k in range(4)]
    index = torch.randint(0, 10, (6,))
    for source in sources * 2:
        assert torch.equal(gathered((source, index))[0], source[index])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_far_rows_with_many_repeats(far: None, data: st.DataObject) -> None:
    n, width, num = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 700)), data.draw(st.integers(1, 3))
    sources = [random_bytes(n, width + k) for k in range(num)]
    ids = st.lists(st.integers(0, n - 1), max_size=150)
    index = torch.tensor(data.draw(ids), dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    bound = data.draw(st.sampled_from([n, n + 1, None]))
    for got, source in zip(gathered(*[RowRequest(s, index, bound=bound) for s in sources]), sources, strict=True):
        assert torch.equal(got, source[index.long()])


@pytest.mark.parametrize("bad", [-1, 100, 2**62])
def test_far_rows_that_do_not_exist(far: None, bad: int) -> None:
    index = torch.randint(0, 100, (90,))
    index[60] = bad
    sources = torch.randn(100, 4), torch.randn(200, 4)
    checks = Checks()
    got = gathered(*[(s, index) for s in sources], checks=checks)
    assert torch.equal(got[0][:60], sources[0][index[:60]])
    with pytest.raises(FeatureError, match=rf"\[0, 100\) .* got {bad} \(at position 60\)"):
        checks.ask()


def test_plans_go_with_their_sources() -> None:
    plans = gather_gpu.Plans()
    kept, index = torch.randn(10, 4), torch.tensor([1, 2])
    plan = plans.of([RowRequest(kept, index)], CPU)
    for _ in range(5):
        plans.of([RowRequest(torch.randn(10, 4), index)], CPU)
    assert len(plans.held) == 2
    assert plans.of([RowRequest(kept, index)], CPU) is plan


@pytest.mark.parametrize(("width", "most", "owners"), [(1, 9, 1), (33, 9, 2), (33, 0, 7)])
def test_rows_of_one_source_share_memory_but_are_no_views(
    width: int, most: int, owners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ones by fours, as far as that does not keep much alive."""
    monkeypatch.setattr(gather_gpu, "_SHARED_BYTES", most * 4 * width * 10)
    source, other = torch.randn(20, width), torch.randn(20, width)
    ids = [torch.randint(0, 20, (n,)) for n in (3, 0, 5, 7, 1, 4, 2, 9)]
    rows = gather_on_gpu([RowRequest(x, i) for i in ids for x in (source, other)], CPU, on_cpu=gather_on_cpu)[::2]
    assert all(torch.equal(row, source[i]) for row, i in zip(rows, ids, strict=True))
    assert len({row.untyped_storage().data_ptr() for row in rows if row.numel()}) == owners
    rows[0] += 1
    assert [row._version for row in rows] == [1] + [0] * 7
    assert all(torch.equal(row, source[i]) for row, i in zip(rows[1:], ids[1:], strict=True))


def test_sources_that_are_seen_differently_in_the_same_memory() -> None:
    x, index = torch.randn(6, 6), torch.randint(0, 6, (9,))
    for change in (x.contiguous, x.t_, x.t_):
        change()
        assert torch.equal(gathered((x, index))[0], x[index])
    x.data = x.data.view(torch.int32)
    (got,) = gathered((x, index))
    assert got.dtype == torch.int32


def test_what_was_enqueued_is_checked_though_something_else_fails() -> None:
    checks, x = Checks(), torch.randn(10, 4)
    with pytest.raises(FeatureError, match="the other"):
        gathered(
            (x, torch.tensor([3, 10])), RowRequest(x.to_sparse(), torch.tensor([10]), name="the other"), checks=checks
        )
    with pytest.raises(FeatureError, match=r"got 10 \(at position 1\)"):
        checks.ask(wait=True)


def test_before_plans_are_freed_their_own_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        def is_alive(self) -> bool:
            return False

    waited: list[torch.device] = []
    plans: Any = gather_gpu.Plans()
    plans.held |= {(torch.device("cuda", 1), k): Dead() for k in range(2)}
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    x, index = torch.randn(10, 4), torch.tensor([1, 2])
    plans.of([RowRequest(x, index)], CPU)
    assert waited == [torch.device("cuda", 1)]
    assert len(plans.held) == 1
