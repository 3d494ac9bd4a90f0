"""Ranges for Nsight Systems, with NVTX stood in for."""

import json
import os
import subprocess
import sys

SCRIPT = """
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

torch.version.cuda = None
try:
    ranged("wait")
except InputError as error:
    calls[str(error)[:46]] += 1
torch.version.cuda = "13.0"
torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = push, lambda: stacks.names.pop()

from torch_geometric.data import Data
from manyhop_pyg import NeighborLoader

data = Data(x=torch.zeros(40, 3), edge_index=torch.arange(40).repeat(2, 1))
list(NeighborLoader(data, [2], batch_size=10, num_workers=1))
print(json.dumps(calls))
"""


def test_stages_are_ranges_if_the_environment_asks_for_them():
    environ = os.environ | {"MANYHOP_NVTX": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environ)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "Expected a torch with CUDA for MANYHOP_NVTX=1,": 1,
        "manyhop.wait": 5,
        "manyhop.assemble": 4,
        "manyhop.assemble manyhop.sample": 4,
        "manyhop.assemble manyhop.gather": 4,
    }
