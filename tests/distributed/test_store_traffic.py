"""What ranks ask of their store grows with their number, not with its square: counted for up to 512 of them."""

import threading
import time

import pytest
from counting_store import CountingStore

from manyhop import World
from manyhop.errors import RankError
from manyhop.ranks import control, world
from manyhop.ranks.control import FactExchange
from manyhop.ranks.watch import monitor
from manyhop.ranks.watch.detector import Heartbeat


def exchange_among(num_ranks, facts_of, missing=(), timeout=60.0):
    """One exchange of facts; a thread stands for each rank but those that are missing, which come when all have ended.

    What each has got, the store, and the seconds.
    """
    store, got = CountingStore(), [None] * num_ranks
    together = threading.Barrier(num_ranks - len(missing))  # threads start slowly where others use the machine

    def take_part(rank, late=False):
        exchange = FactExchange(rank, num_ranks, store)
        if not late:
            together.wait()
        try:
            got[rank] = exchange("a loader", facts_of(rank), timeout=timeout)
        except RankError as error:
            got[rank] = error

    threads = [threading.Thread(target=take_part, args=(r,)) for r in range(num_ranks) if r not in missing]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in missing:
        take_part(rank, late=True)
    return got, store, time.monotonic() - begin


@pytest.mark.parametrize("num_ranks", [2, 64, 512])
def test_an_exchange_takes_a_few_operations_per_rank(num_ranks):
    expected = [{"edges": "checksum 1a2b", "node": f"node {rank // 8}"} for rank in range(num_ranks)]
    got, store, seconds = exchange_among(num_ranks, expected.__getitem__)
    assert got == [expected] * num_ranks
    checks = store.operations.pop("check")
    assert store.operations == {"set": num_ranks + 1, "add": num_ranks + 1, "get": num_ranks, "multi_get": 1}
    assert store.keys["multi_get"] == num_ranks
    assert checks <= 12 * num_ranks + 2000 * seconds  # pauses grow, and are longer where there are more ranks


def test_equal_facts_travel_once():
    facts = {"edges": "checksum 1a2b" * 100}
    _, store, _ = exchange_among(64, lambda rank: facts)
    packed = next(value for key, value in store.values.items() if key.endswith("/all"))
    assert len(packed) < 2 * len(str(facts))


def test_missing_ranks_are_found_with_few_operations():
    got, store, _ = exchange_among(512, lambda rank: {}, missing=(0, 77, 300), timeout=5.0)
    for rank, error in enumerate(got):
        assert error.ranks == (0, 77, 300)
        assert ("This rank arrived later" in str(error)) == (rank in error.ranks)  # and fails as well
    assert store.operations["check"] <= 512 * 80


@pytest.mark.parametrize("num_ranks", [8, 64, 512])
def test_heartbeats(monkeypatch, num_ranks):
    store = CountingStore()
    monkeypatch.setattr(control, "store", lambda: store)
    monkeypatch.setattr(world, "current", lambda: World(0, tuple(rank // 8 for rank in range(num_ranks))))
    monkeypatch.setattr(monitor.threading.Thread, "start", lambda thread: None)
    one = monitor.Monitor()
    one.add("a loader", timeout=600.0)
    for rank in range(1, num_ranks):
        store.set(f"watch/{rank}", Heartbeat().encode())
    one._exchange(1.0)  # finds the others
    store.operations.clear()
    store.keys.clear()
    one._exchange(1.0)
    assert store.operations == {"set": 1, "multi_get": 1}
    per_second = num_ranks * sum(store.keys.values()) / one._interval
    assert per_second <= 110 * num_ranks
