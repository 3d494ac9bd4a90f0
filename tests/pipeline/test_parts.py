"""Batches of one part each, and which ranks get them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.errors import InputError
from manyhop.features.sources import Shards
from manyhop.loading.pipeline import BatchPlan, ItemParts, RankSchedule, check_num_parts, parts_of
from manyhop.loading.pipeline.parts import assign_ranks
from manyhop.sampling.random import Use, fold, make_key

counts = st.lists(st.integers(0, 30), min_size=1, max_size=6)
"""Items of each part."""


def items(sizes: list[int], seed: int = 0) -> np.ndarray:
    """``[num_items]``: the part of each, in some order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def make(sizes: list[int], batch_size: int, **kwargs: bool) -> tuple[np.ndarray, BatchPlan]:
    part = items(sizes)
    return part, BatchPlan(len(part), batch_size, seed=7, parts=ItemParts(part, len(sizes), batch_size), **kwargs)


def deals(plan: BatchPlan, world_size: int, first: int = 0, uneven: str = "pad") -> list[RankSchedule]:
    """Those of all ranks."""
    options = {"num_batches": len(plan), "world_size": world_size, "first": first, "uneven": uneven}
    return [RankSchedule(rank=rank, parts=plan.parts, **options) for rank in range(world_size)]  # type: ignore[arg-type]


@settings(deadline=None)
@given(counts, st.integers(1, 7), st.booleans(), st.integers(0, 3))
def test_every_item_comes_once_in_batches_of_one_part(
    sizes: list[int], batch_size: int, shuffle: bool, epoch: int
) -> None:
    part, plan = make(sizes, batch_size, shuffle=shuffle)
    assert len(plan) == len(BatchPlan(len(part), batch_size)), "as many batches as without parts"
    batches = plan.many_indices(epoch, range(len(plan)))
    assert sorted(np.concatenate([[], *batches])) == list(range(len(part)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    homes = plan.parts.homes(0, len(plan)) if plan.parts else []
    assert Counter(homes) == Counter({p: n // batch_size for p, n in enumerate(sizes)}) + Counter(
        {-1: len(plan) - sum(n // batch_size for n in sizes)}
    )
    for home, batch in zip(homes, batches, strict=True):
        assert home == -1 or set(part[batch]) == {home}
    for b, batch in enumerate(batches):  # any batch by itself, and without compiled code
        assert plan.indices(epoch, b).tolist() == plan.few_indices(epoch, b).tolist() == batch.tolist()


def test_the_contract() -> None:
    """What docs/project/contract.md says, by hand."""
    part, plan = make([5, 2, 4], 2, shuffle=True)
    key = make_key(Use.SHUFFLE, 7, 1)
    of = [np.flatnonzero(part == p) for p in range(3)]
    from manyhop.loading.pipeline import permute

    order = [of[p][permute(np.arange(len(of[p])), len(of[p]), np.uint64(fold(key, p)))].tolist() for p in range(3)]
    batches = [batch.tolist() for batch in plan.many_indices(1, range(len(plan)))]
    assert batches == [order[0][:2], order[1], order[2][:2], order[0][2:4], order[2][2:], order[0][4:]]


def test_in_order_without_shuffling() -> None:
    part, plan = make([5, 3], 2)
    of = [np.flatnonzero(part == p).tolist() for p in range(2)]
    batches = [batch.tolist() for batch in plan.many_indices(0, range(4))]
    assert batches == [of[0][:2], of[1][:2], of[0][2:4], [of[0][4], of[1][2]]]


def test_which_items_are_left_over_changes() -> None:
    """With drop_last, an item of any part may be the one that is left out."""
    part, plan = make([6, 6, 6, 7], 4, shuffle=True, drop_last=True)
    missed = np.zeros(len(part))
    for epoch in range(400):
        missed += ~np.isin(np.arange(len(part)), np.concatenate(plan.many_indices(epoch, range(len(plan)))))
    assert missed.sum() == 400
    assert all(60 < missed[part == p].sum() < 140 for p in range(4))


@settings(deadline=None)
@given(counts, st.integers(1, 7), st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5)), max_size=5))
def test_any_number_of_ranks_goes_on(sizes: list[int], batch_size: int, runs: list[tuple[int, int]]) -> None:
    """Every batch comes exactly once, all ranks get the same number of them, and states are the same on all ranks."""
    _, plan = make(sizes, batch_size)
    at, seen = 0, []
    for world_size, rounds in [*runs, (3, len(plan))]:
        here = deals(plan, world_size, at)
        assert len({len(schedule) for schedule in here}) == 1
        rounds = min(rounds, len(here[0]))
        seen += [schedule.of_round(i) for schedule in here for i in range(rounds)]
        (at,) = {schedule.after(rounds) for schedule in here}
    assert sorted(rank_batch.batch for rank_batch in seen if not rank_batch.is_padding) == list(range(len(plan)))


@pytest.mark.parametrize(
    ("num_parts", "world_size"), [(4, 4), (8, 2), (8, 4), (6, 2), (6, 6), (12, 4), (2, 8), (3, 6), (5, 1), (7, 7)]
)
@pytest.mark.parametrize("done", [0, 1])
def test_all_batches_are_local(num_parts: int, world_size: int, done: int) -> None:
    """With parts of equal size; also after a restart anywhere, where there are as many ranks as parts."""
    if done and num_parts != world_size:
        return
    plan = make([6] * num_parts, 1)[1]
    for rank, schedule in enumerate(deals(plan, world_size, done, "drop")):
        for rank_batch in schedule:
            assert plan.parts
            (home,) = plan.parts.homes(rank_batch.batch, rank_batch.batch + 1)
            overlap = min((rank + 1) / world_size, (home + 1) / num_parts) - max(rank / world_size, home / num_parts)
            assert overlap > 0, (rank_batch, home)


def test_larger_parts_are_shared() -> None:
    """Ranks get as many batches of their own as there are; the others go to those who have none left."""
    plan = make([24, 4, 4, 8], 1)[1]
    own = []
    for rank, schedule in enumerate(deals(plan, 4)):
        assert plan.parts
        homes = [plan.parts.homes(rank_batch.batch, rank_batch.batch + 1)[0] for rank_batch in schedule]
        assert len(homes) == 10
        own.append(homes.count(rank))
    assert own == [10, 4, 4, 8]


@settings(deadline=None)
@given(st.lists(st.integers(-1, 6), min_size=1, max_size=9))
def test_every_rank_gets_one_batch(homes: list[int]) -> None:
    assert sorted(assign_ranks(homes, 7)) == list(range(len(homes)))


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 9))
def test_parts_are_the_slices_of_rows(num_nodes: int, num_parts: int) -> None:
    shards = Shards(num_nodes, num_parts)
    found = parts_of(np.arange(num_nodes), num_nodes, num_parts)
    assert [np.flatnonzero(found == p).tolist() for p in range(num_parts)] == [
        list(shards.rows_of(p)) for p in range(num_parts)
    ]


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "4", 1 << 17])
def test_numbers_that_are_none(wrong: object) -> None:
    with pytest.raises(InputError, match="seed_parts"):
        check_num_parts(wrong)  # type: ignore[arg-type]
