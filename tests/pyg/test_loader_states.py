"""A state is taken by a loader with the same samples only, and a difference is named."""

import json
import pickle
from typing import Any

import pytest
import torch
from helpers_pyg import all_same
from test_pad_subgraphs import clusters
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from manyhop.errors import StateError
from manyhop_pyg import (
    GivenNegatives,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
    PPRLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
)


def changed(data, **attributes):
    data = data.clone()
    for name, value in attributes.items():
        data[name] = value
    return data


def nodes(data, fanouts=(3, 2), **kwargs):
    kwargs = {"input_nodes": torch.arange(50), "batch_size": 8, "shuffle": True} | kwargs
    return NeighborLoader(data, list(fanouts), **kwargs)


def links(data, **kwargs):
    return LinkNeighborLoader(data, [2], **({"batch_size": 8, "neg_sampling": "binary"} | kwargs))


def weighted(factor):
    return NegativeSampling("binary", 1.0, dst_weight=torch.arange(60.0) * factor)


LABELS = torch.arange(50)
TABLE = torch.arange(1500).view(300, 5) % 60
WINDOWS = torch.arange(120).view(60, 2) // 6
WRITES = ("author", "writes", "paper")
SEVERAL = {"paper": torch.arange(5, 35), "venue": None, "author": torch.arange(30) % 7 == 0}
SEVERAL_EDGES = {WRITES: None, ("paper", "has", "field"): torch.tensor([[0, 1, 39], [5, 5, 0]])}
# What saves the state, what loads it, and what the error calls the difference.
DIFFERENCES = {
    "replace: True": (nodes, lambda d: nodes(d, replace=True)),
    "subgraph: induced": (nodes, lambda d: nodes(d, subgraph_type="induced")),
    "disjoint: True": (nodes, lambda d: nodes(d, disjoint=True)),
    "temporal: last": (
        lambda d: nodes(d, time_attr="time"),
        lambda d: nodes(d, time_attr="time", temporal_strategy="last"),
    ),
    "time_window: 3": (lambda d: nodes(d, time_attr="time"), lambda d: nodes(d, time_attr="time", time_window=3)),
    "time of the seeds": (
        lambda d: nodes(d, time_attr="time", input_time=LABELS),
        lambda d: nodes(d, time_attr="time", input_time=LABELS + 1),
    ),
    "times": (lambda d: nodes(d, time_attr="time"), lambda d: nodes(changed(d, time=d.time.flip(0)), time_attr="time")),
    "weighted: True": (nodes, lambda d: nodes(d, weight_attr="edge_weight")),
    "weights": (
        lambda d: nodes(d, weight_attr="edge_weight"),
        lambda d: nodes(changed(d, edge_weight=d.edge_weight.flip(0)), weight_attr="edge_weight"),
    ),
    "number of nodes": (nodes, lambda d: nodes(Data(edge_index=d.edge_index, num_nodes=61))),
    "edges": (nodes, lambda d: nodes(changed(d, edge_index=d.edge_index.roll(1, 1)[[1, 0]]))),
    "kind of seeds: nodes": (
        lambda d: links(d, edge_label_index=d.edge_index[:, :50], neg_sampling=None),
        lambda d: nodes(d, [2], shuffle=False),
    ),
    "neg_sampling, amount: 2": (links, lambda d: links(d, neg_sampling=NegativeSampling("binary", 2))),
    "neg_sampling, mode: triplet": (links, lambda d: links(d, neg_sampling="triplet")),
    "neg_sampling, dst_weight": (
        lambda d: links(d, neg_sampling=weighted(1)),
        lambda d: links(d, neg_sampling=weighted(2)),
    ),
    "exclude_true_negatives": (links, lambda d: links(d, exclude_true_negatives=True)),
    "edge_label_index": (links, lambda d: links(d, edge_label_index=d.edge_index.flip(1))),
    "exclude_seed_edges": (links, lambda d: links(d, exclude_seed_edges="self")),
    "neg_sampling": (
        lambda d: links(d, neg_sampling=GivenNegatives(TABLE[:, :3])),
        lambda d: links(d, neg_sampling=GivenNegatives(TABLE)),
    ),
    "page_rank": (
        lambda d: PPRLoader(d, 4, torch.arange(9), eps=0.06),
        lambda d: PPRLoader(d, 3, torch.arange(9), eps=0.06),
    ),
    "edge_label": (
        lambda d: links(d, edge_label_index=d.edge_index, edge_label=torch.ones(300)),
        lambda d: links(d, edge_label_index=d.edge_index, edge_label=torch.ones(300) * 2),
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_difference_is_named(data: Data, name: str) -> None:
    saves, loads = (make(data) for make in DIFFERENCES[name])
    with pytest.raises(StateError, match=f"Expected a state of a loader with .*{name}"):
        loads.load_state_dict(saves.state_dict())


def test_other_edges_are_named_without_checksums(data: Data) -> None:
    loads = nodes(changed(data, edge_index=data.edge_index.flip(0)))
    with pytest.raises(StateError, match=r"with the edges of this one, got others\. Create the loader"):
        loads.load_state_dict(nodes(data).state_dict())


# Loaders of all kinds, made of a graph without types, or with them.
RESTARTS = {
    "links": lambda d, _, **o: links(d, **o),
    "without seed edges": lambda d, _, **o: links(d, exclude_seed_edges="self", **o),
    "without seed edges, padded": lambda d, _, **o: links(d, exclude_seed_edges="self", pad="auto", **o),
    "given negatives": lambda d, _, **o: links(d, neg_sampling=GivenNegatives(TABLE), **o),
    "function of negatives": lambda d, _, **o: links(d, neg_sampling=GivenNegatives(hard, 2), **o),
    "negatives in the batch": lambda d, _, **o: links(d, neg_sampling=GivenNegatives("in_batch"), **o),
    "windows of time": lambda d, _, **o: nodes(d, input_time=WINDOWS[:50], time_attr="time", **o),
    "typed seed edges": lambda _, h, **o: LinkNeighborLoader(h, [3, 2], SEVERAL_EDGES, neg_sampling="binary", **o),
    "typed seeds": lambda _, h, **o: NeighborLoader(h, [3, 2], SEVERAL, filter_per_worker=False, **o),
    "typed seeds of HGT": lambda _, h, **o: HGTLoader(h, [4, 3], SEVERAL, **o),
    "clusters": lambda d, _, **o: clusters(d, **without(o, "shuffle")),
    "random walks": lambda d, _, **o: GraphSAINTRandomWalkSampler(d, 5, 2, 6, **without(o, "shuffle")),
    "parts": lambda d, _, **o: RandomNodeLoader(d, 5, **without(o, "batch_size")),
    "highest ranks": lambda d, _, **o: PPRLoader(d, 4, d.train_mask, **o),
    "graphs of seeds": lambda d, _, **o: ShaDowKHopSampler(d, 2, 2, **o),
}


def hard(src: Tensor, dst: Tensor) -> Tensor:
    return torch.stack([(src + 7 * dst) % 60, (3 * src + 1) % 60], 1)


def without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in (*names, "batch_size")}


@pytest.mark.parametrize("name", RESTARTS)
def test_threads_pickles_and_restart(data: Data, hetero: HeteroData, name: str) -> None:
    def make(**options: Any) -> Any:
        return RESTARTS[name](data, hetero, batch_size=11, shuffle=True, seed=1, **options)

    expected, loader = list(make()), make(num_workers=2)
    iterator = iter(loader)
    first = [next(iterator), next(iterator)]
    rest = pickle.loads(pickle.dumps(make()))
    rest.load_state_dict(loader.state_dict())
    assert all_same(first + list(rest), expected)


@pytest.mark.parametrize("make", [NeighborLoader, HGTLoader])
def test_positions_of_the_user(hetero: HeteroData, make: Any) -> None:
    def loader(**options: Any) -> Any:
        return make(hetero, [3, 2], SEVERAL, batch_sampler=[[37, 0, 30], [1, 2], [33, 34, 0]], seed=1, **options)

    assert all_same(list(loader(num_workers=2)), list(loader()))


def test_typed_loaders(hetero: HeteroData) -> None:
    def of(make, sizes):
        return make(hetero, sizes, "paper", batch_size=8)

    state = of(HGTLoader, [4]).state_dict()
    with pytest.raises(StateError, match="specification of the sampler, num_samples"):
        of(HGTLoader, [5]).load_state_dict(state)
    with pytest.raises(StateError, match="with sampler: NeighborSampler, as this one has, got HGTSampler"):
        of(NeighborLoader, [4]).load_state_dict(state)
    fanouts = {t: [2] for t in hetero.edge_types}
    state = of(NeighborLoader, fanouts).state_dict()
    of(NeighborLoader, [2]).load_state_dict(state)
    with pytest.raises(StateError, match="fanouts"):
        of(NeighborLoader, fanouts | {hetero.edge_types[0]: [3]}).load_state_dict(state)


def test_what_may_differ(data: Data) -> None:
    """Dtypes, features, threads, and how the loader is called."""
    state = json.loads(json.dumps(nodes(data, weight_attr="edge_weight").state_dict()))
    assert len(json.dumps(state)) < 2000
    other = changed(data, x=torch.ones(60, 9), edge_weight=data.edge_weight.double())
    options = {"batch_size": 8, "shuffle": True, "num_workers": 2, "pad": "auto"}
    sampler = NeighborSampler(other, [3, 2], weight_attr="edge_weight")
    NodeLoader(other, sampler, torch.arange(50, dtype=torch.int32), **options).load_state_dict(state)


def test_attributes_of_the_sampler_that_were_set_later(data: Data) -> None:
    loader = nodes(data)
    state = loader.state_dict()
    loader.node_sampler.num_neighbors = [4, 4]
    with pytest.raises(StateError, match="fanouts"):
        loader.load_state_dict(state)
