"""Changes in place of what a loader was made of."""

import pytest
import torch
from torch_geometric.data import Data

import manyhop_pyg

N, M = 1000, 5000


def edges(dtype):
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, N, (2, M), generator=draw)
    return src.to(dtype), dst.sort().values.to(dtype)


def store(row, colptr):
    features, graph = manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    features.put_tensor(torch.zeros(N, 2), group_name=None, attr_name="x", index=None)
    graph.put_edge_index((row, colptr), edge_type=None, layout="csc", size=(N, N))
    return features, graph


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("source", ["list", "columns", "weights", "times"])
def test_existing_loaders_keep_their_edges(source, dtype):
    src, dst = edges(dtype)
    colptr = torch.searchsorted(dst, torch.arange(N + 1, dtype=dtype))
    edge_index, options = torch.stack([src, dst]), {}
    data = Data(num_nodes=N, edge_index=edge_index)
    changed = [edge_index]
    if source == "columns":
        data, changed = store(src, colptr), [src, colptr]
    elif source == "weights":
        data.edge_w = torch.rand(M, dtype=torch.float64)
        changed, options = [edge_index, data.edge_w], {"weight_attr": "edge_w"}
    elif source == "times":
        data.edge_t = torch.zeros(M, dtype=torch.int64)
        changed = [edge_index, data.edge_t]
        options = {"time_attr": "edge_t", "input_time": torch.full((N,), 5)}
    loader = manyhop_pyg.NeighborLoader(data, [5, 5], batch_size=50, **options)
    times = {"input_time": torch.full((50,), 5)} if source == "times" else {}
    before = loader.batch(torch.arange(50), key=(1, 0, 0), **times)
    for tensor in changed:
        tensor.fill_(2**31 - 1)  # out of range
    after = loader.batch(torch.arange(50), key=(1, 0, 0), **times)
    assert torch.equal(before.n_id, after.n_id)
    assert torch.equal(before.e_id, after.e_id)
