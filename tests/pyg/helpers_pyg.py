"""What must hold of every batch."""

import re
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler

from manyhop_pyg import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader


def check_edges(edge_index: Tensor, e_id: Tensor, src_id: Tensor, dst_id: Tensor, whole: Tensor) -> None:
    """Every edge of a batch is the edge of the graph that its id says."""
    assert torch.equal(torch.stack([src_id[edge_index[0]], dst_id[edge_index[1]]]).long(), whole[:, e_id].long())


def check_batch(batch: Data, data: Data) -> None:
    """Edges, node rows and edge rows are those of the graph."""
    check_edges(batch.edge_index, batch.e_id, batch.n_id, batch.n_id, data.edge_index)
    n_id = batch.n_id.long()
    assert torch.equal(batch.x, data.x[n_id])
    assert torch.equal(batch.y, data.y[n_id])
    assert torch.equal(batch.train_mask, data.train_mask[n_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert batch.name == "small"
    assert batch.num_nodes == n_id.numel()
    if "num_sampled_nodes" in batch:
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges


def check_hetero_batch(batch: HeteroData, data: HeteroData) -> None:
    """The same for typed data; all types are there."""
    assert batch.node_types == data.node_types
    assert batch.edge_types == data.edge_types
    for edge_type in data.edge_types:
        store = batch[edge_type]
        src, _, dst = edge_type
        if "e_id" in store:
            check_edges(store.edge_index, store.e_id, batch[src].n_id, batch[dst].n_id, data[edge_type].edge_index)
            for name in ("edge_attr", "edge_weight"):
                if name in data[edge_type]:
                    assert torch.equal(store[name], data[edge_type][name][store.e_id])
    for node_type in data.node_types:
        assert batch[node_type].num_nodes == batch[node_type].n_id.numel()
        for name in ("x", "y"):
            if name in data[node_type]:
                assert torch.equal(batch[node_type][name], data[node_type][name][batch[node_type].n_id])


def same(a: Data | HeteroData, b: Data | HeteroData) -> bool:
    """Whether two batches are equal, attribute by attribute."""
    if [s._key for s in a.stores] != [s._key for s in b.stores]:
        return False
    for left, right in zip(a.stores, b.stores, strict=True):
        if list(left.keys()) != list(right.keys()):
            return False
        for key, value in left.items():
            other = right[key]
            if isinstance(value, Tensor):
                if value.dtype != other.dtype or not torch.equal(value, other):
                    return False
            elif value != other:
                return False
    return True


def all_same(xs: list, ys: list) -> bool:
    """Whether two epochs are equal, batch by batch."""
    return len(xs) == len(ys) and all(same(x, y) for x, y in zip(xs, ys, strict=True))


def stores_of(data: Data, *names: str) -> tuple[FeatureStore, GraphStore]:
    """Data without types as a pair of stores: ``x``, attributes of other names, and the edges."""
    features, graph = FeatureStore(), GraphStore()
    for name in ("x", *names):
        features[None, name, None] = data[name]
    graph[None, "coo", False, (data.num_nodes, data.num_nodes)] = tuple(data.edge_index)
    return features, graph


def name_of(case: object) -> str:
    """Return the id of a test's case: its text without addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(case))


class Foreign(BaseSampler):
    """A sampler of the user, which is not called."""

    def sample_from_nodes(self, index: object) -> NoReturn:
        raise NotImplementedError

    def sample_from_edges(self, index: object, neg_sampling: object = None) -> NoReturn:
        raise NotImplementedError


def node_loader(data: Any, **options: Any) -> NeighborLoader:
    options = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True, "seed": 1} | options
    return NeighborLoader(data, **options)


def link_loader(data: Any, **options: Any) -> LinkNeighborLoader:
    options = {"num_neighbors": [3, 2], "batch_size": 16, "shuffle": True, "seed": 1} | options
    return LinkNeighborLoader(data, **options)


def shapes(batch: Any) -> Any:
    return [
        (store._key, key, value.shape if isinstance(value, Tensor) else value)
        for store in batch.stores
        for key, value in store.items()
    ]


def both(make: Any, data: Any, **options: Any) -> Any:
    """Pairs of batches, without and with padding; all with padding have the same shapes."""
    plain, padded = list(make(data, **options)), list(make(data, pad="auto", **options))
    assert len(plain) == len(padded) > 1
    assert all(shapes(batch) == shapes(padded[0]) for batch in padded)
    return zip(plain, padded, strict=True)
