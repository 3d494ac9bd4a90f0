"""Copies that are found at the processes that use them, by name."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from manyhop.memory import channel

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no anonymous files")


@pytest.fixture
def name() -> str:
    return f"manyhop test {uuid.uuid4().hex}"


@pytest.fixture
def memory() -> Iterator[list[int]]:
    """Two descriptors of files with contents."""
    fds = [os.memfd_create("manyhop") for _ in range(2)]
    for number, fd in enumerate(fds):
        os.write(fd, b"%d" % number)
    yield fds
    for fd in fds:
        os.close(fd)


def contents(found: Any) -> list[bytes]:
    contents = [os.pread(fd, 10, 0) for fd in found[1]]
    for fd in found[1]:
        os.close(fd)
    return contents


IN_ANOTHER = """
import os, sys
from manyhop.memory import channel
message, fds = channel.find(sys.argv[1])
os.pwrite(fds[1], b"written", 0)
print(message, os.pread(fds[0], 10, 0).decode(), channel.find(sys.argv[1] + "0"))
"""


def test_another_process_gets_message_and_memory(name: str, memory: list[int]) -> None:
    with channel.record(name, {"n": [1]}, memory):  # type: ignore[union-attr]
        command = [sys.executable, "-c", IN_ANOTHER, name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == "{'n': [1]} 0 None\n"
    assert os.pread(memory[1], 10, 0) == b"written"


def test_it_is_found_as_long_as_it_is_kept(name: str, memory: list[int]) -> None:
    assert channel.find(name) is None
    record = channel.record(name, {}, memory)
    assert record is not None
    assert contents(channel.find(name)) == [b"0", b"1"]
    other = os.dup(memory[1])
    os.dup2(memory[0], memory[1])  # the number of another file now
    assert contents(channel.find(name)) == [b"0", b"1"]
    os.close(other)
    assert channel.find(name) is None
    record.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_forked_children_do_not_keep_it(name: str, memory: list[int]) -> None:
    record = channel.record(name, {}, memory)
    assert record is not None
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"x")
        time.sleep(1000)
        os._exit(0)
    try:
        assert os.read(read, 1) == b"x"
        assert contents(channel.find(name)) == [b"0", b"1"]
        record.close()
        assert channel.find(name) is None
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_a_system_without_such_files_has_no_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert channel.record(name, {}, []) is None
    assert channel.find(name) is None
