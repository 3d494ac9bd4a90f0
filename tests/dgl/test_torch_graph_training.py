"""The models of DGL's examples learn the same on graphs on torch tensors as with DGL's C++."""

import pytest
import torch
from torch_graph_training import MODELS, make_loader, train
from torch_graphs import on_torch

from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too
from manyhop_dgl_cuda.index import TorchGraphIndex


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "link prediction"])
def test_losses_are_those_with_the_library_of_dgl(name, idtype):
    if name == "GraphBolt" and idtype == torch.int32:
        pytest.skip("GraphBolt chooses the ids of its blocks")
    expected, _ = train(name, idtype=idtype)
    with graphs_of_cpu_too():
        batch = next(iter(make_loader(name, "cpu", idtype=idtype)))
        block = (batch.blocks if name == "GraphBolt" else batch[-1])[0]
        assert type(block._graph) is TorchGraphIndex
        found, _ = train(name, idtype=idtype)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_link_prediction(idtype):
    """Its graphs are made by DGL's C++ on the host, and moved."""

    def moved(batch):
        inputs, pairs, negatives, blocks = batch
        return inputs, on_torch(pairs), on_torch(negatives), [on_torch(block) for block in blocks]

    expected, _ = train("link prediction", idtype=idtype)
    found, _ = train("link prediction", idtype=idtype, convert=moved)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ["SAGE", "GAT", "RelGraphConv", "HeteroGraphConv"])
def test_under_autocast(name):
    expected, _ = train(name)
    with graphs_of_cpu_too():
        found, _ = train(name, dtype=torch.bfloat16)
    assert found == pytest.approx(expected, rel=0.1)
