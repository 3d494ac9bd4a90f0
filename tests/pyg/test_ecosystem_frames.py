"""Relational data: tables as TensorFrames of nodes, times, and a target that a transform attaches."""

import dataclasses
import warnings

import pytest
import torch
from torch_geometric.data import HeteroData

from manyhop_pyg import FeatureStore, GraphStore, NeighborLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch_frame = pytest.importorskip("torch_frame", reason="pytorch-frame is not installed")

ORDERS = ("order", "of", "customer")
BACK = ("customer", "rev_of", "order")


def table(n, g):
    """One column of numbers, two of categories, and the row number as label."""
    return torch_frame.TensorFrame(
        feat_dict={
            torch_frame.numerical: torch.randn(n, 1, generator=g),
            torch_frame.categorical: torch.randint(0, 3, (n, 2), generator=g),
        },
        col_names_dict={torch_frame.numerical: ["price"], torch_frame.categorical: ["colour", "size"]},
        y=torch.arange(n),
    )


@pytest.fixture
def relational():
    g = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["customer"].tf, data["order"].tf = table(30, g), table(200, g)
    data["order"].time = torch.randint(0, 100, (200,), generator=g)
    data["customer"].time = torch.zeros(30, dtype=torch.long)
    of = torch.stack([torch.arange(200), torch.randint(0, 30, (200,), generator=g)])
    data[ORDERS].edge_index, data[BACK].edge_index = of, of.flip(0)
    return data


@dataclasses.dataclass
class AttachTarget:
    """Attaches the target of each seed, as relbench does."""

    entity: str
    target: torch.Tensor

    def __call__(self, batch):
        batch[self.entity].y = self.target[batch[self.entity].input_id]
        return batch


def check(batch, data):
    for kind in data.node_types:
        tf, n_id = batch[kind].tf, batch[kind].n_id
        assert isinstance(tf, torch_frame.TensorFrame)
        assert torch.equal(tf.y, n_id)
        whole = data[kind].tf
        for stype in whole.stypes:
            assert torch.equal(tf.feat_dict[stype], whole.feat_dict[stype][n_id])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_task_over_time(relational, num_workers):
    ids, times = torch.arange(30).repeat(2), torch.tensor([40] * 30 + [80] * 30)
    target = torch.rand(60)
    loader = NeighborLoader(
        relational,
        num_neighbors={t: [8, 4] for t in relational.edge_types},
        input_nodes=("customer", ids),
        input_time=times,
        time_attr="time",
        temporal_strategy="last",
        transform=AttachTarget("customer", target),
        batch_size=16,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    for _ in range(2):
        seen = []
        for batch in loader:
            check(batch, relational)
            customer, order = batch["customer"], batch["order"]
            seen.append(customer.input_id)
            assert torch.equal(customer.y, target[customer.input_id])
            assert torch.equal(customer.seed_time, times[customer.input_id])
            assert (order.time <= customer.seed_time[order.batch]).all()
        assert torch.equal(torch.cat(seen).sort().values, torch.arange(60))


def test_stores(relational):
    features, graph = FeatureStore(), GraphStore()
    for kind in relational.node_types:
        features[kind, "tf", None] = relational[kind].tf
    for edge_type in relational.edge_types:
        size = tuple(relational[kind].num_nodes for kind in edge_type[::2])
        graph[edge_type, "coo", False, size] = tuple(relational[edge_type].edge_index)
    for batch in NeighborLoader((features, graph), [4, 4], ("customer", torch.arange(30)), batch_size=10):
        check(batch, relational)
