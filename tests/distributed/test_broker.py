"""Who builds and who gets. The ranks are threads of one process here: to the service, a rank is a connection."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhop.errors import RankError
from manyhop.memory import channel
from manyhop.memory.broker import Broker, Ticket

Brokers = Callable[[int], Broker]

_answers: list[Any] = []  # nobody gives up a claim by forgetting it
_made: list[Broker] = []  # in the present test


@pytest.fixture(params=["abstract", "file"])
def brokers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    """Ranks of one node, by number; sockets with and without files."""
    monkeypatch.setattr(channel, "_ABSTRACT", request.param == "abstract")
    temporary = Path(tempfile.mkdtemp())  # tmp_path is too long for sockets
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    name = f"manyhop-test-{uuid.uuid4().hex}"

    def make(rank: int) -> Broker:
        _made.append(Broker(name, rank))
        return _made[-1]

    yield make
    for broker in _made:
        broker.close()
    _made.clear()
    for end in list(channel._open):
        end.close()
    _answers.clear()
    if request.param == "file":
        (folder,) = temporary.iterdir()
        assert list(folder.iterdir()) == []
    shutil.rmtree(temporary)


class Asking(threading.Thread):
    """A rank that waits for an answer."""

    def __init__(self, broker: Broker, key: str = "key", timeout: float = 200, **how: Any) -> None:
        super().__init__(daemon=True)
        self._key = key
        self._do = lambda: broker.request(key, **({"what": "a test", "expected": 1} | how), timeout=timeout)
        self.start()

    def run(self) -> None:
        try:
            self.answer: Ticket | RankError = self._do()
        except RankError as error:
            self.answer = error
        _answers.append(self.answer)

    def get(self) -> Any:
        self.join(200)
        assert not self.is_alive()
        return self.answer

    def still_waits(self, others: int = 0) -> bool:
        """Whether the service has put it off, and it waits for a moment longer; ``others`` wait for the same thing."""
        wait_until(lambda: not self.is_alive() or len(waiting_for(self._key)) > others)
        self.join(0.02)
        return self.is_alive()


def waiting_for(key: str) -> list[Any]:
    """Who waits for something, as the service knows it."""
    things = [broker._service._things.get(key) for broker in _made if broker._service is not None]
    return [peer for thing in things if thing is not None for peer in thing.waiting]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)


def ask(broker: Broker, key: str = "key", **how: Any) -> Any:
    return Asking(broker, key, **how).get()


def test_the_first_builds_and_the_others_wait_for_it(brokers: Brokers) -> None:
    first = ask(brokers(0))
    assert first.builds
    others = [Asking(brokers(rank)) for rank in (1, 2)]
    assert all(other.still_waits(others=1) for other in others)
    read, write = os.pipe()
    first.deliver({"n": 3}, [write])
    os.close(write)
    late = brokers(3)
    for ticket in [*(other.get() for other in others), ask(late), ask(late)]:
        assert (ticket.builds, ticket.message) == (False, {"n": 3})
        (fd,) = ticket.fds
        os.write(fd, b"x")
        os.close(fd)
    assert os.read(read, 10) == b"xxxx"
    os.close(read)


def test_keys_do_not_wait_for_each_other(brokers: Brokers) -> None:
    assert ask(brokers(0), "a").builds
    assert ask(brokers(1), "b").builds


def test_it_is_forgotten_when_nobody_uses_it_any_more(brokers: Brokers) -> None:
    a, b = brokers(0), brokers(1)
    read, write = os.pipe()
    first = ask(a)
    first.deliver({}, [write])
    os.close(write)
    second = ask(b)
    os.close(second.fds[0])

    class Memory:
        pass

    used, used_too = Memory(), Memory()
    first.hold(used)
    second.hold(used_too)
    del used
    third = ask(b)
    assert not third.builds
    third.give_up()
    os.close(third.fds[0])
    del used_too
    assert os.read(read, 1) == b""  # the service has closed its descriptor
    os.close(read)
    assert ask(a).builds


def test_it_is_kept_until_as_many_have_come_as_are_expected(brokers: Brokers) -> None:
    a, b = brokers(0), brokers(1)
    first = ask(a, expected=2)
    first.deliver({"n": 1}, [])
    first.give_up()
    second = ask(b, expected=2)
    assert second.message == {"n": 1}
    second.give_up()
    service = a._service
    assert service is not None
    wait_until(lambda: "key" not in service._things)
    assert ask(b).builds


def test_a_failure_reaches_all_with_its_rank(brokers: Brokers) -> None:
    first = ask(brokers(5), expected=3)
    waiting = Asking(brokers(6), expected=3)
    assert waiting.still_waits()
    first.fail("ValueError: no such file")
    for error in (waiting.get(), ask(brokers(7), expected=3)):
        assert str(error) == "a test failed on rank 5: ValueError: no such file"
        assert error.ranks == (5,)
    assert ask(brokers(8)).builds  # all have come: it may be tried again


def test_the_death_of_the_builder_reaches_all(brokers: Brokers) -> None:
    a, b = brokers(0), brokers(1)
    first = ask(a, expected=2)
    waiting = Asking(b, expected=2)
    assert waiting.still_waits()
    first.give_up()
    assert "rank 0, which did it for this node, has ended in the middle of it" in str(waiting.get())
    assert waiting.get().ranks == (0,)


def test_one_who_waited_and_is_gone_does_not_matter(brokers: Brokers) -> None:
    first = ask(brokers(0))
    hasty = Asking(brokers(1), timeout=2).get()
    assert "rank 0, which does it for this node, was not ready within 2 s" in str(hasty)
    assert hasty.ranks == (0,)
    waiting = Asking(brokers(2))
    assert waiting.still_waits()
    first.deliver({"n": 1}, [])
    assert waiting.get().message == {"n": 1}


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "null", '{"do": "deliver", "message": {}, "found": false}', '{"do": "request", "key": 1}', "no"],
)
def test_a_malformed_message_ends_one_connection_only(brokers: Brokers, text: str) -> None:
    a, b = brokers(0), brokers(1)
    first = ask(a)
    waiting = Asking(b)
    assert waiting.still_waits()
    with channel.new_socket() as stranger:
        stranger.settimeout(60)
        stranger.connect(channel.address_of(a._name))
        stranger.sendall(len(text).to_bytes(4, "big") + text.encode())
        assert stranger.recv(1) == b""
    first.deliver({"n": 1}, [])
    assert waiting.get().message == {"n": 1}


def test_different_things_under_one_key_are_an_error(brokers: Brokers) -> None:
    first = ask(brokers(0), what="share() number 1, of a", expected=2)
    error = ask(brokers(1), what="share() number 1, of b", expected=2)
    assert "share() number 1, of b on rank 1, but share() number 1, of a on rank 0" in str(error)
    first.deliver({}, [])
    first.give_up()
    assert ask(brokers(2)).builds  # both have come: nobody will ask for it any more


def test_the_end_of_the_service_reaches_those_who_wait(brokers: Brokers) -> None:
    a, b = brokers(0), brokers(1)
    first = ask(a)
    waiting = Asking(b)
    assert waiting.still_waits()
    a.close()
    assert "the process of this node that passes on shared memory has ended" in str(waiting.get())
    assert ask(b, "another").builds  # it runs the service from now on
    first.deliver({"n": 1}, [])  # to nobody
    assert ask(b).message == {"n": 1}  # found


def test_the_service_ends_when_all_have_asked_who_are_expected_to(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyhop.memory.broker._LINGER_S", 60)
    a, b = brokers(0), brokers(1)
    ask(a, expected=2).deliver({"n": 1}, [])
    ending = threading.Thread(target=a.close)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    late = ask(b, expected=2)
    assert (late.builds, late.message) == (False, {"n": 1})
    ending.join(60)
    assert not ending.is_alive()


def test_who_comes_when_the_service_has_ended_finds_what_others_have(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyhop.memory.broker._LINGER_S", 0.01)
    a, b, c, d = (brokers(rank) for rank in range(4))
    read, write = os.pipe()
    first = ask(a, expected=4)
    first.deliver({"n": 1}, [write])
    second = ask(b, expected=4)
    a.close()
    wait_until(lambda: not services())
    assert not services()
    first.give_up()
    late, latest = ask(c, expected=4), ask(d, expected=4)
    for ticket in (late, latest):
        assert (ticket.builds, ticket.message) == (False, {"n": 1})
        os.write(ticket.fds[0], b"x")
    assert os.read(read, 10) == b"xx"
    for ticket in (second, late, latest):
        ticket.give_up()
        os.close(ticket.fds[0])
    os.close(write)
    os.close(read)
    assert ask(b, expected=4).builds  # nobody has it any more


def test_what_is_found_is_the_same_thing(brokers: Brokers) -> None:
    a, b = brokers(0), brokers(1)
    ask(a, what="share() number 1, of a").deliver({"n": 1}, [])
    a.close()
    assert ask(b, what="share() number 1, of b").builds


def services() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "manyhop memory"]


def test_who_comes_while_the_service_ends_starts_another(brokers: Brokers) -> None:
    broker = brokers(0)
    address = channel.address_of(broker._name)
    ending = channel.listen(address)
    assert ending is not None
    late = Asking(broker)
    late.join(0.1)
    assert late.is_alive()  # connected, but nobody accepts any more
    ending.close()
    channel.remove(address)
    assert late.get().builds


def test_messages_before_the_end_of_the_service_are_passed_on(brokers: Brokers) -> None:
    for i in range(20):
        a, b = brokers(0), brokers(1)
        first = ask(a, f"{i}")
        waiting = Asking(b, f"{i}")
        assert waiting.still_waits()
        first.fail("no such file")
        a.close()
        assert "no such file" in str(waiting.get())


def test_many_at_once_start_one_service(brokers: Brokers) -> None:
    asking = [Asking(brokers(rank)) for rank in range(20)]
    while not (builders := [a for a in asking if not a.is_alive()]):
        time.sleep(0.001)
    builders[0].get().deliver({"n": 1}, [])
    tickets = [a.get() for a in asking]
    assert sum(ticket.builds for ticket in tickets) == 1
    assert sum(ticket.message == {"n": 1} for ticket in tickets) == 19


def test_rubbish_ends_a_connection_and_nothing_else(brokers: Brokers) -> None:
    a = brokers(0)
    first = ask(a)
    for rubbish in (b"", b"\0", b"\0\0\0\x05{[[[]"):
        with channel.new_socket() as connection:
            connection.connect(channel.address_of(a._name))
            connection.sendall(rubbish)
    waiting = Asking(brokers(1))
    assert waiting.still_waits()
    first.deliver({"n": 1}, [])
    assert waiting.get().message == {"n": 1}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_a_forked_child_holds_no_claims(brokers: Brokers) -> None:
    a, b = brokers(0), brokers(1)
    first = ask(a)
    waiting = Asking(b)
    assert waiting.still_waits()
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    try:
        first.give_up()
        assert waiting.get().ranks == (0,)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell who is at the other end")
def test_other_users_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = socket.socketpair()
    with left, right:
        channel.check_peer(left)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(PermissionError, match="another user has the socket"):
            channel.check_peer(left)


def test_a_folder_that_others_may_enter_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(channel, "_ABSTRACT", False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"manyhop-{os.getuid()}"
    folder.mkdir()
    folder.chmod(stat.S_IRWXU | stat.S_IRWXG)
    with pytest.raises(PermissionError, match="nobody else may enter"):
        Broker("x", 0).request("key", what="a test", expected=1, timeout=5)


def test_a_name_that_somebody_holds_without_listening_ends_in_an_error(brokers: Brokers) -> None:
    broker = brokers(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(channel.address_of(broker._name))
        with pytest.raises(RankError, match="no service for shared memory can be started on this node"):
            broker.request("key", what="a test", expected=1, timeout=0.1)
    if not channel._ABSTRACT:
        os.unlink(channel.address_of(broker._name))


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, manyhop.memory; print([m for m in ('numba', 'torch_geometric') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
