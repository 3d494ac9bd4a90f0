"""Rows from other nodes: the same bits as indexing, one exchange for all tensors, errors on all ranks."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import manyhop
from manyhop import World
from manyhop.errors import FeatureError, RankError
from manyhop.features import BufferPool, RowRequest, gather
from manyhop.features.exchange.host import Exchange
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


def shard(tensor, world, hot=None):
    mine = Shards(len(tensor), world.num_nodes).rows_of(world.node)
    rows = ShardedRows(tensor[mine.start : mine.stop].clone(), len(tensor), world)
    if hot is not None:
        rows.hot, rows.hot_rows = HotRows.of(hot, len(tensor)), tensor[hot]
    return rows


def gather_all(part_bytes):
    from manyhop.features.exchange import host

    host._PART_BYTES = host._PART_BYTES_FEW_CORES = part_bytes
    world = manyhop.init()
    whole, exchange, pool = whole_tensors(), Exchange("a test", timeout=100), BufferPool()
    sources = {name: shard(tensor, world) for name, tensor in whole.items()}
    draw = torch.Generator().manual_seed(world.rank)
    for k, count in enumerate((0, 1, 500, 20_000 if world.rank == 1 else 0)):
        nodes = torch.randint(1003, (count,), generator=draw)
        edges = torch.randint(77, (count // 2,), generator=draw, dtype=torch.int32)
        requests = [RowRequest(s, edges if n == "edge" else nodes, name=n) for n, s in sources.items()]
        for request, rows in zip(requests, exchange.gather(requests, (3, k), pool=pool), strict=True):
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
    rows, other = shard(x, world, hot), shard(-x, world, hot)
    other.hot = rows.hot
    ids = torch.tensor([60, 0, 60, 99, 70, 5, 70, 71])
    exchange = Exchange("a test", timeout=100)
    a, b = exchange.gather([RowRequest(rows, ids), RowRequest(other, ids)], (0, 0), pool=BufferPool())
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


def raised(call, *args, **kwargs):
    began = time.monotonic()
    try:
        call(*args, **kwargs)
    except (RankError, FeatureError) as error:
        return type(error).__name__, str(error), getattr(error, "ranks", None), time.monotonic() - began
    return None


def ask_out_of_range():
    world = manyhop.init()
    rows, exchange = shard(torch.zeros(10, 1), world), Exchange("a test", timeout=100)
    ids = torch.tensor([3, 10] if world.rank == 2 else [9])
    first = raised(exchange.gather, [RowRequest(rows, ids, name="x")], (0, 0), pool=BufferPool())
    exchange.begin()
    exchange.gather([RowRequest(rows, torch.tensor([9, 0]))], (1, 0), pool=BufferPool())  # the next epoch goes well
    return first


def test_an_id_out_of_range_is_an_error_on_all_ranks(launcher):
    seen = launcher.run(ask_out_of_range, node_of=FOUR)
    assert seen[2][0] == "FeatureError"
    for rank in (0, 1, 3):
        assert seen[rank][0] == "ExchangeEndedError"
        assert seen[rank][2] == (2,)
        assert "rank 2 failed: Expected indices in [0, 10) for x, got 10 (at position 1)" in seen[rank][1]


def leave_early():
    world = manyhop.init()
    rows, exchange = shard(torch.zeros(10, 1), world), Exchange("a test", timeout=100)
    request = RowRequest(rows, torch.tensor([0, 9]))
    exchange.gather([request], (0, 0), pool=BufferPool())
    seen = None
    if world.rank == 1:
        exchange.end((0, 1))
    else:
        seen = raised(exchange.gather, [request], (0, 1), pool=BufferPool())
    exchange.begin()
    exchange.gather([request], (1, 0), pool=BufferPool())
    return seen


def test_a_rank_that_leaves_is_named(launcher):
    name, message, ranks, _ = launcher.run(leave_early, node_of=[0, 1])[0]
    assert (name, ranks) == ("ExchangeEndedError", (1,))
    assert "rank 1 left the loop of epoch 0 after 1 batches" in message


def be_out_of_step(tag, name):
    world = manyhop.init()
    rows, exchange = shard(torch.zeros(10, 1), world), Exchange("a test", timeout=100)
    mine = (tag, name) if world.rank == 1 else ((0, 7), "x")
    return raised(exchange.gather, [RowRequest(rows, torch.tensor([9]), name=mine[1])], mine[0], pool=BufferPool())


@pytest.mark.parametrize(
    ("tag", "name", "text"), [((0, 8), "x", "is at exchange 8 of epoch 0"), ((0, 7), "y", "asks for other tensors")]
)
def test_ranks_out_of_step_get_an_error(launcher, tag, name, text):
    seen = launcher.run(be_out_of_step, tag, name, node_of=[0, 1])
    assert [s[0] for s in seen] == ["RankError"] * 2
    assert f"rank 1 {text}" in seen[0][1]


def lose_a_rank():
    world = manyhop.init()
    rows, exchange = shard(torch.zeros(10, 1), world), Exchange("a test", timeout=8)
    request = RowRequest(rows, torch.tensor([0, 9]))
    exchange.gather([request], (0, 0), pool=BufferPool())
    print("first", flush=True)
    if world.rank == 3:
        time.sleep(1000)
    seen = raised(exchange.gather, [request], (0, 1), pool=BufferPool())
    again = raised(exchange.gather, [request], (0, 2), pool=BufferPool())
    print("raised", flush=True)
    return seen, again


@pytest.mark.parametrize("how", ["killed", "late"])
def test_a_rank_that_is_gone_or_late_is_named(launcher, how):
    ranks = launcher.start(lose_a_rank, node_of=FOUR)
    for rank in range(4):
        ranks.wait_for_output(rank, "first")
    if how == "killed":
        time.sleep(0.3)  # the others wait for it, or are about to
        ranks.kill(3)
    else:
        for rank in range(3):
            ranks.wait_for_output(rank, "raised")
        ranks.kill(3)
    results = ranks.wait()
    for rank in range(3):
        (name, message, culprits, seconds), again = results[rank].value
        assert (name, again[0]) == ("ExchangeLostError", "RankError")
        assert culprits == again[2] == (3,), message
        assert "exchange 1 of epoch 0: rank 3 did not come, or ended" in message
        assert seconds < 100  # torch waits for half an hour
        assert again[3] < 8, "it does not wait again"


def break_off():
    def fail(*args):
        raise MemoryError("none left")

    world = manyhop.init()
    rows, exchange = shard(torch.zeros(10, 1), world), Exchange("a test", timeout=60)
    request = RowRequest(rows, torch.tensor([0, 9]))
    if world.rank == 1:
        Exchange._take = fail
        with pytest.raises(MemoryError):
            exchange.gather([request], (0, 0), pool=BufferPool())
        return raised(exchange.gather, [request], (0, 1), pool=BufferPool())
    return raised(exchange.gather, [request], (0, 0), pool=BufferPool())


def test_an_exchange_that_breaks_off_on_one_rank_ends_on_all(launcher):
    first, second = launcher.run(break_off, node_of=[0, 1])
    assert (first[0], second[0]) == ("ExchangeLostError", "RankError")
    assert "an exchange was broken off: MemoryError" in second[1]
    assert first[3] < 60, "before any timeout"
