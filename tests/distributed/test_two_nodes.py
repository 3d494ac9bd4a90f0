"""Two nodes with a torchrun each, on the CPU: batches, restart by other nodes, a killed rank, a late node."""

from pathlib import Path

import pytest
import torchruns
from launch import Node
from two_nodes_job import LOADERS, ON_CPU, check_batches

SCRIPT = Path(__file__).parent / "two_nodes_job.py"


@pytest.mark.slow
def test_batches_are_those_of_one_process(two_nodes, tmp_path):
    with torchruns.start(SCRIPT, "see_batches", "--folder", str(tmp_path), nodes=two_nodes, ranks_per_node=2) as runs:
        assert torchruns.wait(runs) == [0, 0], runs[0].output() + runs[1].output()
    with torchruns.start(SCRIPT, "resume", "--folder", str(tmp_path), nodes=[Node()], ranks_per_node=2) as runs:
        assert torchruns.wait(runs) == [0], runs[0].output()
    assert len(check_batches(tmp_path, "cpu", 4, 2)) == len(LOADERS) * len(ON_CPU)


@pytest.mark.parametrize(("framework", "placement"), [("pyg", "shared"), ("dgl", "sharded")])
def test_a_killed_rank_ends_the_other_node(two_nodes, framework, placement):
    args = ["fail", "--framework", framework, "--placement", placement, "--timeout", "10"]
    with torchruns.start(SCRIPT, *args, nodes=two_nodes, ranks_per_node=2) as runs:
        assert torchruns.wait(runs) == [1, 1], runs[0].output() + runs[1].output()
        assert torchruns.names(runs[0].output(), 3), runs[0].output()


@pytest.mark.slow
def test_a_node_that_loads_for_long_is_awaited_and_one_that_does_not_come_is_named(two_nodes):
    """Timeouts of 8 s stand for the default of 600 s."""
    args = ["fail", "--late", "--placement", "shared", "--timeout", "8"]
    with torchruns.start(SCRIPT, *args, nodes=two_nodes, ranks_per_node=2) as runs:
        assert torchruns.wait(runs) == [1, 1], runs[0].output() + runs[1].output()
        output = runs[0].output()
    for rank in (0, 1):
        assert torchruns.was_awaited(output, rank), output
        assert f"rank {rank} has 7 batches" in output, output
        assert f"rank {rank}: a loader of several ranks: ranks 2 and 3 did not arrive within 8 s" in output
    assert torchruns.names(output, 3), output
