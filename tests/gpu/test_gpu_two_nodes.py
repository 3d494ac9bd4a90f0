"""Two simulated nodes with a torchrun and a GPU each, which reach each other over sockets only: the CPU's test on GPUs.

Prints a line per case: ``pytest -s tests/gpu/test_gpu_two_nodes.py``.
"""

import contextlib
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "distributed"))

import torchruns
from launch import Node
from two_nodes_job import IN_STORE, LOADERS, ON_GPU, check_batches

pytestmark = [pytest.mark.multigpu, pytest.mark.needs("pylibwholegraph")]
pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

SCRIPT = Path(__file__).parents[1] / "distributed" / "two_nodes_job.py"
NODES = [
    Node(env={"CUDA_VISIBLE_DEVICES": gpu, "NCCL_HOSTID": gpu, "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})
    for gpu in ("0", "1")
]
TIMEOUT = "10"  # seconds that ranks wait for each other, also while kernels are compiled
LIMIT = 120.0  # seconds for all faults
FAULTS = [("pyg", "cuda-cuda"), ("pyg", "sharded"), ("pyg", IN_STORE), ("dgl", "distributed")]


def both(runs):
    return "".join(f"node {k}:\n{run.output()}\n" for k, run in enumerate(runs))


def test_batches_are_those_of_one_process(tmp_path):
    args = ["--folder", str(tmp_path), "--device", "cuda"]
    with torchruns.start(SCRIPT, "see_batches", *args, nodes=NODES, ranks_per_node=1, fresh=True) as runs:
        assert torchruns.wait(runs, 200) == [0, 0], both(runs)
    with torchruns.start(SCRIPT, "resume", *args, nodes=[Node()], ranks_per_node=2, fresh=True) as runs:  # on one node
        assert torchruns.wait(runs, 100) == [0], both(runs)
    cases = check_batches(tmp_path, "cuda", 2, 2)
    for case in cases:
        print(f"{case}: two nodes give the batches of one process, one node goes on")
    assert len(cases) == len(LOADERS) * len(ON_GPU)


def test_faults():
    """Four jobs at once. In the first, node 1 is late before its rank is killed: timeouts of 10 s stand for 600 s."""
    begin, jobs = time.monotonic(), {}
    with contextlib.ExitStack() as at_end:
        for framework, placement in FAULTS:
            args = ["fail", "--framework", framework, "--placement", placement, "--device", "cuda"]
            args += ["--timeout", TIMEOUT, *(["--late"] if not jobs else [])]
            how = torchruns.start(SCRIPT, *args, nodes=NODES, ranks_per_node=1, fresh=True)
            jobs[framework, placement] = at_end.enter_context(how)
        late, *others = jobs.items()
        for (framework, placement), runs in (*others, late):
            left = max(1.0, begin + LIMIT - time.monotonic())
            assert torchruns.wait(runs, left) == [1, 1], both(runs)
            assert torchruns.names(runs[0].output(), 1), both(runs)
            took = time.monotonic() - begin
            print(f"{took:.0f} s: {framework} {placement}: the killed rank is named on the other node", flush=True)
        output, everything = late[1][0].output(), both(late[1])
        assert torchruns.was_awaited(output, 0), everything
        assert "rank 0 has 13 batches" in output, everything
        assert f"rank 0: a loader of several ranks: rank 1 did not arrive within {TIMEOUT} s" in output, everything
    print("a node that loads for long is awaited, and one that does not come is named")
