"""DGL's models under DDP on graphs on torch tensors; tests/gpu/test_gpu_dgl_training.py does it on GPUs."""

import sys
from pathlib import Path

import pytest

import manyhop_dgl  # noqa: F401  # makes dgl importable

pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
sys.path[:0] = [str(Path(__file__).parents[1] / "distributed")]

from launch import Launcher  # noqa: E402
from torch_graph_training import MODELS, check_ranks, train_on_ranks  # noqa: E402


@pytest.fixture(scope="module")
def ranks():
    """What two ranks returned."""
    launcher = Launcher()
    try:
        return launcher.run(train_on_ranks, "cpu")
    finally:
        launcher.close()


@pytest.mark.parametrize("name", MODELS)
def test_ranks_train(ranks, name):
    check_ranks(name, ranks)
