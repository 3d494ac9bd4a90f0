"""Loaders of every kind over small graphs, and what their batches are, bit for bit."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from manyhop_pyg import (
    ClusterData,
    ClusterLoader,
    GivenNegatives,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    LinkLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
)

NUM_SEEDS = 61


def graph() -> Data:
    """61 nodes, 300 edges, some nodes isolated."""
    g = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(NUM_SEEDS, 4, generator=g),
        y=torch.randint(0, 3, (NUM_SEEDS,), generator=g),
        edge_index=torch.randint(0, 50, (2, 300), generator=g),
        edge_attr=torch.arange(300.0).view(-1, 1),
        weight=torch.rand(300, generator=g),
        time=torch.randint(0, 20, (NUM_SEEDS,), generator=g),
    )


def typed_graph() -> HeteroData:
    g = torch.Generator().manual_seed(2)
    data = HeteroData()
    data["paper"].x = torch.randn(NUM_SEEDS, 3, generator=g)
    data["author"].x = torch.randn(30, 5, generator=g)

    def edges(n_src: int, n_dst: int) -> torch.Tensor:
        return torch.stack([torch.randint(0, n, (200,), generator=g) for n in (n_src, n_dst)])

    data["paper", "cites", "paper"].edge_index = edges(NUM_SEEDS, NUM_SEEDS)
    data["author", "writes", "paper"].edge_index = edges(30, NUM_SEEDS)
    data["paper", "by", "author"].edge_index = edges(NUM_SEEDS, 30)
    return data


def homogeneous(**kwargs: Any) -> NeighborLoader:
    return NeighborLoader(graph(), [3, 2], weight_attr="weight", batch_size=8, shuffle=True, **kwargs)


def nodes(**kwargs: Any) -> NodeLoader:
    return NodeLoader(graph(), NeighborSampler(graph(), [4]), batch_size=5, **kwargs)


def heterogeneous(**kwargs: Any) -> NeighborLoader:
    return NeighborLoader(typed_graph(), [3, 2], "paper", batch_size=9, shuffle=True, drop_last=True, **kwargs)


def temporal(**kwargs: Any) -> NeighborLoader:
    when = torch.arange(NUM_SEEDS) % 23
    return NeighborLoader(graph(), [3, 2], input_time=when, time_attr="time", batch_size=8, shuffle=True, **kwargs)


def hgt(**kwargs: Any) -> HGTLoader:
    return HGTLoader(typed_graph(), [4, 4], "paper", batch_size=7, shuffle=True, **kwargs)


def _seed_edges() -> dict[str, torch.Tensor]:
    data = graph()
    return {"edge_label_index": data.edge_index[:, :NUM_SEEDS], "edge_label": torch.ones(NUM_SEEDS).long()}


def binary(**kwargs: Any) -> LinkNeighborLoader:
    negatives = NegativeSampling("binary", 2.0, src_weight=torch.rand(NUM_SEEDS, generator=torch.manual_seed(3)))
    return LinkNeighborLoader(
        graph(), [3, 2], neg_sampling=negatives, batch_size=8, shuffle=True, **_seed_edges(), **kwargs
    )


def triplet(**kwargs: Any) -> LinkLoader:
    index = ("paper", "cites", "paper"), typed_graph()["paper", "cites", "paper"].edge_index[:, :NUM_SEEDS]
    sampler = NeighborSampler(typed_graph(), [2])
    return LinkLoader(typed_graph(), sampler, index, neg_sampling="triplet", batch_size=10, shuffle=True, **kwargs)


def several_types(**kwargs: Any) -> NeighborLoader:
    seeds = {"author": torch.arange(20), "paper": torch.arange(NUM_SEEDS - 20)}
    return NeighborLoader(typed_graph(), [3, 2], seeds, batch_size=8, shuffle=True, **kwargs)


def given_negatives(**kwargs: Any) -> LinkNeighborLoader:
    index = graph().edge_index[:, :NUM_SEEDS]
    negatives = GivenNegatives((index[1] + torch.arange(1, 3).view(2, 1)).t() % NUM_SEEDS)
    return LinkNeighborLoader(
        graph(), [3, 2], index, neg_sampling=negatives, exclude_seed_edges="self", batch_size=8, shuffle=True, **kwargs
    )


def several_edge_types(**kwargs: Any) -> LinkNeighborLoader:
    index = {("paper", "cites", "paper"): None, ("author", "writes", "paper"): None}
    return LinkNeighborLoader(
        typed_graph(), [3], index, neg_sampling="binary", batch_size=70, shuffle=True, drop_last=True, **kwargs
    )


def around_seeds(**kwargs: Any) -> ShaDowKHopSampler:
    return ShaDowKHopSampler(graph(), 2, 3, batch_size=8, shuffle=True, **kwargs)


def walks(**kwargs: Any) -> GraphSAINTRandomWalkSampler:
    return GraphSAINTRandomWalkSampler(graph(), 6, 2, num_steps=7, sample_coverage=3, log=False, **kwargs)


def clusters(**kwargs: Any) -> ClusterLoader:
    data = ClusterData(graph(), 9, cluster=torch.arange(NUM_SEEDS) % 9, log=False)
    return ClusterLoader(data, batch_size=2, shuffle=True, **kwargs)


def random_parts(**kwargs: Any) -> RandomNodeLoader:
    return RandomNodeLoader(graph(), 7, shuffle=True, **kwargs)


_MAKE: list[Callable[..., Any]] = [
    homogeneous,
    nodes,
    heterogeneous,
    temporal,
    hgt,
    binary,
    triplet,
    several_types,
    given_negatives,
    several_edge_types,
    around_seeds,
    walks,
    clusters,
    random_parts,
]
LOADERS = {make.__name__: make for make in _MAKE}


def digest(batch: Data | HeteroData) -> str:
    """A checksum of all attributes but ``is_padding``: equal for batches that are equal bit for bit."""
    out = hashlib.sha256()
    for store in batch.stores:
        out.update(repr(store._key).encode())
        for name in sorted(set(store.keys()) - {"is_padding"}):
            value = store[name]
            out.update(name.encode())
            if isinstance(value, torch.Tensor):
                out.update(f"{value.dtype} {list(value.shape)}".encode())
                out.update(value.contiguous().numpy().tobytes())
            else:
                out.update(repr(value).encode())
    return out.hexdigest()


def padding(batch: Data | HeteroData) -> bool:
    """Whether the batch is padding; checks that all of its seeds say the same."""
    stores = [s for s in batch.stores if "is_padding" in s]
    for store in stores:
        assert store.is_padding.dtype == torch.bool
        assert "input_id" not in store or store.is_padding.shape == store.input_id.shape
    marks = torch.cat([store.is_padding for store in stores])
    assert len(marks.unique()) == 1
    return bool(marks[0])


def one_process(name: str, epochs: int = 1, seed: int = 5) -> list[list[str]]:
    """Digests of a loader of PyG's kind, by epoch."""
    loader = LOADERS[name](seed=seed)
    return [[digest(batch) for batch in loader] for _ in range(epochs)]
