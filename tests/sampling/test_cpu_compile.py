"""Compiled kernels: their cache on disk, what they are compiled again for, the message, variants."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import manyhop
from manyhop.loading.pipeline import Stats
from manyhop.system import numba_kernels

HELPERS = """\
from manyhop.system.numba_kernels import helper
from toy.constants import TWO

@helper
def twice(x):
    return TWO * x
"""
KERNEL = """\
import sys
import threading

import json  # no part of the kernel
from toy.helpers import twice
from manyhop.system import numba_kernels
{change}

@numba_kernels.kernel("int64(int64)")
def double(x):
    return twice(x)

def main():
    results = []
    threads = [threading.Thread(target=lambda: results.append(double(21))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*results)
"""


def start(folder, *command, **options):
    """Start a Python with a cache in a folder."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "ignore", *command]  # Python 3.12 warns of forks beside threads
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment | options, **pipes)


MAIN = "import toy.kernels; toy.kernels.main()"


@pytest.fixture
def run(tmp_path):
    """Call a kernel from four threads of a fresh process; returns what it prints, and whether it compiled."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/constants.py").write_text("TWO = 2\n")
    (tmp_path / "toy/helpers.py").write_text(HELPERS)

    def run_kernel(change=""):
        if change or not (tmp_path / "toy/kernels.py").exists():
            (tmp_path / "toy/kernels.py").write_text(KERNEL.format(change=change))
        printed, log = start(tmp_path, "-c", MAIN).communicate()
        return printed.strip(), log

    return run_kernel


@pytest.mark.slow
def test_compiles_once_and_logs_it(run):
    printed, log = run()
    assert printed == "42 42 42 42"
    line = "manyhop: compiling CPU kernels"
    assert re.fullmatch(rf"{line} 1/1 \(double\), once on this machine\n{line}: done in \d+ s\n", log)
    assert run() == ("42 42 42 42", "")


def test_one_process_compiles_while_others_wait(run, tmp_path):
    run()  # writes the files
    shutil.rmtree(tmp_path / "cache")
    processes = [start(tmp_path, "-c", MAIN) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [printed for printed, _ in outputs] == ["42 42 42 42\n"] * 2
    assert sorted(bool(log) for _, log in outputs) == [False, True]


def test_without_any_place_for_a_cache(run):
    broken = """
def nowhere(*args):
    raise RuntimeError("cannot cache function: no locator available")
numba_kernels.Cache = nowhere
"""
    printed, log = run(broken)
    assert printed == "42 42 42 42"
    assert log.count("compiling CPU kernels 1/1") == 1


PROCESSES = """
import multiprocessing
import sys
import threading

from toy.helpers import twice
from manyhop.system import numba_cache, numba_kernels

@numba_kernels.kernel("int64(int64)")
def double(x):
    return twice(x)

@numba_kernels.kernel("int64(int64)")
def quadruple(x):
    return twice(twice(x))

def child():
    print(double(21), quadruple(1), flush=True)

def main():
    compiling, go_on = threading.Event(), threading.Event()
    def begin(name):
        compiling.set()
        go_on.wait()
    numba_cache.progress.begin = begin
    thread = threading.Thread(target=double, args=(1,))  # holds numba's lock
    thread.start()
    compiling.wait()
    threading.Timer(0.5, go_on.set).start()
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child)
    process.start()
    process.join(300)
    process.kill()
    thread.join()
    print(process.exitcode, double(4))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_made_while_a_kernel_compiles(run, tmp_path, method):
    """A child has the kernels that were compiled before, and compiles or loads the others."""
    (tmp_path / "toy/processes.py").write_text(PROCESSES)
    (tmp_path / "main.py").write_text("import toy.processes\nif __name__ == '__main__':\n    toy.processes.main()\n")
    printed, log = start(tmp_path, "main.py", method).communicate()
    assert printed == "42 4\n0 8\n", log


CACHED = """
import json, os, sys
from pathlib import Path
import numba, torch  # no process for a case imports them again

def in_a_child(prepares):
    if os.fork() == 0:
        from manyhop.features.cpu_kernels import gather_rows
        from manyhop.system.numba_kernels import prepare
        from manyhop.sampling.cpu.kernels.random import permute_positions
        print(permute_positions.is_cached(), gather_rows.is_cached(), flush=True)
        if prepares:
            prepare(permute_positions, gather_rows)
        os._exit(0)
    assert os.wait()[1] == 0

in_a_child(True)
for name, old, new in json.loads(sys.argv[1]):
    path, source = Path(name), Path(name).read_text()
    assert old in source, name
    path.write_text(source.replace(old, new, 1))
    in_a_child(False)
    path.write_text(source)
"""


@pytest.mark.slow
def test_an_edited_helper_of_the_engine_compiles_its_kernels_again(tmp_path):
    engine = tmp_path / "plugin/manyhop"
    shutil.copytree(Path(manyhop.__file__).parent, engine, ignore=shutil.ignore_patterns("__pycache__"))
    edits = [
        ("sampling/cpu/kernels/random.py", "z >> _U30", "z >> _U27", "False True"),  # a helper
        ("sampling/random.py", "GAMMA = ", "GAMMA = 2 + ", "False True"),  # a constant of another module
        ("system/numba_kernels.py", "_OPTIONS: ", "_OPTIONS : ", "False False"),  # what both are made with
        ("sampling/check.py", "import", "import  ", "True True"),  # no part of a kernel
    ]
    files = json.dumps([(str(engine / file), old, new) for file, old, new, _ in edits])
    printed, log = start(tmp_path, "-c", CACHED, files, PYTHONPATH=str(engine.parent)).communicate()
    assert printed.splitlines() == ["False False", *(expected for *_, expected in edits)], log


@numba_kernels.helper
def _far(x):
    return x * x


@numba_kernels.helper
def _near(x, far):
    return _far(x) if far else x + 1


@numba_kernels.kernel("int64(int64, boolean)")
def _kernel(x, far):
    return _near(x, far)


def test_variants_do_without_helpers():
    variant = numba_kernels.without(_kernel, _far)
    assert [variant(7, False), variant(7, True)] == [8, 0]
    assert [_kernel(7, False), _kernel(7, True)] == [8, 49]


def test_kernels_compiled_within_a_stage():
    @numba_kernels.kernel("int64(int64)")
    def add(x):
        return x + 3

    stats = Stats()
    start = time.perf_counter()
    assert add(1) == 4
    stats.record(0, "gather", start, time.perf_counter())
    report = stats.report()
    assert report.compile_s > report.gather_s > 0
    start = time.perf_counter()
    add(1)
    stats.record(1, "gather", start, time.perf_counter())
    assert stats.report(report).compile_s == 0


def test_variants_of_a_kernel_have_names_of_their_own():
    """Machine code from the disk finds the functions that it calls by name, also those that were compiled just now."""
    from manyhop.sampling.cpu.kernels import hop as hop

    variants = [k for k in vars(hop).values() if hasattr(k, "py_func") and "_batch" in k.py_func.__name__]
    names = [k.py_func.__qualname__ for k in variants]
    assert len(names) >= 2
    assert len(set(names)) == len(names)
    for variant in variants:
        for name, called in variant.py_func.__globals__.items():
            full = vars(hop).get(name)
            if hasattr(called, "py_func") and hasattr(full, "py_func") and called is not full:
                assert called.py_func.__qualname__ != full.py_func.__qualname__
