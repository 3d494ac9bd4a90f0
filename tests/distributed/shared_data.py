"""Data for tests of sharing, and waiting for other processes."""

import time

import torch
from torch_geometric.data import Data, HeteroData

import manyhop_pyg


def make_data(num_nodes=200, num_edges=3000, width=8):
    g = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(num_nodes, width, generator=g),
        y=torch.randint(0, 3, (num_nodes,), generator=g),
        edge_index=torch.randint(0, num_nodes, (2, num_edges), generator=g),
        edge_attr=torch.arange(num_edges).view(-1, 1),
        edge_weight=torch.rand(num_edges, generator=g),
        time=torch.randint(0, 20, (num_nodes,), generator=g),
        edge_time=torch.rand(num_edges, generator=g),
        name="small",
    )


def make_hetero():
    g = torch.Generator().manual_seed(2)
    data = HeteroData(name="typed")
    data["a"].x, data["b"].x = torch.randn(50, 3, generator=g), torch.randn(70, 5, generator=g)
    for t, n in ((("a", "to", "b"), (50, 70)), (("b", "back", "a"), (70, 50)), (("a", "none", "a"), (50, 50))):
        size = 0 if t[1] == "none" else 400
        data[t].edge_index = torch.stack([torch.randint(0, k, (size,), generator=g) for k in n])
    return data


def make_stores():
    data, features, graph = make_data(), manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(200, 200))
    return features, graph


def same_values(a, b):
    return all(torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k] for k, v in a.to_dict().items())


def refused(call, *args, **kwargs):
    """The error of a call as (type, text, ranks)."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "ranks", None)
    return None


def wait_until(condition):
    """Wait for what another process does, or the kernel."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def wait_for(file):
    """Wait until there is a file that another process makes."""
    assert wait_until(file.exists), file
