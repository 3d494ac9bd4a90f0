"""Threads exchange rows in the order of their batches, or not at all."""

import threading
import time

import pytest

from manyhop.errors import InputError
from manyhop.features import Traffic
from manyhop.loading.lockstep import EpochExchanges, SectionEndedError


class Exchange:
    """Plays the part of an exchange; returns the number of the batch for its rows."""

    def __init__(self):
        self.left, self.traffic, self.body = [], Traffic(), lambda: None

    def gather(self, requests, tag, pool):
        self.body()
        return tag[1]

    def end(self, tag, text=""):
        self.left.append((tag[1], text))

    def begin(self): ...
    def rest(self): ...
    def release(self): ...


@pytest.fixture
def exchange():
    return Exchange()


def go(steps, number, seen):
    def run():
        try:
            seen.append(steps.gather(number, [], None))
        except Exception as error:
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_turns_come_in_order_one_at_a_time(exchange):
    seen, inside, most = [], [], []
    steps = EpochExchanges(exchange, 0, 5)

    def body():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()

    exchange.body = body
    for thread in [go(steps, number, seen) for number in (3, 1, 4, 0, 2)]:
        thread.join(60)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert most == [1] * 5
    steps.close()
    assert exchange.left == []


def test_a_second_exchange_of_a_batch_is_refused_once_the_first_is_through(exchange):
    steps, seen, began, release = EpochExchanges(exchange, 0, 2), [], threading.Event(), threading.Event()
    exchange.body = lambda: began.set() or release.wait()
    first = go(steps, 0, seen)
    began.wait()
    second = go(steps, 0, seen)
    second.join(0.1)
    early = list(seen)
    release.set()
    first.join(60)
    second.join(60)
    assert early == []
    assert {type(each) for each in seen} == {int, InputError}


def test_closing_wakes_those_who_wait_and_announces_what_did_not_happen(exchange):
    seen, steps = [], EpochExchanges(exchange, 0, 5)
    go(steps, 0, seen).join(60)
    waiting = [go(steps, 3, seen), go(steps, 2, seen)]
    steps.close()
    steps.close()
    for thread in waiting:
        thread.join(60)
    assert exchange.left == [(1, "")]
    assert [type(s) for s in seen] == [int, SectionEndedError, SectionEndedError]


def test_an_exchange_under_way_when_the_epoch_is_closed_ends_first(exchange):
    seen, began, release, steps = [], threading.Event(), threading.Event(), EpochExchanges(exchange, 0, 5)
    exchange.body = lambda: began.set() or release.wait()
    thread = go(steps, 0, seen)
    began.wait()
    steps.close()
    assert exchange.left == []
    release.set()
    steps.finish()
    thread.join(60)
    assert (seen, exchange.left) == ([0], [(1, "")])


def test_a_batch_that_fails_before_its_exchange_is_announced_and_ends_all(exchange):
    seen, steps = [], EpochExchanges(exchange, 0, 5)
    waiting = go(steps, 1, seen)
    steps.fail(0, KeyError("x"))
    waiting.join(60)
    steps.close()
    assert exchange.left == [(0, "KeyError: 'x'")]
    assert isinstance(seen[0], SectionEndedError)
