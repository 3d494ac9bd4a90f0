"""Starts the ranks of a test: processes forked from one that has imported torch and PyG already (see forks.py).

A rank runs a function of a test module with the variables that torchrun would set. Nodes are groups of ranks; in the
fixture ``two_nodes`` each has a network namespace of its own where such may be made.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.util
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forks

HANGS = float(os.environ.get("RANKS_HANG", 900))  # seconds; a busy machine may take minutes for what takes seconds


@dataclass
class Result:
    """How a rank ended."""

    exit_code: int  # negative: the signal that ended it
    output: str  # what it wrote to stdout and stderr
    value: Any = None  # what the function returned
    error: str = ""  # the exception that ended it, as "Type: message"


@dataclass
class Node:
    """Where the ranks of a node run: its address, a network namespace, and variables."""

    address: str = "127.0.0.1"
    namespace: str | None = None
    env: dict[str, str] = field(default_factory=dict)


class Ranks:
    """Ranks under way."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self._folder, self.world_size = folder, world_size

    def pid(self, rank: int) -> int:
        return int(_read_when_there(self._folder / f"pid.{rank}"))

    def kill(self, rank: int, sig: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(self.pid(rank), sig)

    def output(self, rank: int) -> str:
        path = self._folder / f"out.{rank}"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_output(self, rank: int, text: str, timeout: float = HANGS) -> None:
        """Wait until a rank has printed something."""
        end = time.monotonic() + timeout
        while text not in self.output(rank):
            ended = (self._folder / f"exit.{rank}").exists() and text not in self.output(rank)
            if ended or time.monotonic() > end:
                raise AssertionError(f"rank {rank} did not print {text!r}, but:\n{self.output(rank)}")
            time.sleep(0.01)

    def wait_for_exit(self, rank: int, timeout: float = HANGS) -> float:
        """Wait until a rank's process has ended, whatever the others do; when that was (of ``time.time``)."""
        end = time.monotonic() + timeout
        path = self._folder / f"exit.{rank}"
        while not path.exists():
            if time.monotonic() > end:
                raise AssertionError(f"rank {rank} runs on, having printed:\n{self.output(rank)}")
            time.sleep(0.01)
        return path.stat().st_mtime

    def wait(self, timeout: float = HANGS) -> list[Result]:
        """All ranks' results; those that run longer are killed, and first print the stacks of their threads."""
        end, signals = time.monotonic() + timeout, iter([signal.SIGABRT, signal.SIGKILL])
        exits = [self._folder / f"exit.{rank}" for rank in range(self.world_size)]
        while not all(path.exists() for path in exits):
            if time.monotonic() > end:
                sig, end = next(signals, signal.SIGKILL), time.monotonic() + 10
                for rank, path in enumerate(exits):
                    if not path.exists():
                        self.kill(rank, sig)
            time.sleep(0.01)
        return [self._result(rank) for rank in range(self.world_size)]

    def _result(self, rank: int) -> Result:
        result = Result(int(_read_when_there(self._folder / f"exit.{rank}")), self.output(rank))
        path = self._folder / f"value.{rank}"
        if path.exists():
            result.value = pickle.loads(path.read_bytes())
        path = self._folder / f"error.{rank}"
        if path.exists():
            result.error = path.read_text()
        return result


class Launcher:
    """Starts ranks; one for all tests of a session."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._jobs = 0
        self._reserved: list[socket.socket] = []
        self._running: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        function: Callable[..., Any],
        *args: Any,
        world_size: int = 2,
        node_of: Sequence[int] | None = None,
        nodes: Sequence[Node] = (),
        env: dict[str, str] | None = None,
        fresh: bool = False,
        each: bool = False,
    ) -> Ranks:
        """Run ``function(*args)``, of a module's top level, on every rank; ``each``: ``function(*arg)`` for all args.

        ``node_of`` is the node of each rank (default: all on node 0), ``nodes`` where these run; ``env`` is for all.
        ``fresh`` ranks are processes that were not forked from one that uses torch: they can use CUDA.
        """
        node_of = list(node_of or [0] * world_size)
        nodes = list(nodes) or [Node() for _ in range(max(node_of) + 1)]
        folder = self._folder / str(self._jobs)
        self._jobs += 1
        folder.mkdir()
        (folder / "args").write_bytes(pickle.dumps(args))
        reserved = reserve_port()
        ranks = []
        for rank, node in enumerate(node_of):
            local = [r for r, n in enumerate(node_of) if n == node]
            variables = {
                "RANK": rank,
                "WORLD_SIZE": len(node_of),
                "LOCAL_RANK": local.index(rank),
                "LOCAL_WORLD_SIZE": len(local),
                "GROUP_RANK": node,
                "MASTER_ADDR": nodes[node_of[0]].address,
                "MASTER_PORT": reserved.getsockname()[1],
            }
            texts = {k: str(v) for k, v in variables.items()} | nodes[node].env | (env or {})
            ranks.append({"env": texts, "namespace": nodes[node].namespace})
        code = sys.modules[function.__module__].__file__
        job = {"folder": str(folder), "file": code, "name": function.__name__, "ranks": ranks, "each": each}
        if fresh:
            job["devices"] = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        (folder / "job").write_text(json.dumps(job))
        env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # forked processes cannot use CUDA
        self._running.append(subprocess.Popen([forks.python(), __file__, str(folder / "job")], env=env))
        self._reserved.append(reserved)
        return Ranks(folder, len(node_of))

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = HANGS, **how: Any) -> list[Any]:
        """Start ranks, wait, and give what their functions returned; fails if any rank failed."""
        results = self.start(function, *args, **how).wait(timeout)
        for rank, result in enumerate(results):
            if result.exit_code != 0:
                raise AssertionError(f"rank {rank} ended with {result.exit_code}: {result.error}\n{result.output}")
        return [result.value for result in results]

    def run_each(self, function: Callable[..., Any], cases: Sequence[Sequence[Any]], **how: Any) -> list[list[Any]]:
        """Call ``function(*case)`` for each case in turn on the same ranks; what the ranks returned, by case."""
        return [list(ranks) for ranks in zip(*self.run(function, *cases, each=True, **how), strict=True)]

    def close(self) -> None:
        for running in self._running:
            running.wait()
        for reserved in self._reserved:
            reserved.close()
        shutil.rmtree(self._folder)


def reserve_port() -> socket.socket:
    """A socket whose port the kernel gives to nobody who asks for any port; those who name it may listen there."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def make_namespaces() -> list[Node] | None:
    """Two nodes with a network of their own, joined by a cable; ``None`` where that is not allowed."""
    names = [f"manyhop{os.getpid()}n{i}" for i in range(2)]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add v0 netns {names[0]} type veth peer name v1 netns {names[1]}")
    for i, name in enumerate(names):
        commands += [f"-n {name} addr add 10.83.7.{i + 1}/24 dev v{i}"]
        commands += [f"-n {name} link set {device} up" for device in (f"v{i}", "lo")]
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        remove_namespaces([Node(namespace=name) for name in names])
        return None
    return [Node(f"10.83.7.{i + 1}", name, {"GLOO_SOCKET_IFNAME": f"v{i}"}) for i, name in enumerate(names)]


def remove_namespaces(nodes: Sequence[Node]) -> None:
    for node in nodes:
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "del", str(node.namespace)], check=False, capture_output=True)


def _read_when_there(path: Path) -> str:
    end = time.monotonic() + HANGS
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not appear"
        time.sleep(0.005)
    return path.read_text()


def _write(path: Path, content: bytes) -> None:
    """Readers see all of it or nothing, also if this process is killed meanwhile."""
    path.with_suffix(path.suffix + "new").write_bytes(content)
    path.with_suffix(path.suffix + "new").rename(path)


def _run_job(job: dict[str, Any]) -> None:
    """Fork the ranks and note how each ends. Does not return."""
    from manyhop.loading.pipeline import WorkerThreads

    WorkerThreads.close_seconds = 60.0  # as in tests/conftest.py
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the ranks end by it
    folder = Path(job["folder"])
    ranks = {}
    for rank, how in enumerate(job["ranks"]):
        pid = os.fork()
        if pid == 0 and "devices" in job:
            (folder / f"job.{rank}").write_text(json.dumps([job, rank, how]))
            path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])  # with forks.py
            env = os.environ | {"CUDA_VISIBLE_DEVICES": job["devices"], "PYTHONPATH": path}
            if job["devices"] == "all":
                del env["CUDA_VISIBLE_DEVICES"]
            os.execve(sys.executable, [sys.executable, __file__, str(folder / f"job.{rank}")], env)
        if pid == 0:
            _run_rank(job, rank, how)
        ranks[pid] = rank
        _write(folder / f"pid.{rank}", str(pid).encode())
    while ranks:
        pid, status = os.wait()
        _write(folder / f"exit.{ranks.pop(pid)}", str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run_rank(job: dict[str, Any], rank: int, how: dict[str, Any]) -> None:
    """Become a rank: run its function, then end as a script does. Does not return."""
    folder = Path(job["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(folder / f"out.{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(how["env"])
    if how["namespace"]:
        with open(f"/run/netns/{how['namespace']}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), forks.CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
    code = 0
    try:
        spec = importlib.util.spec_from_file_location(Path(job["file"]).stem, job["file"])
        assert spec is not None
        assert spec.loader is not None
        tests = str(Path(__file__).parents[1])  # with forks.py, for processes that a rank spawns
        sys.path[:0] = [str(Path(job["file"]).parent), tests]
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        function, args = getattr(module, job["name"]), pickle.loads((folder / "args").read_bytes())
        value = [function(*case) for case in args] if job["each"] else function(*args)
        _write(folder / f"value.{rank}", pickle.dumps(value))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else end.code is not None
    except BaseException as error:
        traceback.print_exc()
        sys.last_exc = sys.last_value = error  # type: ignore[attr-defined]  # as the interpreter does
        (folder / f"error.{rank}").write_text(f"{type(error).__name__}: {error}")
        code = 1
    forks.end(code)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    _run_rank(*given) if isinstance(given, list) else _run_job(given)
