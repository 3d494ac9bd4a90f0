"""What Accelerate and Ray Train read of DGL's and GraphBolt's loaders before they would split them over ranks."""

import dgl
import pytest
import torch

import manyhop_dgl
import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def loaders():
    """A loader of each kind, of nodes, and the argument by which its ranks share batches."""
    graph = dgl.graph((torch.arange(20), torch.arange(20)))
    yield manyhop_dgl.DataLoader(graph, torch.arange(20), manyhop_dgl.NeighborSampler([2])), "use_ddp=True"
    yield gb.DataLoader(gb.ItemSampler(gb.ItemSet(torch.arange(20), names="seeds"), batch_size=1)), "DistributedItemS"


def test_a_loader_of_one_rank_is_prepared():
    for loader, _ in loaders():
        assert loader._is_accelerate_prepared
        assert len(list(loader)) == loader.stats().metrics()["manyhop/batches"] == 20


def test_ranks_that_do_not_share_batches_are_told_how_to(monkeypatch):
    for loader, remedy in loaders():
        with monkeypatch.context() as environ:
            environ.setenv("WORLD_SIZE", "2")
            with pytest.raises(InputError, match=rf"in Accelerator\.prepare.* 2 ranks.*Pass .*{remedy}"):
                _ = loader._is_accelerate_prepared
