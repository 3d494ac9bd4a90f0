"""Interrupts and the end of the interpreter, in processes of their own."""

import signal
import subprocess
import sys
import textwrap
import time

PRELUDE = """
import signal, sys, threading, time, torch
from manyhop.errors import InputError
from manyhop.loading.pipeline import Pipeline, Stats, WorkerPool

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def make(batch, item):
    x = torch.rand(200, 200)
    for _ in range(20):
        x = x @ x / 100  # inside torch most of the time
    return item

def ours():
    return [t for t in threading.enumerate() if t.name.startswith("manyhop")]
"""


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, (process.returncode, out, err)
    if code == 0:
        assert err == ""
    return out


def test_the_interpreter_ends_in_mid_epoch() -> None:
    # One epoch under way with threads of its own, one with a pool, one in a loop that an exit leaves.
    code = """
        a = Pipeline(range(10**9), make, num_workers=2)
        b = Pipeline(range(10**9), make, num_workers=2, pool=(pool := WorkerPool(2)))
        next(a), next(b)
        for i in Pipeline(range(10**9), make, num_workers=2):
            if i == 3:
                print("leaving")
                sys.exit(0)
    """
    assert finish(start(code)) == "leaving\n"


def test_the_interpreter_ends_although_a_batch_hangs() -> None:
    code = """
        def hang(batch, item):
            time.sleep(1000)
        import manyhop.loading.pipeline.workers as workers
        workers._EXIT_SECONDS = 0.2
        p = Pipeline(range(10), hang, num_workers=1)
        time.sleep(0.1)
        print("leaving")
    """
    assert finish(start(code)) == "leaving\n"


def interrupt_when_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    return finish(process)


def test_an_interrupt_while_waiting_ends_the_wait_and_the_threads() -> None:
    code = """
        asks, release, main = threading.Event(), threading.Event(), threading.get_ident()
        def wait(batch, item):
            if item == 2:
                asks.wait()
                while not sys._current_frames()[main].f_code.co_filename.endswith("pipeline.py"):
                    time.sleep(0.01)
                print("ready", flush=True)
                release.wait()
            return item
        pipeline = Pipeline(range(10**9), wait, num_workers=2, prefetch=1, closing=release.set)
        next(pipeline), next(pipeline)
        try:
            asks.set()
            next(pipeline)
        except KeyboardInterrupt:
            end = time.monotonic() + 60
            while ours() and time.monotonic() < end:
                time.sleep(0.01)
            try:
                next(pipeline)
            except InputError as error:
                print("interrupted", "after KeyboardInterrupt" in str(error), ours())
    """
    assert interrupt_when_ready(start(code)) == "interrupted True []\n"


def test_many_epochs_that_are_left_early_keep_memory_and_threads_constant() -> None:
    code = """
        import gc, resource
        def batch(i, item):
            return torch.ones(1 << 18)  # 1 MiB
        def epoch():
            for i, _ in enumerate(Pipeline(range(1000), batch, num_workers=2, stats=stats)):
                if i == 3:
                    break
            while ours():  # else threads that get no core in time keep the batches of many epochs
                time.sleep(0.001)
        stats = Stats(2)
        for _ in range(10):
            epoch()
        gc.collect()
        objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(150):
            epoch()
        gc.collect()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
        print(len(gc.get_objects()) - objects < 1000, grown < 75 * 1024 or grown)  # a batch kept by each epoch: 150
    """
    assert finish(start(code)) == "True True\n"
