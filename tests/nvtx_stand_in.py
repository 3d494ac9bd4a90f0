"""Counts the ranges that loaders of a script push, where torch has no CUDA."""

import json
import os
import subprocess
import sys

HEAD = """
import collections, json, threading, warnings
warnings.simplefilter("ignore")
import torch
from manyhop.errors import InputError
from manyhop.system.ranges import ranged

calls, stacks = collections.Counter(), threading.local()

def push(name):
    inside = stacks.__dict__.setdefault("names", [])
    inside.append(name)
    calls[" ".join(inside)] += 1

def counts_of(batches):
    calls.clear()
    for _ in batches:
        pass
    return dict(calls)

torch.version.cuda = None
try:
    ranged("wait")
except InputError as error:
    assert "a PyTorch build with CUDA for MANYHOP_NVTX=1" in str(error)
else:
    raise AssertionError
torch.version.cuda = "13.0"
torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = push, lambda: stacks.names.pop()
"""

OF_FOUR_BATCHES = {
    "manyhop.wait": 5,
    "manyhop.assemble": 4,
    "manyhop.assemble manyhop.sample": 4,
    "manyhop.assemble manyhop.gather": 4,
}


def counted_ranges(script: str) -> dict[str, dict[str, int]]:
    """Run a script that fills ``found``: name -> ``counts_of(batches)``; ranges within others have their names, too."""
    code = f"{HEAD}\nfound = {{}}\n{script}\nprint(json.dumps(found))"
    environ = os.environ | {"MANYHOP_NVTX": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert run.returncode == 0, run.stderr
    found: dict[str, dict[str, int]] = json.loads(run.stdout.splitlines()[-1])
    return found
