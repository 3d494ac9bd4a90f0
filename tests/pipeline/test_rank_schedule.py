"""Which global batches a rank gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhop.errors import InputError
from manyhop.loading.pipeline import RankBatch, RankSchedule

sizes = st.integers(0, 40)
worlds = st.integers(1, 7)


def schedules(num_batches: int, world_size: int, first: int = 0, uneven: str = "pad") -> list[RankSchedule]:
    """Those of all ranks."""
    return [
        RankSchedule(num_batches=num_batches, world_size=world_size, rank=r, first=first, uneven=uneven)  # type: ignore[arg-type]
        for r in range(world_size)
    ]


@given(sizes, worlds, st.data())
def test_padded_every_batch_comes_exactly_once(num_batches: int, world_size: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, num_batches))
    of_ranks = [list(schedule) for schedule in schedules(num_batches, world_size, first)]
    assert {len(t) for t in of_ranks} == {-(-(num_batches - first) // world_size)}
    own = [t.batch for rank in of_ranks for t in rank if not t.is_padding]
    assert sorted(own) == list(range(first, num_batches))
    padding = [(t.round, t.batch) for rank in of_ranks for t in rank if t.is_padding]
    assert len(padding) < world_size
    assert all(r == len(of_ranks[0]) - 1 for r, _ in padding), "only the last round is padded"
    assert [b for _, b in padding] == [i % num_batches for i in range(len(padding))]


@given(sizes, worlds, st.data())
def test_dropped_no_batch_comes_twice(num_batches: int, world_size: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, num_batches))
    of_ranks = [list(schedule) for schedule in schedules(num_batches, world_size, first, "drop")]
    batches = sorted(t.batch for rank in of_ranks for t in rank)
    assert batches == list(range(first, first + (num_batches - first) // world_size * world_size))
    assert not any(t.is_padding for rank in of_ranks for t in rank)


@given(sizes, worlds, st.data())
def test_kept_uneven_each_batch_comes_once(num_batches: int, world_size: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, num_batches))
    of_ranks = [list(schedule) for schedule in schedules(num_batches, world_size, first, "keep")]
    assert sorted(t.batch for rank in of_ranks for t in rank) == list(range(first, num_batches))
    assert not any(t.is_padding for rank in of_ranks for t in rank)
    assert [len(rank) for rank in of_ranks] == sorted((len(rank) for rank in of_ranks), reverse=True)


@given(sizes, st.lists(st.tuples(worlds, st.integers(0, 5)), max_size=6), worlds)
def test_restarts_with_other_numbers_of_ranks(num_batches: int, parts: list[tuple[int, int]], last: int) -> None:
    """However often a run is stopped and goes on with another number of ranks, each batch comes exactly once."""
    at, seen = 0, []
    for world_size, rounds in [*parts, (last, num_batches + 1)]:
        here = schedules(num_batches, world_size, at)
        rounds = min(rounds, len(here[0]))
        seen += [d.of_round(i) for d in here for i in range(rounds)]
        assert len({d.after(rounds) for d in here}) == 1, "the state is the same on all ranks"
        at = here[0].after(rounds)
    assert sorted(t.batch for t in seen if not t.is_padding) == list(range(num_batches))


def test_in_rounds_batches_come_in_order() -> None:
    zero, one = schedules(5, 2)
    assert list(zero) == [RankBatch(0, 0), RankBatch(1, 2), RankBatch(2, 4)]
    assert list(one) == [RankBatch(0, 1), RankBatch(1, 3), RankBatch(2, 0, True)]
    assert [d.batch for d in RankSchedule(num_batches=5, world_size=2, rank=1, first=2)] == [3, 0]


def test_fewer_batches_than_ranks() -> None:
    assert [list(d) for d in schedules(1, 3)] == [[RankBatch(0, 0)], [RankBatch(0, 0, True)], [RankBatch(0, 0, True)]]
    assert [len(d) for d in schedules(2, 3, uneven="drop")] == [0, 0, 0]
    assert [list(d) for d in schedules(0, 2)] == [[], []]


def test_errors() -> None:
    assert [len(d) for d in schedules(6, 3, uneven="error")] == [2, 2, 2]
    assert [len(d) for d in schedules(7, 3, first=1, uneven="error")] == [2, 2, 2]
    with pytest.raises(InputError, match=r"3 ranks can share evenly .* got 7"):
        schedules(7, 3, uneven="error")
    with pytest.raises(InputError, match="uneven"):
        schedules(7, 3, uneven="both")
    for wrong in ({"rank": 2, "world_size": 2}, {"rank": -1}, {"first": 8}, {"first": -1}):
        with pytest.raises(InputError):
            RankSchedule(num_batches=7, **wrong)
