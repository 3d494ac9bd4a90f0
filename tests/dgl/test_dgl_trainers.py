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


class Accelerator:
    """As far as loaders of one rank ask for it."""

    even_batches, split_batches, use_stateful_dataloader = True, False, False


# As Accelerate's method reads the attribute.
PREPARED = {"__name__": "accelerate.accelerator"}
exec("def prepare_data_loader(self, loader):\n    return getattr(loader, '_is_accelerate_prepared', False)", PREPARED)


def test_a_loader_of_one_rank_is_prepared_and_one_of_several_raises_how_to_share(monkeypatch):
    for loader, way in loaders():
        assert loader._is_accelerate_prepared
        assert len(list(loader)) == loader.stats().metrics()["manyhop/batches"] == 2
        assert PREPARED["prepare_data_loader"](Accelerator(), loader)
        with monkeypatch.context() as environ:
            environ.setenv("WORLD_SIZE", "2")
            assert loader._is_accelerate_prepared  # others may look
            with pytest.raises(InputError, match=f"in Accelerator.*{way}"):
                PREPARED["prepare_data_loader"](Accelerator(), loader)
