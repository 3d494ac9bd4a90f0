"""Ranges for Nsight Systems around the stages of all loaders, with NVTX stood in for."""

import json
import os
import subprocess
import sys

from harness import HARNESSES

SCRIPT = """
import collections, json, sys, threading, warnings
warnings.simplefilter("ignore")
import torch
from manyhop.errors import InputError
from manyhop.system.ranges import ranged

calls, stacks = collections.Counter(), threading.local()

def push(name):
    inside = stacks.__dict__.setdefault("names", [])
    inside.append(name)
    calls[" ".join(inside)] += 1

torch.version.cuda = None
try:
    ranged("wait")
except InputError as error:
    assert "a PyTorch build with CUDA for MANYHOP_NVTX=1" in str(error)
else:
    raise AssertionError
torch.version.cuda = "13.0"
torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = push, lambda: stacks.names.pop()

from harness import HARNESSES

found = {}
for name, harness in HARNESSES.items():
    if harness.installed() and name != "toy":
        source = harness.source()
        for each in (None, print):
            calls.clear()
            batches = len(list(harness.loader(source, num_workers=1, each=each)))
            found[f"{name}, {each}"] = {"batches": batches, **calls}
print("\\n" + json.dumps(found))
"""


def test_stages_are_ranges_if_the_environment_asks_for_them():
    environ = os.environ | {"MANYHOP_NVTX": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environ)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert len(found) == (6 if HARNESSES["DGL"].installed() else 4)
    stages = {"manyhop.assemble": 7, "manyhop.assemble manyhop.sample": 7, "manyhop.assemble manyhop.gather": 7}
    assert all(counts == {"batches": 7, "manyhop.wait": 8, **stages} for counts in found.values()), found
