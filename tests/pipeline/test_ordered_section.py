"""Threads go through in the order of their numbers, or not at all."""

import threading
import time

import pytest

from manyhop.errors import InputError
from manyhop.loading.lockstep import OrderedSection, SectionEndedError


def go(section, number, seen, body=lambda: None):
    def run():
        try:
            with section.enter(number):
                body()
                seen.append(number)
        except Exception as error:
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_turns_come_in_order_one_at_a_time():
    left, seen, inside, most = [], [], [], []
    section = OrderedSection(5, left.append)

    def body():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()

    for thread in [go(section, number, seen, body) for number in (3, 1, 4, 0, 2)]:
        thread.join(60)
    assert seen == [0, 1, 2, 3, 4]
    assert most == [1] * 5
    section.close()
    assert left == []


def test_a_second_thread_in_the_same_turn_is_refused_once_the_first_is_through():
    section, seen, began, release = OrderedSection(2, lambda number: None), [], threading.Event(), threading.Event()

    def body():
        began.set()
        release.wait()

    first = go(section, 0, seen, body)
    began.wait()
    second = go(section, 0, seen, lambda: seen.append("inside"))
    second.join(0.1)
    early = list(seen)
    release.set()
    first.join(60)
    second.join(60)
    assert early == []
    assert [type(each) for each in seen] == [int, InputError]


def test_closing_wakes_those_who_wait_and_returns_what_did_not_happen():
    left, seen = [], []
    section = OrderedSection(5, left.append)
    go(section, 0, seen).join(60)
    waiting = [go(section, 3, seen), go(section, 2, seen)]
    section.close()
    section.close()
    for thread in waiting:
        thread.join(60)
    assert left == [1]
    assert [type(s) for s in seen] == [int, SectionEndedError, SectionEndedError]


def test_a_turn_under_way_when_it_is_closed_ends_first():
    left, seen, release = [], [], threading.Event()
    section = OrderedSection(5, left.append)
    thread = go(section, 0, seen, release.wait)
    while not section._busy:
        time.sleep(0.001)
    section.close()
    assert left == []
    release.set()
    section.wait()
    thread.join(60)
    assert (seen, left) == ([0], [1])


def test_an_error_ends_all_turns_without_a_word():
    left, seen = [], []
    section = OrderedSection(5, left.append)
    waiting = go(section, 1, seen)
    with pytest.raises(KeyError), section.enter(0):
        raise KeyError
    waiting.join(60)
    section.close()
    assert left == []
    assert isinstance(seen[0], SectionEndedError)
