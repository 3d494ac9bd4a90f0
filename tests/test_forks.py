"""The stand-in for ``python``, which forks its processes: to those who start it, it is the interpreter."""

import os
import signal
import subprocess
import sys

import forks
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks.py needs Linux")


def run(*arguments, **how):
    return subprocess.run([forks.python(), *arguments], capture_output=True, text=True, timeout=300, **how)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('too bad')", 1),
        ("1 / 0", 1),
        ("import warnings; warnings.warn('odd')", 1),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
    ],
    ids=["end", "status", "text", "exception", "warning", "SIGTERM", "SIGKILL", "SIGSEGV"],
)
def test_a_process_ends_as_the_interpreter_does(code, status):
    ours = run("-W", "error", "-c", code)
    its = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert ours.returncode == its.returncode == status
    assert ours.stderr.splitlines()[-1:] == its.stderr.splitlines()[-1:]


def test_a_process_has_the_environment_folder_input_and_arguments_of_its_command(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(sys.argv[1:], sys.stdin.read(), os.getcwd(), os.environ['GIVEN'], 'HOME' in os.environ)"
    )
    env = {"PATH": os.environ["PATH"], "GIVEN": "value"}
    done = run("script.py", "a", "--b", cwd=tmp_path, env=env, input="text")
    assert done.stdout.strip() == f"['a', '--b'] text {tmp_path} value False", done.stderr


def test_signals_reach_the_process():
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)"
    )
    with subprocess.Popen([forks.python(), "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.wait(300) == 3


def test_a_process_does_not_outlive_its_command():
    code = "import time; print('ready', flush=True); time.sleep(300)"
    with subprocess.Popen([forks.python(), "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        assert process.stdout.read() == b""  # nobody holds the pipe any more
