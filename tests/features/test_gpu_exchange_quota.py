"""What ranks take for granted in exchanges of rows between GPUs; pure."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from manyhop import World
from manyhop.features import DistributedRows, RowRequest
from manyhop.features.exchange.gpu import flight
from manyhop.features.exchange.gpu.flight import Shares, SpeculativeQuota
from manyhop.features.exchange.gpu.routes import Repeats
from manyhop.features.exchange.requested import Pattern
from manyhop.features.sources import HotRows

WIDTHS = [[512, 4], [16]]


def test_shares_do_not_overlap_and_fit():
    shares = Shares.of([100, 33], WIDTHS, 4, 67, 51600 + 528)
    assert (shares.id_begins, shares.id_caps) == ((0, 50), (100, 33))
    assert (shares.row_begins, shares.row_caps) == (((0, 51200), (51600,)), (100, 33))


def test_where_there_is_not_enough_room_all_have_less():
    shares = Shares.of([1000, 1000], [[100], [300]], 8, 2000, 40_000)
    assert shares.id_caps == (1000, 1000)
    assert 98 <= shares.row_caps[0] == shares.row_caps[1] <= 100
    assert shares.row_begins[1][0] + 300 * shares.row_caps[1] <= 40_000
    shares = Shares.of([1000, 1000], [[100], [300]], 8, 100, 40_000)
    assert shares.id_begins[1] + shares.id_caps[1] <= 100
    assert shares.row_caps == shares.id_caps


def test_the_next_exchange_may_need_a_little_more():
    known = SpeculativeQuota(1)
    known.learn(5, [1000, 0], WIDTHS, 4)
    shares = known.shares(5, WIDTHS, 4)
    assert 1020 < shares.row_caps[0] < 1200
    assert shares.row_caps[1] == 0
    id_words = known.id_words, known.ahead
    for need in (990, 1010, 1003):
        known.learn(5, [need, 0], WIDTHS, 4)
        assert (known.id_words, known.ahead) == id_words
    assert known.shares(5, WIDTHS, 4) == shares
    known.learn(5, [5000, 7], WIDTHS, 4)
    assert known.shares(5, WIDTHS, 4).row_caps[0] > 5000
    assert known.shares(5, WIDTHS, 4).row_caps[1] > 7


def test_what_is_long_past_is_forgotten():
    known = SpeculativeQuota(1)
    known.learn(1, [100_000], [[16]], 4)
    for _ in range(flight._WINDOW - 1):
        known.learn(2, [1000], [[16]], 4)
    assert known.ahead > 100_000 * 16
    known.learn(2, [1000], [[16]], 4)
    assert 1000 * 16 < known.ahead < 1200 * 16
    large = known.shares(1, [[16]], 4)
    assert 16 * large.row_caps[0] <= known.ahead < 17 * large.row_caps[0]
    assert 4 * large.id_caps[0] <= 8 * known.id_words < 5 * large.id_caps[0]
    for kind in range(3, 3 + flight._MOST_KINDS):
        known.learn(kind, [10], [[16]], 4)
    assert known.shares(1, [[16]], 4).row_caps == (0,)


def test_all_ranks_learn_the_same_with_more_ranks_sending_less():
    alike = [SpeculativeQuota(3), SpeculativeQuota(3)]
    for needs in ([10**6], [10**5], [2 * 10**6]):
        for each in alike:
            each.learn(1, needs, [[512]], 4)
    assert alike[0].shares(1, [[512]], 4) == alike[1].shares(1, [[512]], 4)
    assert 0.9 * flight.AHEAD_BYTES < 3 * alike[0].ahead <= flight.AHEAD_BYTES
    assert alike[0].ahead % 16 == 0  # kernels move 16 bytes at a time


def test_a_pattern_fits_requests_for_the_same_tensors_alone():
    def source(num_rows):
        return DistributedRows(torch.zeros(num_rows, 3), num_rows, World(0, (0,)))

    one, other, small = source(7), source(7), source(5)
    ids, more = torch.tensor([1, 2]), torch.tensor([3])
    requests = [RowRequest(one, ids), RowRequest(other, ids), RowRequest(small, ids), RowRequest(one, more)]
    pattern = Pattern(requests)
    assert [group.members for group in pattern.groups] == [[0, 1], [2], [3]]
    assert pattern.fits(requests)
    assert pattern.fits([RowRequest(r.source, r.index + 1 if k == 3 else more) for k, r in enumerate(requests)])
    assert not pattern.fits(requests[:3])
    assert not pattern.fits([*requests[:3], RowRequest(one, ids)])
    assert not pattern.fits([RowRequest(other, ids), *requests[1:]])
    assert not pattern.fits([RowRequest(one, ids, name="x"), *requests[1:]])
    one.hot = HotRows.of(torch.tensor([6]), 7)
    assert not pattern.fits(requests)
    assert [group.members for group in Pattern(requests).groups] == [[0], [1], [2], [3]]


def group(repeated, count=10**6, width=512, ranks=2, num_rows=10**6):
    source = SimpleNamespace(world=World(0, (0,) * ranks), num_rows=num_rows)
    request = SimpleNamespace(source=source)
    return SimpleNamespace(request=request, count=count, widths=[width], ends=[repeated], deduplicate=None)


def looked_for(repeats, *groups):
    repeats.decide(7, groups)
    answer = [each.deduplicate for each in groups]
    repeats.learn(7, groups)
    return answer


def test_ids_that_come_again_are_looked_for_where_that_pays():
    repeats = Repeats()
    often, seldom = group(100_000), group(10_000)
    assert looked_for(repeats, often, seldom) == [True, True]
    answers = [looked_for(repeats, often, seldom) for _ in range(64)]
    assert all(first for first, _ in answers)
    assert [n for n, (_, second) in enumerate(answers) if second] == [31, 63]
    seldom.ends = [500_000]
    assert [looked_for(repeats, often, seldom)[1] for _ in range(33)][-2:] == [True, True]


def test_nothing_is_looked_for_where_nothing_is_sent_or_numbers_are_too_long():
    assert looked_for(Repeats(), group(10**5, ranks=1), group(10**5, num_rows=2**60)) == [False, False]
