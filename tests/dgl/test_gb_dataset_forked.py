"""Datasets in processes that were forked after torch had used several threads."""

import subprocess
import sys
import textwrap

import pytest
from gb_dataset_folders import write_homogeneous

SCRIPT = textwrap.dedent(
    """
    import multiprocessing, os, sys
    import torch
    import manyhop_dgl.graphbolt as gb
    from manyhop_graphbolt.datasets.preprocess import on_one_core_if_forked

    def load():
        dataset = gb.OnDiskDataset(sys.argv[1], force_preprocess=True).load()
        assert dataset.graph.num_edges == 100_000
        assert torch.get_num_threads() == 2

    before = len(os.listdir("/proc/self/task"))
    with on_one_core_if_forked():
        assert len(os.listdir("/proc/self/task")) == before  # starts none where it has nothing to do

    torch.set_num_threads(2)
    print((torch.rand(1_000_000) * 2).sum())  # OpenMP's threads are there
    child = multiprocessing.get_context("fork").Process(target=load)
    child.start()
    child.join(120)
    code = child.exitcode
    child.kill()
    assert code == 0, code
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_they_are_made_and_loaded(tmp_path):
    """OpenMP does not survive a fork: the child would wait for threads that only its parent has."""
    write_homogeneous(tmp_path / "data", "numpy", num_nodes=50_000, num_edges=100_000)
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
