"""DGL's models under DDP on two GPUs, with DGL's build for CPUs and features sharded over the GPUs by WholeGraph."""

import sys
from pathlib import Path

import pytest

import manyhop_dgl  # noqa: F401  # makes dgl importable

pytestmark = [pytest.mark.multigpu, pytest.mark.needs("pylibwholegraph")]
pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
sys.path[:0] = [str(Path(__file__).parents[1] / "dgl")]

from torch_graph_training import MODELS, check_ranks, train_on_ranks  # noqa: E402


@pytest.fixture(scope="module")
def ranks(gpu_launcher):
    """What both ranks returned."""
    return gpu_launcher.run(train_on_ranks, "cuda", "sharded", fresh=True)


def test_features_are_sharded(ranks):
    assert [places for _, places in ranks] == [{"sharded"}] * 2


@pytest.mark.parametrize("name", MODELS)
def test_ranks_train(ranks, name):
    check_ranks(name, ranks)
