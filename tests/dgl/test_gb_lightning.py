"""PyTorch Lightning, where it is installed: training with GraphBolt's loader."""

import pytest
import torch
from gb_graphs import batches, random_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

lightning = pytest.importorskip("pytorch_lightning")
from lightning_training import fit  # noqa: E402  # needs Lightning

pytestmark = pytest.mark.filterwarnings("ignore")

GRAPH = random_graph()
FEATURES = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
STORE = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(FEATURES)})


def loader(**kwargs):
    pipe = batches(("seeds", "labels"), (torch.arange(50), torch.arange(50) % 3), shuffle=True, seed=5)
    return gb.DataLoader(pipe.sample_neighbor(GRAPH, [3, 2]).fetch_feature(STORE, ["x"]), **kwargs)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(4, 3), []

    def training_step(self, batch, _):
        nodes = batch["nodes"]
        assert torch.equal(nodes.node_features["x"], FEATURES[nodes.input_nodes])
        self.seen.append(nodes.seeds)
        scores = self.layer(nodes.node_features["x"][: len(nodes.seeds)])
        return torch.nn.functional.cross_entropy(scores, nodes.labels)

    forward = training_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_training(options):
    net, given = Net(), loader(**options)
    metrics = fit(net, {"nodes": given})
    again = loader()
    assert [ids.tolist() for ids in net.seen] == [batch.seeds.tolist() for _ in range(2) for batch in again]
    assert [epoch["manyhop/nodes/batches"] for epoch in metrics] == [7, 7]
    assert all(epoch["manyhop/nodes/edges_per_s"] > 0 for epoch in metrics)


def test_trainers_that_make_loaders_again():
    """GraphBolt's own loader cannot be made again, either: Lightning asks for its arguments as attributes."""
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    with pytest.raises(InputError, match=r"in predict\(\) and for overfit_batches. Use validate\(\)"):
        lightning.Trainer(**options).predict(Net(), loader())
    with pytest.raises(InputError, match=r"or limit_train_batches"):
        lightning.Trainer(max_epochs=1, overfit_batches=2, **options).fit(Net(), loader())
    with pytest.raises(InputError, match=r"further arguments among \['overlap_graph_fetch',.* got 'workers'"):
        loader(workers=2)
