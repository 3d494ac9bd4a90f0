"""A state is taken by a loader with the same samples only, and a difference is named."""

import pytest
import torch
from sampler_graphs import graph

import manyhop_dgl
from manyhop.errors import StateError
from manyhop_dgl import LaborSampler, NeighborSampler, PerSourceUniform, as_edge_prediction_sampler

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")


def loader(sampler=None, g=None, indices=None, **kwargs):
    indices = torch.arange(50) if indices is None else indices
    kwargs = {"batch_size": 8, "shuffle": True} | kwargs
    return manyhop_dgl.DataLoader(g or graph(), indices, sampler or NeighborSampler([3, 2]), **kwargs)


def edges(fanouts=(2,), negatives=1, **kwargs):
    sampler = NeighborSampler(list(fanouts))
    return loader(as_edge_prediction_sampler(sampler, negative_sampler=PerSourceUniform(negatives), **kwargs))


def weighted(factor):
    g = graph()
    g.edata["weight"] = g.edata["weight"] * torch.where(torch.arange(400) % 2 == 0, factor, 1)
    return loader(NeighborSampler([2], prob="weight"), g)


# What saves the state, what loads it, and what the error calls the difference.
DIFFERENCES = {
    "arguments of the sampler, replace: True": (loader, lambda: loader(NeighborSampler([3, 2], replace=True))),
    "arguments of the sampler, edge_dir: out": (loader, lambda: loader(NeighborSampler([3, 2], edge_dir="out"))),
    "graph_sampler: LaborSampler": (loader, lambda: loader(LaborSampler([3, 2]))),
    "layer_dependency: True": (
        lambda: loader(LaborSampler([3, 2])),
        lambda: loader(LaborSampler([3, 2], layer_dependency=True)),
    ),
    "number of nodes": (loader, lambda: loader(g=graph(num_nodes=61))),
    "weights": (lambda: weighted(1), lambda: weighted(2)),
    "sampler, fanouts": (edges, lambda: edges([3])),
    "negative_sampler, k: 2": (edges, lambda: edges(negatives=2)),
    "exclude: self": (edges, lambda: edges(exclude="self")),
    "fanouts: (DGL's sampler)": (
        lambda: loader(dgl.dataloading.ShaDowKHopSampler([3, 2])),
        lambda: loader(dgl.dataloading.ShaDowKHopSampler([2, 2])),
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_difference_is_named(name):
    saves, loads = (make() for make in DIFFERENCES[name])
    with pytest.raises(StateError, match=f"Expected a state of a loader with .*{name.split(': (')[0]}"):
        loads.load_state_dict(saves.state_dict())


def test_what_may_differ():
    """Threads, data, dtypes and kind of the graph, and what is prefetched."""
    state = loader().state_dict()
    g = graph(idtype=torch.int32)
    sampler = NeighborSampler([3, 2], prefetch_node_feats=["feat"])
    loader(sampler, g, torch.arange(50, dtype=torch.int32), num_workers=2).load_state_dict(state)
    src, dst = g.edges()
    loader(g=manyhop_dgl.Graph((src.long(), dst.long()), 60)).load_state_dict(state)
