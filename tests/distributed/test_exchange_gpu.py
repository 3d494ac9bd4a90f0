"""The exchange of GPUs: its kernels run on the CPU here, and gloo takes the place of NCCL."""

import itertools
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import manyhop
from manyhop.errors import CapacityError, FeatureError, RankError
from manyhop.features import RowRequest, Shards
from manyhop.features.sources import DistributedRows
from manyhop.ranks import control

ENV = {"TRITON_INTERPRET": "1"}
sys.path.insert(0, str(Path(__file__).parents[1]))  # also of ranks


def make_exchange(name="a test", timeout=100.0):
    import fast_interpreter  # noqa: F401

    from manyhop.features.exchange.gpu.exchange import GPUExchange

    return GPUExchange(name, timeout=timeout)


def shard(whole, world):
    """This rank's part of a tensor that all ranks know."""
    rows = Shards(len(whole), world.world_size).rows_of(world.rank)
    return DistributedRows(whole[rows.start : rows.stop].clone(), len(whole), world)


def tables(num_rows, seed=0):
    """Rows of 1 to 48 bytes, of several dtypes and shapes."""
    g = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2**15, (num_rows, 12), generator=g)
    return [
        bits.int(),
        bits[:, :3].short(),
        bits[:, :5].reshape(num_rows, 5).to(torch.uint8),
        bits[:, 0] > 2**14,
        bits[:, :4].reshape(num_rows, 2, 2).double(),
        bits[:, :6].to(torch.bfloat16),
    ]


def exchange_rows(num_rows, count, part_bytes, ahead_bytes=1 << 20, few_bytes=1 << 20):
    from manyhop.features.exchange.gpu import quota, transfer

    transfer.PART_BYTES, quota.AHEAD_BYTES, transfer._FEW_BYTES = part_bytes, ahead_bytes, few_bytes
    world = manyhop.init()
    exchange = make_exchange()
    right = []
    for number, dtype in enumerate([torch.int64, torch.int32, torch.int32, torch.int64]):
        count *= 1 + number // 3  # the last exchange wants more than those before
        g = torch.Generator().manual_seed(10 * number + world.rank)
        whole, other = tables(num_rows), tables(7)[0]
        ids = torch.randint(0, num_rows, (count * (world.rank + 1),), generator=g).to(dtype)
        few = torch.tensor([6, 0, 6, 3], dtype=dtype)[: world.rank + 2]
        requests = [RowRequest(shard(each, world), ids) for each in whole]
        requests.insert(3, RowRequest(shard(other, world), few, name="the other"))
        got = exchange.gather(requests, (0, number))
        expected = [each[ids.long()] for each in whole]
        expected.insert(3, other[few.long()])
        right.append(all(map(torch.equal, got, expected)))
    begin, end = shard(whole[0], world).shards.bounds[world.rank : world.rank + 2]
    wanted = np.unique(ids[(ids < begin) | (ids >= end)].numpy())
    exchange.close()
    return all(right), exchange.traffic.rows_received, len(wanted)


def exchange_and_name_modules():
    right, _, _ = exchange_rows(60, 120, 1000)
    return right, sorted(name for name in sys.modules if "cpu_kernels" in name or name.endswith("numba_kernels"))


@pytest.mark.slow
def test_no_kernel_for_cpus_is_loaded(launcher):
    assert launcher.run(exchange_and_name_modules, world_size=2, env=ENV, fresh=True) == [(True, [])] * 2


@pytest.mark.parametrize("world_size", [2, 3])
def test_rows_of_other_ranks_come(launcher, world_size):
    for right, received, wanted in launcher.run(exchange_rows, 60, 120, 1000, world_size=world_size, env=ENV):
        assert right
        assert received >= wanted > 20


@pytest.mark.parametrize(("ahead_bytes", "few_bytes"), [(0, 0), (500, 0), (500, 1 << 20)])
def test_rows_come_ahead_and_later(launcher, ahead_bytes, few_bytes):
    got = launcher.run(exchange_rows, 500, 100, 2000, ahead_bytes, few_bytes, env=ENV)
    assert all(right and received >= wanted > 20 for right, received, wanted in got)


def test_more_ranks_than_rows(launcher):
    assert all(right for right, *_ in launcher.run(exchange_rows, 2, 30, 1 << 20, world_size=3, env=ENV))


def count_rows():
    world = manyhop.init()
    exchange = make_exchange()
    whole = torch.arange(40.0).view(20, 2)
    ids = torch.tensor([0, 19, 0, 19, 19, 10, 9, 0])
    got = exchange.gather([RowRequest(shard(whole, world), ids)], (0, 0))
    return torch.equal(got[0], whole[ids]), exchange.traffic.rows_received, exchange.traffic.bytes_received


def test_an_id_of_another_rank_is_asked_for_once(launcher):
    assert launcher.run(count_rows, env=ENV) == [(True, 2, 16), (True, 2, 16)]


def ask_by_many_indices():
    from manyhop.features.exchange.gpu import exchange as module

    module.MOST_GROUPS = 2  # of an exchange
    world = manyhop.init()
    exchange = make_exchange()
    whole = torch.arange(40.0).view(20, 2)
    indices = [torch.randint(0, 20, (n,)) for n in (3, 7, 4)]
    got = exchange.gather([RowRequest(shard(whole, world), ids) for ids in indices], (0, 0))
    return all(torch.equal(rows, whole[ids]) for rows, ids in zip(got, indices, strict=True))


def test_more_indices_than_a_header_has_room_for(launcher):
    assert launcher.run(ask_by_many_indices, env=ENV) == [True, True]


def keep_rows():
    world = manyhop.init()
    exchange = make_exchange()
    whole, labels = torch.arange(600.0).view(300, 2), torch.arange(300, dtype=torch.int16)
    sources = [shard(whole, world), shard(labels, world)]
    hot = torch.tensor([150, 151, 213, 214, 299] if world.rank == 0 else [])
    exchange.keep([(sources, hot.long())])
    exchange.traffic.rows_received = 0
    ids = torch.tensor([299, 299, 0, 149, 150, 152, 214, 213, 152, 63])
    got = exchange.gather([RowRequest(source, ids) for source in sources], (0, 0))
    right = torch.equal(got[0], whole[ids]) and torch.equal(got[1], labels[ids])
    return right, exchange.traffic.rows_received, exchange.traffic.rows_cached


def test_rows_that_are_kept_are_not_asked_for(launcher):
    assert launcher.run(keep_rows, env=ENV) == [(True, 1, 5), (True, 3, 0)]


def keep_too_many_rows():
    from manyhop.features.exchange.gpu import exchange as module

    def require_gpu_memory(needed, device):
        if manyhop.init().rank == 1:
            raise CapacityError("a cache needs more")

    module.require_gpu_memory = require_gpu_memory
    exchange = make_exchange()
    return raised(exchange.keep, [([shard(torch.zeros(300, 2), manyhop.init())], torch.tensor([3, 200]))])


def test_a_rank_without_memory_for_its_cache_notifies_the_others(launcher):
    first, second = launcher.run(keep_too_many_rows, env=ENV)
    assert (first[0], first[2]) == ("ExchangeEndedError", (1,))
    assert "rank 1 failed: CapacityError: a cache needs more" in first[1]
    assert first[3] < 10.0
    assert second[:2] == ("CapacityError", "a cache needs more")


def share_an_index_on_one_rank():
    world = manyhop.init()
    exchange = make_exchange()
    one = torch.tensor([0, 19])
    other = one if world.rank == 0 else one.clone()
    rows = shard(torch.arange(40.0).view(20, 2), world)
    return raised(exchange.gather, [RowRequest(rows, one), RowRequest(rows, other)], (0, 0))


def test_ranks_share_indices_between_tensors_in_the_same_way(launcher):
    for message in launcher.run(share_an_index_on_one_rank, env=ENV):
        assert message[0] == "RankError"
        assert "asks for other tensors, or by other indices" in message[1]


def ask_for_nothing():
    world = manyhop.init()
    exchange = make_exchange()
    whole = torch.arange(40.0).view(20, 2)
    ids = torch.arange(20 if world.rank == 0 else 0)
    return torch.equal(exchange.gather([RowRequest(shard(whole, world), ids)], (0, 0))[0], whole[ids])


def test_a_rank_may_ask_for_nothing(launcher):
    assert launcher.run(ask_for_nothing, env=ENV) == [True, True]


def test_a_process_alone_needs_no_group(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    whole = torch.arange(40.0).view(20, 2)
    world = manyhop.init()
    exchange = make_exchange()
    ids = torch.tensor([3, 3, 19, 0])
    rows = exchange.gather([RowRequest(shard(whole, world), ids)], (0, 0))[0]
    exchange.end((0, 1))
    manyhop.shutdown()
    assert torch.equal(rows, whole[ids])


def raised(function, *args):
    start = time.monotonic()
    try:
        function(*args)
    except (CapacityError, FeatureError, RankError) as error:
        return type(error).__name__, str(error), getattr(error, "ranks", None), time.monotonic() - start
    return None


def ask_for_too_much():
    world = manyhop.init()
    exchange = make_exchange()
    rows = shard(torch.zeros(10, 1), world)
    ids = torch.tensor([0, 9, 10 if world.rank == 1 else 3])
    bad = raised(exchange.gather, [RowRequest(rows, ids, name="x")], (0, 0))
    exchange.begin()
    again = exchange.gather([RowRequest(rows, torch.tensor([0, 9]))], (1, 0))
    return bad, again[0].numel()


def test_a_bad_id_is_named_and_the_other_ranks_hear_of_it(launcher):
    first, second = launcher.run(ask_for_too_much, env=ENV)
    assert second[0][:2] == ("FeatureError", second[0][1])
    assert "in [0, 10) for x, got 10 (at position 2)" in second[0][1]
    assert first[0][0] == "ExchangeEndedError"
    assert "rank 1 failed: FeatureError: a row number is out of range" in first[0][1]
    assert (first[1], second[1]) == (2, 2)


def leave_or_fail(failure):
    world = manyhop.init()
    exchange = make_exchange()
    request = RowRequest(shard(torch.zeros(10, 1), world), torch.tensor([0, 9]))
    exchange.gather([request], (0, 0))
    if world.rank == 1:
        exchange.end((0, 1), failure)
        message = None
    else:
        message = raised(exchange.gather, [request], (0, 1))
    exchange.begin()
    exchange.gather([request], (1, 0))
    return message


@pytest.mark.parametrize(("failure", "text"), [("", "left the loop of epoch 0 after 1 batches"), ("oh", "failed: oh")])
def test_leaving_is_announced_and_the_next_epoch_goes_on(launcher, failure, text):
    first, _ = launcher.run(leave_or_fail, failure, env=ENV)
    assert f"rank 1 {text}" in first[1]
    assert first[2] == (1,)


def ask_out_of_step():
    world = manyhop.init()
    exchange = make_exchange()
    request = RowRequest(shard(torch.zeros(10, 1), world), torch.tensor([0, 9]))
    return raised(exchange.gather, [request], (0, world.rank)), raised(exchange.gather, [request], (0, 2))


def test_ranks_out_of_step_raise(launcher):
    for first, again in launcher.run(ask_out_of_step, env=ENV):
        assert "at exchange" in first[1]
        assert first[:2] == again[:2]


def use_a_stream(exchange, number):
    """Have the exchange follow a stream, as on a GPU; every rank has its own ones."""
    device, exchange._device = exchange._device, torch.device("cuda", 0)
    torch._C._cuda_getCurrentStream = lambda index: (number, index, 1)
    torch.cuda.current_stream = lambda device: SimpleNamespace(wait_event=lambda event: None)
    exchange._begin_in_order()
    exchange._device = device


def stay_away():
    world = manyhop.init()
    exchange = make_exchange(timeout=8.0)
    use_a_stream(exchange, world.rank)
    request = RowRequest(shard(torch.zeros(10, 1), world), torch.tensor([0, 9]))
    if world.rank == 1:
        control.exchange("ready", {}, timeout=200.0)  # the other two begin to wait within two seconds of each other
        while control.store().add("raised", 0) < 2:
            time.sleep(0.05)
        return None
    control.exchange("ready", {}, timeout=200.0)
    error = raised(exchange.gather, [request], (0, 0))
    control.store().add("raised", 1)
    return error


def test_only_the_rank_that_does_not_come_is_named(launcher):
    for kind, message, ranks, seconds in launcher.run(stay_away, world_size=3, env=ENV)[::2]:
        assert (kind, ranks) == ("ExchangeLostError", (1,))
        assert "exchange 0 of epoch 0: rank 1 did not come" in message
        assert seconds < 100


@pytest.mark.parametrize("counts", [[[5], [0], [3]], [[0, 7], [2, 2], [0, 0]], [[3, 4], [0, 1], [6, 0]]])
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("done", [[0, 0], [2, 1]])
def test_parts_have_all_rows_once_and_do_not_overlap(counts, parts, done):
    from manyhop.features.exchange.requested import lay_out

    widths = [[3, 16], [8]][: len(counts[0])]
    seen = set()
    for k in range(parts):
        pieces, sizes = lay_out(counts, done[: len(widths)], widths, k, parts)
        ends = [(p.offset, p.offset + (p.end - p.begin) * widths[p.group][p.table]) for p in pieces]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
        assert all(offset % 16 == 0 for offset, _ in ends)
        begins = [0, *itertools.accumulate(sizes)]
        assert all(
            begins[p.rank] <= begin and end <= begins[p.rank + 1] for p, (begin, end) in zip(pieces, ends, strict=True)
        )
        rows = [(p.rank, p.group, p.table, row) for p in pieces for row in range(p.begin, p.end)]
        assert seen.isdisjoint(rows)
        seen.update(rows)
    assert seen == {
        (rank, g, t, row)
        for rank, of_rank in enumerate(counts)
        for g, count in enumerate(of_rank)
        for t in range(len(widths[g]))
        for row in range(done[g], count)
    }
