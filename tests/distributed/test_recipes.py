"""The recipes of docs/scale/launching.md run: nodes are network namespaces, commands of clusters are stand-ins.

What ranks of two nodes then do is the subject of test_two_nodes.py.
"""

import os
import re
import stat
import subprocess
from pathlib import Path

import forks
import pytest
from launch import reserve_port

pytestmark = pytest.mark.slow

DOC = (Path(__file__).parents[2] / "docs" / "scale" / "launching.md").read_text()
TRAIN = """
import torch, manyhop
world = manyhop.init()
ranks = torch.tensor([world.rank])
torch.distributed.all_reduce(ranks)
print(f"rank {world.rank} of {world.world_size} on node {world.node}: sum {ranks.item()}", flush=True)
"""
TORCHRUN = """#!/bin/bash
exec {python} -m torch.distributed.run "$@"
"""
AT_NODE = """#!/bin/bash
# at-node NUMBER COMMAND...: a command on a node
case $1 in
0) {node0} "${{@:2}}";;
1) {node1} "${{@:2}}";;
esac
"""
SSH = """#!/bin/bash
[ "$1" = "{address0}" ] && number=0 || number=1
at-node $number bash -c "$2"
"""
SRUN = """#!/bin/bash
for number in 0 1; do SLURM_NODEID=$number at-node $number "$@" & pids+=($!); done
for pid in "${{pids[@]}}"; do wait $pid || exit 1; done
"""
SCONTROL = """#!/bin/bash
printf '{address0}\\n{address1}\\n'
"""


def recipe(heading):
    """The block of code under a heading."""
    return re.search(rf"## {heading}\n.*?```\w+\n(.*?)```", DOC, re.DOTALL)[1]


@pytest.fixture
def cluster(two_nodes, tmp_path):
    """Runs a shell script that has two nodes with two ranks each; gives what was printed."""
    places = {f"address{k}": node.address for k, node in enumerate(two_nodes)} | {"python": forks.python()}
    for k, node in enumerate(two_nodes):
        env = " ".join(f"{name}={value}" for name, value in node.env.items())
        places[f"node{k}"] = (f"ip netns exec {node.namespace} " if node.namespace else "") + f"env {env}"
    tools = {"torchrun": TORCHRUN, "at-node": AT_NODE, "ssh": SSH, "srun": SRUN, "scontrol": SCONTROL}
    for name, text in tools.items():
        (tmp_path / name).write_text(text.format(**places))
        (tmp_path / name).chmod(stat.S_IRWXU)
    (tmp_path / "train.py").write_text(TRAIN)

    def run(script, **variables):
        for old, new in {
            "10.0.0.1": places["address0"],
            "10.0.0.2": places["address1"],
            "train-0.train": places["address0"],
            "29500": str(reserved.getsockname()[1]),
            "--nnodes 4": "--nnodes 2",
            "--nproc-per-node 8": "--nproc-per-node 2",
        }.items():
            script = script.replace(old, new)
        env = forks.environment(PATH=f"{tmp_path}:{os.environ['PATH']}", **variables)
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    with reserve_port() as reserved:
        yield run


def check(output):
    """Each node has two of the four ranks, whichever node is the first."""
    found = re.findall(r"rank (\d) of 4 on node (\d): sum 6", output)
    assert sorted(found) == [("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")], output


def test_ssh(cluster):
    check(cluster(recipe("ssh")))


def test_slurm(cluster):
    check(cluster(recipe("SLURM"), SLURM_JOB_NODELIST="node[0-1]", SLURM_JOB_NUM_NODES="2"))


def test_kubernetes(cluster, two_nodes):
    command = " ".join(re.search(r"args:\n\s+- >-\n(.*?)\n\s+resources", recipe("Kubernetes"), re.DOTALL)[1].split())
    pods = [
        f"JOB_COMPLETION_INDEX={index} POD_IP={node.address} at-node {index} bash -c '{command}' & pids+=($!)\n"
        for index, node in reversed(list(enumerate(two_nodes)))  # the first Pod comes last
    ]
    check(cluster("".join(pods) + 'for pid in "${pids[@]}"; do wait $pid || exit 1; done'))
