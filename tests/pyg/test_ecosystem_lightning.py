"""PyG's Lightning data modules under ``install()``: they build the loaders themselves."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers_pyg import check_batch
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import BaseSampler

import manyhop_pyg
from manyhop.lightning import LoaderStatsMonitor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("pytorch_lightning")
    from torch_geometric.data.lightning import LightningLinkData, LightningNodeData

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning: few workers, no logger, torch's deprecations


@pytest.fixture(autouse=True)
def _installed():
    manyhop_pyg.install()
    yield
    manyhop_pyg.uninstall()


class Model(pl.LightningModule):
    """Counts what it sees."""

    def __init__(self, links=False):
        super().__init__()
        self.net = GraphSAGE(4, 8, num_layers=2, out_channels=3)
        self.links = links
        self.seen = {"train": [], "val": [], "test": [], "predict": []}

    def training_step(self, batch, batch_idx):
        self.seen["train"].append(batch)
        h = self.net(batch.x, batch.edge_index)
        if self.links:
            score = (h[batch.edge_label_index[0]] * h[batch.edge_label_index[1]]).sum(-1)
            return F.binary_cross_entropy_with_logits(score, batch.edge_label)
        return F.cross_entropy(h[: batch.batch_size], batch.y[: batch.batch_size])

    def validation_step(self, batch, batch_idx):
        self.seen["val"].append(batch)

    def test_step(self, batch, batch_idx):
        self.seen["test"].append(batch)

    def predict_step(self, batch, batch_idx):
        self.seen["predict"].append(batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer(tmp_path, **options):
    options = {"max_epochs": 2, "limit_train_batches": 2, "logger": False} | options
    return pl.Trainer(
        accelerator="cpu", devices=1, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, **options,
    )  # fmt: skip


@pytest.fixture
def split(data):
    """The same graph with three masks."""
    ids = torch.arange(60)
    data.train_mask, data.val_mask, data.test_mask = ids < 30, (ids >= 30) & (ids < 45), ids >= 45
    data.pred_mask = ids >= 50
    return data


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nodes(split, tmp_path, num_workers):
    module = LightningNodeData(
        split, loader="neighbor", num_neighbors=[4, 3], batch_size=8, num_workers=num_workers, pin_memory=False,
        eval_loader_kwargs={"num_neighbors": [-1, -1], "batch_size": 5},
    )  # fmt: skip
    assert type(module.graph_sampler) is manyhop_pyg.NeighborSampler
    assert module.graph_sampler.num_neighbors.values == [4, 3]
    assert module.eval_graph_sampler.num_neighbors.values == [-1, -1]
    model, run = Model(), trainer(tmp_path)
    run.fit(model, datamodule=module)
    assert type(run.train_dataloader) is type(run.val_dataloaders) is manyhop_pyg.NodeLoader
    assert run.train_dataloader.persistent_workers == (num_workers > 0)
    run.test(model, datamodule=module, verbose=False)
    run.predict(model, datamodule=module)
    assert [b.batch_size for b in model.seen["train"]] == [8] * 4
    assert len({tuple(b.input_id.tolist()) for b in model.seen["train"]}) == 4
    for name, mask, sizes in (("test", split.test_mask, [5] * 3), ("predict", split.pred_mask, [5] * 2)):
        batches = model.seen[name]
        assert [b.batch_size for b in batches] == sizes
        assert torch.equal(torch.cat([b.input_id for b in batches]), mask.nonzero().view(-1))
        for b in batches:
            assert torch.equal(b.x, split.x[b.n_id])
            wanted = torch.isin(split.edge_index[1], b.n_id[: b.batch_size]).nonzero().view(-1)
            assert torch.isin(wanted, b.e_id).all()


def test_links(data, tmp_path):
    module = LightningLinkData(
        data, input_train_edges=data.edge_index[:, :200], input_val_edges=data.edge_index[:, 200:], loader="neighbor",
        num_neighbors=[4, 3], batch_size=20, neg_sampling_ratio=1.0, pin_memory=False,
    )  # fmt: skip
    model, run = Model(links=True), trainer(tmp_path)
    run.fit(model, datamodule=module)
    assert type(run.train_dataloader) is type(run.val_dataloaders) is manyhop_pyg.LinkLoader
    assert len(model.seen["train"]) == 4
    for batch in model.seen["train"]:
        assert batch.edge_label.tolist() == [1] * 20 + [0] * 20
        ends = batch.n_id[batch.edge_label_index[:, :20]]
        assert torch.equal(ends, data.edge_index[:, batch.input_id])


def test_typed_nodes_and_a_sampler_of_the_user(hetero, tmp_path):
    hetero["paper"].train_mask = torch.arange(40) < 30
    sampler = manyhop_pyg.HGTSampler(hetero, [4, 4])
    for options in ({"num_neighbors": {t: [2, 2] for t in hetero.edge_types}}, {"node_sampler": sampler}):
        module = LightningNodeData(hetero, batch_size=10, pin_memory=False, **options)
        assert isinstance(module.graph_sampler, BaseSampler)
        loader = module.train_dataloader()
        assert type(loader) is manyhop_pyg.NodeLoader
        assert [b["paper"].batch_size for b in loader] == [10] * 3


class Logger(pl.loggers.logger.DummyLogger):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def log_metrics(self, metrics, step=None):
        self.seen.append(metrics)


def test_statistics_of_loaders_are_logged(split, tmp_path):
    logger, model = Logger(), Model()
    run = trainer(tmp_path, logger=logger, callbacks=[LoaderStatsMonitor()], limit_train_batches=None)
    loader = manyhop_pyg.NeighborLoader(split, [3, 2], split.train_mask, batch_size=8, shuffle=True, num_workers=2)
    next(iter(loader))
    run.fit(model, loader)
    assert sum(batch.batch_size for batch in model.seen["train"]) == 2 * 30
    for batch in model.seen["train"]:
        check_batch(batch, split)
    names = {f"manyhop/{name}" for name in ("seeds_per_s", "edges_per_s", "waited_s", "step_s")}
    assert [{name for name in metrics if "manyhop" in name} for metrics in logger.seen] == [names] * 2
    assert all(metrics["manyhop/edges_per_s"] > 0 for metrics in logger.seen)
