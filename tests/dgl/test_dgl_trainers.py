"""What Accelerate reads of loaders before it would split their batches over ranks."""

import dgl
import pytest
import torch

import manyhop_dgl
import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def loaders():
    graph = dgl.graph((torch.arange(20), torch.arange(20)))
    sampler = manyhop_dgl.NeighborSampler([2])
    yield manyhop_dgl.DataLoader(graph, torch.arange(20), sampler, batch_size=10), "use_ddp=True"
    items = gb.ItemSampler(gb.ItemSet(torch.arange(20), names="seeds"), batch_size=10)
    yield gb.DataLoader(items), "DistributedItemSampler"


def test_a_loader_of_one_rank_is_prepared_and_one_of_several_is_told_how_to_share(monkeypatch):
    for loader, way in loaders():
        assert loader._is_accelerate_prepared
        assert len(list(loader)) == loader.stats().metrics()["manyhop/batches"] == 2
        with monkeypatch.context() as environ:
            environ.setenv("WORLD_SIZE", "2")
            with pytest.raises(InputError, match=way):
                _ = loader._is_accelerate_prepared
