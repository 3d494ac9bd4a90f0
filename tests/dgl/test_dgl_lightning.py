"""PyTorch Lightning, where it is installed: training with DGL's loader, and loaders that it makes anew."""

import pytest
import torch
from test_dgl_loader import DataLoader, dgl, flat, graph, sampler

lightning = pytest.importorskip("pytorch_lightning")
from lightning_training import fit  # noqa: E402  # needs Lightning

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("options", [{}, {"drop_last": True, "num_workers": 1, "persistent_workers": True}])
def test_training_and_loaders_made_anew(options):
    from pytorch_lightning.utilities.data import _update_dataloader

    g = graph("plain")
    loader = DataLoader(g, torch.arange(90), sampler(seed=1), batch_size=16, shuffle=True, seed=4, **options)
    again = _update_dataloader(loader, loader.sampler)
    assert type(again) is DataLoader
    assert (again.seed, again.batch_size, again.drop_last, len(again)) == (4, 16, *(loader.drop_last, len(loader)))
    assert [flat(batch) for batch in again] == [flat(batch) for batch in loader]

    assert all(vars(loader)[k] == vars(again)[k] for k in ("placement", "output", "pad", "worker_init_fn"))

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([dgl.nn.SAGEConv(3, 8, "mean"), dgl.nn.SAGEConv(8, 4, "mean")])

        def training_step(self, batch, _):
            _, _, blocks = batch
            h = self.layers[1](blocks[1], self.layers[0](blocks[0], blocks[0].srcdata["x"]).relu())
            return torch.nn.functional.cross_entropy(h, blocks[1].dstdata["y"] % 4)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    metrics = fit(Net(), loader)
    assert loader.epoch == 2
    assert [epoch["manyhop/batches"] for epoch in metrics] == [len(loader)] * 2


def test_ranks_options_of_loaders_made_anew():
    from pytorch_lightning.utilities.data import _update_dataloader

    loader = DataLoader(
        graph("plain"), torch.arange(90), sampler(), batch_size=16, use_ddp=True, ddp_seed=3, rank_timeout=50
    )
    again = _update_dataloader(loader, loader.sampler)
    assert (again.use_ddp, again.ddp_seed, again.seed, again.rank_timeout) == (True, 3, 3, 50.0)
    assert [flat(batch) for batch in again] == [flat(batch) for batch in loader]


@pytest.mark.gpu
@pytest.mark.parametrize("placement", [None, "auto", "pinned", "device"])
def test_the_placement_of_loaders_made_anew(placement):
    from pytorch_lightning.utilities.data import _update_dataloader

    options = {"batch_size": 16, "device": "cuda", "placement": placement, "seed": 4}
    loader = DataLoader(graph("plain"), torch.arange(90), sampler(seed=1), **options)
    again = _update_dataloader(loader, loader.sampler)
    assert vars(again)["placement"] == placement
    assert _places(again) == _places(loader)
    assert [flat(batch) for batch in again] == [flat(batch) for batch in loader]


def _places(loader):
    return loader.placement.topology.place, [choice.place for choice in loader.placement.features]
