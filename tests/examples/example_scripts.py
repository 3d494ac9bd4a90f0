"""Run the scripts in examples/ in their folder, in a quick setting, on the real data."""

import re
import subprocess
from pathlib import Path

import forks

EXAMPLES = Path(__file__).parents[2] / "examples"
FEWER_EDGES = str(Path(__file__).with_name("fewer_edges.py"))


def run(*arguments, processes=1, python=None, fails=None):
    """Return what a script prints; with ``fails``, it has to end with an error that says so in its last line."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [python or forks.python(), *(ranks if processes > 1 else []), *map(str, arguments)]
    done = subprocess.run(command, cwd=EXAMPLES, env=forks.environment(), capture_output=True, text=True)
    assert (done.returncode == 0) == (fails is None), done.stderr
    assert fails is None or fails in done.stderr.splitlines()[-1]
    assert "Warning" not in done.stderr
    return done.stdout


def numbers(pattern, text):
    return [float(found) for found in re.findall(pattern, text, flags=re.MULTILINE)]


def number(pattern, text):
    (found,) = numbers(pattern, text)
    return found
