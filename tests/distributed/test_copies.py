"""One copy per key: who builds, who gets it, and what remains when processes end."""

import gc
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhop.errors import RankError
from manyhop.memory import copies, segments
from manyhop.memory.copies import Copy, find_or_build


@pytest.fixture
def key() -> str:
    return f"test {uuid.uuid4().hex}"


class Asking(threading.Thread):
    """A rank that asks. To the others, a rank is a connection or a record, so the ranks of a test are threads."""

    def __init__(self, key: str, rank: int = 0, **options: Any) -> None:
        super().__init__(daemon=True)
        self.may_end, self.builds, self.fails = threading.Event(), threading.Event(), ""
        options = {"what": "a test", "rank": rank, "timeout": 100} | options
        self._ask: Callable[[], Copy] = lambda: find_or_build(key, self._build, **options)
        self.answer: Any = None
        self.start()

    def _build(self) -> Copy:
        self.builds.set()
        assert self.may_end.wait(100)
        if self.fails:
            raise ValueError(self.fails)
        return Copy((segments.create("a test", 10),), (1, 2))

    def run(self) -> None:
        try:
            self.answer = self._ask()
        except Exception as error:
            self.answer = error

    def get(self) -> Any:
        self.join(100)
        assert not self.is_alive()
        return self.answer

    def end_build(self, fails: str = "") -> Any:
        self.fails = fails
        self.may_end.set()
        return self.get()


def builder(key: str, rank: int = 0, **options: Any) -> Asking:
    first = Asking(key, rank, **options)
    assert first.builds.wait(100)
    return first


def waiting(key: str, rank: int = 1, **options: Any) -> Asking:
    """A rank that waits for another one."""
    before = connections(key)
    other = Asking(key, rank, **options)
    end = time.monotonic() + 100
    while connections(key) == before and time.monotonic() < end:
        time.sleep(0.002)
    assert not other.builds.is_set()
    return other


def connections(key: str) -> int:
    return Path("/proc/net/unix").read_text().count(f"@manyhop {key}")


def build_now() -> Copy:
    return Copy((segments.create("a test", 10),))


def ask(key: str, build: Callable[[], Copy] = build_now, **options: Any) -> Copy:
    return find_or_build(key, build, **{"what": "a test", "rank": 9, "timeout": 100} | options)


def never() -> Copy:
    raise AssertionError("built twice")


def test_the_first_builds_and_the_others_wait_for_it(key: str) -> None:
    first = builder(key)
    others = [waiting(key) for _ in range(3)]
    copy = first.end_build()
    copy.segments[0].memory[3] = 7
    for found in [*(other.get() for other in others), ask(key, never)]:
        assert found.pickle_at == (1, 2)
        assert found.segments[0].memory[3] == 7


def test_it_is_forgotten_when_nobody_uses_it_any_more(key: str) -> None:
    first, second = ask(key), ask(key, never)
    id = first.segments[0].id
    del first
    assert ask(key, never).segments[0].id == id
    del second
    gc.collect()
    assert ask(key).segments[0].id != id


def test_a_failure_reaches_all_with_its_rank(key: str) -> None:
    first, other = builder(key, 5, others=2), waiting(key)
    first.fails = "no such file"
    first.may_end.set()
    for error in (other.get(), Asking(key).get()):
        assert isinstance(error, RankError)
        assert str(error) == "a test failed on rank 5: ValueError: no such file"
        assert error.ranks == (5,)
    assert isinstance(first.get(), ValueError)
    assert ask(key)  # it may be tried again


def test_the_builder_waits_for_the_others(key: str) -> None:
    first = builder(key, others=2)
    other = waiting(key)
    first.may_end.set()
    copy = other.get()
    first.join(0.1)
    assert first.is_alive()
    assert ask(key, never).segments[0].id == first.get().segments[0].id == copy.segments[0].id


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"no", b"\0\0\0\x05{[[["])
def test_a_stranger_who_connects_disturbs_nobody(key: str, text: bytes) -> None:
    first, other = builder(key), waiting(key)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger, copies._new_socket() as silent:
        for each in (stranger, silent):
            each.connect(copies._address(key))
        stranger.send(text)
        stranger.close()
        assert first.end_build().pickle_at == (1, 2)
        assert other.get().pickle_at == (1, 2)


def test_a_name_that_somebody_holds_without_listening_ends_in_an_error(key: str) -> None:
    with copies._new_socket() as silent:
        silent.bind(copies._address(key))
        with pytest.raises(RankError, match="no process of this node builds it, but one holds its name"):
            ask(key, timeout=0.1)


def test_other_users_are_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = builder(key)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="another user has the socket"):
        ask(key)
    other = copies._new_socket()
    other.connect(copies._address(key))
    first.end_build()
    with other:
        assert other.recv(1) == b""
    assert copies._find(key, "a test") is None


def test_a_system_that_hides_processes_builds_again(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = builder(key), waiting(key)
    monkeypatch.setattr(os, "listdir", lambda path: [])
    copy = first.end_build()
    assert other.get().segments[0].id == copy.segments[0].id  # handed over
    assert ask(key).segments[0].id != copy.segments[0].id


def test_a_number_that_another_file_has_by_now_is_not_used() -> None:
    one, other = segments.create("one", 10), segments.create("other", 10)
    names = [copies._memfd(segments.file_name(each.id)) for each in (one, other)]
    files = dict(zip(names, (f"/proc/self/fd/{one.fd}", f"/proc/self/fd/{one.fd}"), strict=True))
    with pytest.raises(FileNotFoundError):
        copies._open_all(files, names)


# Other processes


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_a_forked_child_does_not_hold_the_name(key: str) -> None:
    first = builder(key)
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    try:
        first.end_build("no such file")
        assert ask(key)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_processes_that_come_when_building_has_just_failed() -> None:
    """They get its error, or build on their own; they do not take the builder for one that was killed."""
    errors: list[Exception] = []

    def fail() -> Copy:
        raise ValueError("of the data")

    def ask_for(key: str) -> None:
        try:
            find_or_build(key, fail, what="a test", rank=0, timeout=20)
        except (RankError, ValueError) as error:
            errors.append(error)

    for _ in range(200):
        name = f"test {uuid.uuid4().hex}"
        threads = [threading.Thread(target=ask_for, args=(name,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(errors) == 1200
    assert all("of the data" in str(error) for error in errors)
