"""The exchange of GPUs: its kernels run on the CPU here, and gloo takes the place of NCCL."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exchanges import ENV, make_exchange, raised, shard

import manyhop
from manyhop.errors import CapacityError
from manyhop.features import RowRequest
from manyhop.ranks import control


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
    from manyhop.features.exchange.gpu import flight, transfer

    transfer.PART_BYTES, flight.AHEAD_BYTES, transfer._FEW_BYTES = part_bytes, ahead_bytes, few_bytes
    world = manyhop.init()
    with torch.device("meta"):  # as if torch's default device were a GPU
        exchange = make_exchange("GPUs")
    right = []
    for number, dtype in enumerate([torch.int64, torch.int32, torch.int32, torch.int64]):
        count *= 1 + number // 3  # the last exchange wants more than those before
        g = torch.Generator().manual_seed(10 * number + world.rank)
        whole, other = tables(num_rows), tables(7)[0]
        ids = torch.randint(0, num_rows, (count * (world.rank + 1),), generator=g).to(dtype)
        few = torch.tensor([6, 0, 6, 3], dtype=dtype)[: world.rank + 2]
        requests = [RowRequest(shard("GPUs", each, world), ids) for each in whole]
        requests.insert(3, RowRequest(shard("GPUs", other, world), few, name="the other"))
        with torch.device("meta"):
            got = exchange.gather(requests, (0, number))
        expected = [each[ids.long()] for each in whole]
        expected.insert(3, other[few.long()])
        right.append(all(map(torch.equal, got, expected)))
    begin, end = shard("GPUs", whole[0], world).shards.bounds[world.rank : world.rank + 2]
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
    exchange = make_exchange("GPUs")
    whole = torch.arange(40.0).view(20, 2)
    ids = torch.tensor([0, 19, 0, 19, 19, 10, 9, 0])
    got = exchange.gather([RowRequest(shard("GPUs", whole, world), ids)], (0, 0))
    return torch.equal(got[0], whole[ids]), exchange.traffic.rows_received, exchange.traffic.bytes_received


def ask_by_many_indices(most_groups):
    from manyhop.features.exchange.gpu import exchange as module

    module.MOST_GROUPS = most_groups  # of an exchange
    world = manyhop.init()
    exchange = make_exchange("GPUs")
    whole = torch.arange(40.0).view(20, 2)
    indices = [torch.randint(0, 20, (n,)) for n in (3, 7, 4 * world.rank)]
    got = exchange.gather([RowRequest(shard("GPUs", whole, world), ids) for ids in indices], (0, 0))
    return all(torch.equal(rows, whole[ids]) for rows, ids in zip(got, indices, strict=True))


def keep_rows():
    world = manyhop.init()
    exchange = make_exchange("GPUs")
    whole, labels = torch.arange(600.0).view(300, 2), torch.arange(300, dtype=torch.int16)
    sources = [shard("GPUs", whole, world), shard("GPUs", labels, world)]
    hot = torch.tensor([150, 151, 213, 214, 299] if world.rank == 0 else [])
    exchange.keep([(sources, hot.long())])
    exchange.traffic.rows_received = 0
    ids = torch.tensor([299, 299, 0, 149, 150, 152, 214, 213, 152, 63])
    got = exchange.gather([RowRequest(source, ids) for source in sources], (0, 0))
    right = torch.equal(got[0], whole[ids]) and torch.equal(got[1], labels[ids])
    return right, exchange.traffic.rows_received, exchange.traffic.rows_cached


def exchange_few_rows():
    return count_rows(), keep_rows(), ask_by_many_indices(2)


def test_rows_travel_once_and_rows_that_are_kept_not_at_all(launcher):
    (once, kept, _), (once_1, kept_1, _) = ranks = launcher.run(exchange_few_rows, env=ENV)
    assert once == once_1 == (True, 2, 16)  # an id of another rank is asked for once
    assert (kept, kept_1) == ((True, 1, 5), (True, 3, 0))
    assert all(right for *_, right in ranks)  # more indices than a header has room for; a rank asks for nothing by one


def keep_too_many_rows():
    from manyhop.features.exchange.gpu import exchange as module

    def require_gpu_memory(needed, device):
        if manyhop.init().rank == 1:
            raise CapacityError("a cache needs more")

    module.require_gpu_memory = require_gpu_memory
    exchange = make_exchange("GPUs")
    return raised(exchange.keep, [([shard("GPUs", torch.zeros(300, 2), manyhop.init())], torch.tensor([3, 200]))])


def test_a_rank_without_memory_for_its_cache_notifies_the_others(launcher):
    first, second = launcher.run(keep_too_many_rows, env=ENV)
    assert (first[0], first[2]) == ("ExchangeEndedError", (1,))
    assert "rank 1 failed: CapacityError: a cache needs more" in first[1]
    assert first[3] < 10.0
    assert second[:2] == ("CapacityError", "a cache needs more")


def share_an_index_on_one_rank():
    world = manyhop.init()
    exchange = make_exchange("GPUs")
    one = torch.tensor([0, 19])
    other = one if world.rank == 0 else one.clone()
    rows = shard("GPUs", torch.arange(40.0).view(20, 2), world)
    return raised(exchange.gather, [RowRequest(rows, one), RowRequest(rows, other)], (0, 0))


def test_ranks_share_indices_between_tensors_in_the_same_way(launcher):
    for message in launcher.run(share_an_index_on_one_rank, env=ENV):
        assert message[0] == "RankError"
        assert "asks for other tensors, or by other indices" in message[1]


def test_a_process_alone_needs_no_group(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    whole = torch.arange(40.0).view(20, 2)
    world = manyhop.init()
    exchange = make_exchange("GPUs")
    ids = torch.tensor([3, 3, 19, 0])
    rows = exchange.gather([RowRequest(shard("GPUs", whole, world), ids)], (0, 0))[0]
    exchange.end((0, 1))
    manyhop.shutdown()
    assert torch.equal(rows, whole[ids])


def use_a_stream(exchange, number):
    """Have the exchange follow a stream, as on a GPU; every rank has its own ones."""
    device, exchange._device = exchange._device, torch.device("cuda", 0)
    stream, recorded = SimpleNamespace(wait_event=lambda event: None), []
    torch._C._cuda_getCurrentStream = lambda index: (number, index, 1)
    torch.cuda.current_stream = lambda device: stream
    exchange._flight.record_stream = recorded.append
    for _ in range(2):
        exchange._begin_in_order()
    assert recorded == [stream]  # the memory of an exchange outlives its uses there
    exchange._device = device


def stay_away():
    world = manyhop.init()
    exchange = make_exchange("GPUs", timeout=6.0)
    use_a_stream(exchange, world.rank)
    request = RowRequest(shard("GPUs", torch.zeros(10, 1), world), torch.tensor([0, 9]))
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
