"""What Accelerate and Ray Train read of DGL's and GraphBolt's loaders before they would split them over ranks."""

import dgl
import pytest
import torch

import manyhop_dgl
import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def loaders(indices, items):
    """A loader of each kind, of nodes."""
    graph = dgl.graph((torch.arange(20), torch.arange(20)))
    yield manyhop_dgl.DataLoader(graph, indices, manyhop_dgl.NeighborSampler([2]))
    yield gb.DataLoader(gb.ItemSampler(gb.ItemSet(items, names="seeds"), batch_size=1))


class Accelerator:
    """As far as loaders ask for it."""

    even_batches, split_batches, use_stateful_dataloader = True, False, False


# As Accelerate's method reads the attribute.
PREPARED = {"__name__": "accelerate.accelerator"}
exec("def prepare_data_loader(self, loader):\n    return getattr(loader, '_is_accelerate_prepared', False)", PREPARED)


def test_a_loader_of_one_rank_is_prepared():
    for loader in loaders(torch.arange(20), torch.arange(20)):
        assert loader._is_accelerate_prepared
        assert PREPARED["prepare_data_loader"](Accelerator(), loader)
        assert len(list(loader)) == loader.stats().metrics()["manyhop/batches"] == 20


def test_batches_that_a_loader_does_not_cut_cannot_be_shared(monkeypatch):
    given = [torch.arange(3), torch.arange(5)]
    remedies = ("a dataset of batches as indices. Pass a tensor", "no ItemSampler of items .* Begin the chain with one")
    for loader, remedy in zip(loaders(given, iter(range(5))), remedies, strict=True):
        with monkeypatch.context() as environ:
            environ.setenv("WORLD_SIZE", "2")
            assert loader._is_accelerate_prepared  # others may look
            with pytest.raises(InputError, match=rf"in Accelerator\.prepare.*{remedy}"):
                PREPARED["prepare_data_loader"](Accelerator(), loader)
