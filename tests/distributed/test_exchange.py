"""Rows from other nodes: the same bits as indexing, one exchange for all tensors, errors on all ranks."""

import gc
import time
import weakref

import pytest
import torch
from exchanges import ENV, KINDS, make_exchange, raised, shard
from hypothesis import given, settings
from hypothesis import strategies as st

import manyhop
from manyhop import World
from manyhop.errors import FeatureError, RankError
from manyhop.features import RowRequest, gather
from manyhop.features.exchange.row_exchange import Status, compare_headers, make_headers
from manyhop.features.sources import HotRows, ShardedRows, Shards, servers

FOUR = [0, 0, 1, 1]


@given(st.integers(0, 1000), st.integers(1, 9))
def test_every_row_has_one_owner_and_nodes_have_as_many_rows(num_rows, num_nodes):
    shards = Shards(num_rows, num_nodes)
    parts = [shards.rows_of(node) for node in range(num_nodes)]
    assert [row for part in parts for row in part] == list(range(num_rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert shards.bounds == [*(part.start for part in parts), num_rows]


def test_ranks_of_a_node_are_asked_evenly():
    nodes = (0, 0, 0, 1, 1, 0)
    asked = [servers(World(rank, nodes))[1] for rank in (0, 1, 2, 5)]
    assert asked == [3, 4, 3, 4]
    assert servers(World(3, nodes)) == [0, 3]


class Caught:
    """A local of the caller, which the frames of an error would keep."""


def fail():
    caught = Caught()
    headers = make_headers(Status.FAILED, (0, 3), 7, "ValueError: bad label", [0, 0])
    with pytest.raises(RankError, match=r"failed: ValueError: bad label"):
        compare_headers("features", headers, 1, (0, 3))
    return weakref.ref(caught)


def test_an_error_keeps_no_frames_of_its_callers():
    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_shards_are_checked():
    world = World(1, (0, 1))
    with pytest.raises(FeatureError, match="the 3 rows of node 1 out of 5"):
        ShardedRows(torch.zeros(2, 4), 5, world)
    with pytest.raises(FeatureError, match="contiguous"):
        ShardedRows(torch.zeros(4, 3).t(), 6, world)


@settings(deadline=None)
@given(st.sets(st.integers(0, 299)), st.integers(300, 400))
def test_hot_rows_are_found(rows, num_rows):
    chosen = torch.tensor(sorted(rows), dtype=torch.int64)
    index = HotRows.of(chosen, num_rows)
    for number, row in enumerate(chosen.tolist()):
        word, before = index.groups[row // 64].tolist()
        assert word >> (row % 64) & 1
        assert before + (word & ((1 << row % 64) - 1)).bit_count() == number
    assert sum((word & (2**64 - 1)).bit_count() for word in index.groups[:, 0].tolist()) == len(rows) == index.count


def whole_tensors():
    draw = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(1003, 17, generator=draw),
        "y": torch.randint(-9, 9, (1003,), generator=draw, dtype=torch.int16),
        "flags": torch.randn(1003, 3, 5, generator=draw) < 0,
        "half": torch.randn(1003, 40, generator=draw).bfloat16(),
        "edge": torch.randn(77, 2, generator=draw).to(torch.complex64),
        "wide": torch.zeros(1003, 0),
    }


def gather_all(part_bytes):
    from manyhop.features.exchange import host

    host._PART_BYTES = host._PART_BYTES_FEW_CORES = part_bytes
    world = manyhop.init()
    whole, exchange = whole_tensors(), make_exchange("nodes")
    sources = {name: shard("nodes", tensor, world) for name, tensor in whole.items()}
    draw = torch.Generator().manual_seed(world.rank)
    for k, count in enumerate((0, 1, 500, 20_000 if world.rank == 1 else 0)):
        nodes = torch.randint(1003, (count,), generator=draw)
        edges = torch.randint(77, (count // 2,), generator=draw, dtype=torch.int32)
        requests = [RowRequest(s, edges if n == "edge" else nodes, name=n) for n, s in sources.items()]
        with torch.device("meta"):  # as if torch's default device were a GPU
            found = exchange.gather(requests, (3, k))
        for request, rows in zip(requests, found, strict=True):
            expected = whole[request.name][request.index.long()]
            assert rows.dtype == expected.dtype
            assert torch.equal(rows, expected), (request.name, k)
    exchange.close()
    return exchange.traffic.rows_received


@pytest.mark.parametrize("node_of", [[0, 1], FOUR, [0, 1, 1], [0, 1, 2]])
def test_any_rows_of_any_tensor(launcher, two_nodes, node_of):
    nodes = two_nodes if max(node_of) == 1 else ()
    received = launcher.run(gather_all, 5000, node_of=node_of, nodes=nodes)
    most = 1003 + 77  # each row of other nodes once per exchange
    assert received[1] > most / 2
    assert max(received) < 3 * most


def count_traffic():
    world = manyhop.init()
    x = torch.arange(100.0).view(100, 1)
    hot = {0: torch.tensor([60, 99]), 1: torch.tensor([0])}[world.node]
    rows, other = shard("nodes", x, world, hot), shard("nodes", -x, world, hot)
    other.hot = rows.hot
    ids = torch.tensor([60, 0, 60, 99, 70, 5, 70, 71])
    exchange = make_exchange("nodes")
    a, b = exchange.gather([RowRequest(rows, ids), RowRequest(other, ids)], (0, 0))
    assert torch.equal(a, x[ids])
    assert torch.equal(b, -x[ids])
    return exchange.traffic


def test_repeated_ids_travel_once_and_cached_ones_not_at_all(launcher):
    first, second = launcher.run(count_traffic, node_of=[0, 1])
    assert (first.rows_received, first.bytes_received, first.rows_cached) == (2, 2 * 8, 3)
    assert (second.rows_received, second.bytes_received, second.rows_cached) == (1, 8, 1)


def on_one_node():
    world = manyhop.init()
    x = torch.arange(10.0)
    return gather([(ShardedRows(x, 10, world), torch.tensor([world.rank, 9]))])[0].tolist()


def test_on_one_node_nothing_is_exchanged(launcher):
    assert launcher.run(on_one_node) == [[0, 9], [1, 9]]


# Both kinds: errors


def begin(kind, timeout=100.0):
    """This rank, an exchange, and a request of rows of both ranks."""
    world = manyhop.init()
    exchange = make_exchange(kind, timeout=timeout)
    return world.rank, exchange, RowRequest(shard(kind, torch.zeros(10, 1), world), torch.tensor([0, 9]), name="x")


def ask_out_of_range(kind):
    rank, exchange, request = begin(kind)
    wrong = RowRequest(request.source, torch.tensor([0, 9, 10 if rank == 1 else 3]), name="x")
    first = raised(exchange.gather, [wrong], (0, 0))
    exchange.begin()
    return first, len(exchange.gather([request], (1, 0))[0])  # the next epoch goes well


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_out_of_range_is_an_error_on_all_ranks(launcher, kind):
    (other, count), (own, count_1) = launcher.run(ask_out_of_range, kind, node_of=[0, 1], env=ENV)
    assert own[0] == "FeatureError"
    assert "in [0, 10) for x, got 10 (at position 2)" in own[1]
    assert (other[0], other[2]) == ("ExchangeEndedError", (1,))
    assert "rank 1 failed: " in other[1]
    assert count == count_1 == 2


def leave_or_fail(kind, failure):
    rank, exchange, request = begin(kind)
    exchange.gather([request], (0, 0))
    seen = exchange.end((0, 1), failure) if rank == 1 else raised(exchange.gather, [request], (0, 1))
    exchange.begin()
    exchange.gather([request], (1, 0))
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("failure", "text"), [("", "left the loop of epoch 0 after 1 batch"), ("oh", "failed: oh")])
def test_leaving_is_announced_and_the_next_epoch_goes_on(launcher, kind, failure, text):
    name, message, ranks, _ = launcher.run(leave_or_fail, kind, failure, node_of=[0, 1], env=ENV)[0]
    assert (name, ranks) == ("ExchangeEndedError", (1,))
    assert f"rank 1 {text}" in message


def be_out_of_step(kind, tag, name):
    rank, exchange, request = begin(kind)
    mine = ((0, 7), "x") if rank == 0 else (tag, name)
    request.name = mine[1]
    return raised(exchange.gather, [request], mine[0]), raised(exchange.gather, [request], (0, 9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tag", "name", "text"), [((0, 8), "x", "is at exchange 8 of epoch 0"), ((0, 7), "y", "asks for other tensors")]
)
def test_ranks_out_of_step_get_an_error(launcher, kind, tag, name, text):
    seen = launcher.run(be_out_of_step, kind, tag, name, node_of=[0, 1], env=ENV)
    assert [first[0] for first, _ in seen] == [again[0] for _, again in seen] == ["RankError"] * 2
    assert f"rank 1 {text}" in seen[0][0][1]


def lose_a_rank(timeout):
    rank, exchange, request = begin("nodes", timeout)
    exchange.gather([request], (0, 0))
    print("first", flush=True)
    if rank == 3:
        time.sleep(1000)
    seen = raised(exchange.gather, [request], (0, 1))
    again = raised(exchange.gather, [request], (0, 2))
    print("raised", flush=True)
    return seen, again


def test_a_rank_that_is_gone_or_late_is_named(launcher):
    gone, late = (launcher.start(lose_a_rank, timeout, node_of=FOUR) for timeout in (60.0, 6.0))
    for rank in range(4):
        gone.wait_for_output(rank, "first")
    time.sleep(0.3)  # the others wait for it, or are about to
    gone.kill(3)
    for rank in range(3):
        late.wait_for_output(rank, "raised")
    late.kill(3)
    for result in gone.wait()[:3] + late.wait()[:3]:
        (name, message, culprits, seconds), again = result.value
        assert (name, again[0]) == ("ExchangeLostError", "RankError")
        assert culprits == again[2] == (3,), message
        assert "exchange 1 of epoch 0: rank 3 did not come, or ended" in message
        assert seconds < 100  # torch waits for half an hour
        assert again[3] < 6, "it does not wait again"


def break_off():
    def fail(*args):
        raise MemoryError("none left")

    rank, exchange, request = begin("nodes", 60.0)
    if rank == 1:
        type(exchange)._take = fail
        with pytest.raises(MemoryError):
            exchange.gather([request], (0, 0))
    return raised(exchange.gather, [request], (0, rank))


def test_an_exchange_that_breaks_off_on_one_rank_ends_on_all(launcher):
    first, second = launcher.run(break_off, node_of=[0, 1])
    assert (first[0], second[0]) == ("ExchangeLostError", "RankError")
    assert "an exchange was broken off: MemoryError" in second[1]
    assert first[3] < 60, "before any timeout"
