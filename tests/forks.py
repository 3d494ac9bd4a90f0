"""A stand-in for ``python`` whose processes are forked from one that has imported torch and PyG, and loaded kernels.

``python()`` is a command that takes a script, ``-m MODULE`` or ``-c CODE``, after ``-W ACTION`` or not, as the
interpreter does. Environment, working directory, standard streams, network namespace, signals and exit status are those
of the command. Where a process's imports or the interpreter's end are what a test is about, it starts an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

CLONE_NEWNET = 0x40000000
_NET = "/proc/self/ns/net"


@functools.cache
def python() -> str:
    """The path of the command. The process that it forks ends with this one."""
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    address = folder / "socket"
    command = folder / "python"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "{address}" "$@"\n')
    command.chmod(0o700)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen(64)
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "LISTENING": str(listening.fileno())},
        pass_fds=[listening.fileno()],
    )
    listening.close()

    def close() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder)

    atexit.register(close)
    return str(command)


def environment(**variables: str) -> dict[str, str]:
    """Variables with which torchrun starts its ranks by ``python()``, too, with one thread each."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": python()} | variables


def end(code: int) -> NoReturn:
    """Do what the interpreter's end does, in a forked process: threads, handlers of exit, buffers."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _client(address: str, arguments: Sequence[str]) -> None:
    """Have a process forked, and end as it does. Hand on the signals that come, also before it is there."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: None)  # the number is sent to the waker
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        how = {"arguments": arguments, "folder": os.getcwd(), "env": dict(os.environ)}
        message = json.dumps(how).encode()
        socket.send_fds(connection, [len(message).to_bytes(8, "little")], [0, 1, 2, os.open(_NET, os.O_RDONLY)])
        connection.sendall(message)
        answers = connection.makefile("rb", buffering=0)
        pid = int(answers.readline())
        while connection not in select.select([connection, wake], [], [])[0]:
            for number in wake.recv(64):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)
        code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _serve() -> None:
    """Fork a process for each connection, until the process that has started this one ends."""
    import pytest  # noqa: F401
    from numba.core.registry import cpu_target

    import manyhop_pyg  # noqa: F401

    cpu_target.target_context.refresh()  # what numba imports with its first kernel, scipy.linalg too

    # Python's fear, from 3.12 on; the only threads are OpenBLAS's, which ends them before a fork.
    warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]  # this folder
    sys.modules["forks"] = sys.modules["__main__"]
    with socket.socket(fileno=int(os.environ.pop("LISTENING"))) as listening:
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:  # it is closed
                return
            connection, _ = listening.accept()
            _load_kernels()
            gc.freeze()  # what is there is no garbage: a collection would take each process a third of a second
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _wait_for_process(connection)
            connection.close()


def _load_kernels() -> None:
    """Load what most loaders call, once it has been compiled; else each process would do so for itself."""
    from manyhop.features import cpu_kernels
    from manyhop.sampling.cpu.kernels import hop
    from manyhop.system.numba_kernels import prepare

    kernels: list[Any] = [hop.sample_plain_batch, hop.rehash_type, hop.copy_arrays, cpu_kernels.gather_rows]
    prepare(*(kernel for kernel in kernels if not kernel.overloads and kernel.is_cached()))


def _wait_for_process(connection: socket.socket) -> NoReturn:
    """Fork a process, and report how it ends; kill it if nobody is left to whom that could be reported."""
    length, files, _, _ = socket.recv_fds(connection, 8, 4)
    how = json.loads(connection.makefile("rb").read(int.from_bytes(length, "little")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(how["arguments"], how["folder"], how["env"], files)
    for file in files:
        os.close(file)
    with contextlib.suppress(OSError):
        connection.sendall(f"{pid}\n".encode())
    process = os.pidfd_open(pid)
    ready, _, _ = select.select([process, connection], [], [])
    if process not in ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(arguments: list[str], folder: str, env: dict[str, str], files: Sequence[int]) -> NoReturn:
    """Become the process that a command line of Python's describes."""
    import numpy as np

    signal.signal(signal.SIGINT, signal.default_int_handler)
    *streams, network = files
    for number, file in enumerate(streams):
        os.dup2(file, number)
    if os.fstat(network).st_ino != os.stat(_NET).st_ino and ctypes.CDLL(None, use_errno=True).setns(
        network, CLONE_NEWNET
    ):
        raise OSError(ctypes.get_errno(), "setns")
    for file in files:
        os.close(file)
    np.random.seed()
    os.chdir(folder)
    before, after = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (os.environ, env))
    sys.path[:] = [*filter(None, after), *(path for path in sys.path if path not in before)]
    os.environ.clear()
    os.environ.update(env)
    code = 0
    try:
        _program(arguments)()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else error.code is not None
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.last_exc = sys.last_value = error  # type: ignore[attr-defined]  # as the interpreter does
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    end(code)


def _program(arguments: list[str]) -> Callable[[], Any]:
    """What ``python ARGUMENTS`` runs, as the module ``__main__``."""
    if arguments[0] == "-u":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
        del arguments[0]
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        del arguments[:2]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__)
    kind, *rest = arguments
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        return functools.partial(runpy._run_module_as_main, rest[0])  # type: ignore[attr-defined]
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        return functools.partial(exec, compile(rest[0], "<string>", "exec"), main.__dict__)
    sys.path.insert(0, str(Path(kind).resolve().parent))
    sys.argv = arguments
    main.__dict__.update(__file__=kind)
    return functools.partial(exec, compile(Path(kind).read_bytes(), kind, "exec"), main.__dict__)


if __name__ == "__main__" and len(sys.argv) > 1:
    _client(sys.argv[1], sys.argv[2:])
elif __name__ == "__main__":
    _serve()
