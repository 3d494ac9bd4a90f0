"""Simulated ranks: what the model says where all are equal, and what it cannot say where they are not."""

import dataclasses

import numpy as np
import pytest

from manyhop.costs import H200, BatchSizes, Cluster, Machine, Workload, requests_by_part, simulate
from manyhop.errors import InputError

SIZES = BatchSizes(fanouts=(4,), nodes=(8.0, 24.0), edges=(24.0,), hits=(0,) * 7 + (1,), source="")
WORK = Workload(sizes=SIZES, batch_size=8, num_seeds=64, row_bytes=1000, features=250, step_s=1e-6)
EVEN = np.full((5, 8), 4)
"""Requests of batches of 32 nodes: as many of each part."""
SLOW_NETWORK = Machine(name="", gpu=H200.gpu, network=1e6, message_s=1e-3)
CLUSTER = Cluster(num_nodes=4, gpus_per_node=2, features="distributed")


def test_requests_are_counted_by_owner():
    random = np.random.default_rng(0)
    batches = [random.choice(103, 40, replace=False) for _ in range(3)]
    owner = np.array([next(p for p in range(8) if row < 103 * (p + 1) // 8) for row in range(103)])
    hot = random.random(103) < 0.3
    for kept in (None, hot):
        found = requests_by_part(batches, 103, 8, hot=kept)
        rows = [ids if kept is None else ids[~kept[ids]] for ids in batches]
        assert found.tolist() == [np.bincount(owner[ids], minlength=8).tolist() for ids in rows]
    assert requests_by_part([], 103, 8).shape == (0, 8)


@pytest.mark.parametrize("machine", [H200, SLOW_NETWORK])
def test_equal_ranks_are_the_model(machine):
    found = simulate(EVEN, WORK, CLUSTER, machine)
    exchange = max(found.predicted.loading["network"], found.predicted.loading["nvlink"])
    assert found.exchange_s == pytest.approx(exchange)
    assert found.received_skew == found.sent_skew == pytest.approx(1)
    assert found.step_s == pytest.approx(found.predicted.step_s, rel=0.02)


def test_what_one_rank_has_to_send_decides():
    """All rows belong to rank 0: the others of three nodes wait for its network."""
    one = np.zeros((5, 8), np.int64)
    one[:, 0] = 32
    found = simulate(one, WORK, CLUSTER, SLOW_NETWORK)
    assert found.exchange_s == pytest.approx(6 * 32 * 1000 / 1e6 + 6 * 1e-3)
    assert found.sent_skew == pytest.approx(8)
    assert found.step_s == pytest.approx(found.exchange_s, rel=0.01)
    assert found.step_s > 5 * found.predicted.step_s
    coarse = simulate(one[:, :2], WORK, Cluster(num_nodes=2, features="distributed"), SLOW_NETWORK)
    assert coarse.exchange_s == pytest.approx(32 * 1000 / 1e6 + 1e-3)


def test_ranks_take_batches_of_their_own():
    """Rank 0's batches are the only ones that request rows of others: all of rank 1's."""
    requests, homes = np.zeros((16, 8), np.int64), np.arange(16) % 8
    requests[np.arange(16), homes] = 32
    requests[homes == 0, 1] = 32
    found = simulate(requests, WORK, CLUSTER, SLOW_NETWORK, homes=homes)
    assert found.exchange_s == pytest.approx(32 * 1000 / H200.gpu_costs().peer + 6 * 1e-3)
    assert found.received_skew == found.sent_skew == pytest.approx(8)


def test_a_slow_host_and_hosts_that_vary():
    slow = simulate(EVEN, WORK, CLUSTER, H200, slow={3: 1.5})
    even = simulate(EVEN, WORK, CLUSTER, H200)
    assert slow.step_s == pytest.approx(1.5 * even.predicted.training["host"], rel=0.02)
    varying = simulate(EVEN, WORK, CLUSTER, H200, jitter=0.2, seed=1)
    assert even.step_s < varying.step_s < 1.3 * even.step_s
    assert varying == simulate(EVEN, WORK, CLUSTER, H200, jitter=0.2, seed=1)


def test_nothing_is_exchanged_where_rows_are_on_all_gpus():
    found = simulate(EVEN, WORK, dataclasses.replace(CLUSTER, features="device"), SLOW_NETWORK)
    assert found.exchange_s == 0
    assert found.received_skew == 1


@pytest.mark.parametrize(
    ("requests", "options", "message"),
    [
        (EVEN[:, :6], {}, "a multiple of 8 parts"),
        (EVEN[:0], {}, "a multiple of 8 parts"),
        (EVEN, {"jitter": -1.0}, "jitter of at least 0"),
        (EVEN, {"steps": 7}, "at least 8 steps"),
        (EVEN, {"slow": {8: 2.0}}, "slow ranks from 0 to 7"),
        (EVEN, {"homes": np.arange(5)}, "a batch of each of 8 ranks, got some of 5"),
    ],
)
def test_wrong_arguments(requests, options, message):
    with pytest.raises(InputError, match=message):
        simulate(requests, WORK, CLUSTER, H200, **options)
