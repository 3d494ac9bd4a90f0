"""Loaders with and without padding, batch by batch."""

from typing import Any

import torch

from manyhop_pyg import LinkNeighborLoader, NeighborLoader


def node_loader(data: Any, **options: Any) -> NeighborLoader:
    options = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True, "seed": 1} | options
    return NeighborLoader(data, **options)


def link_loader(data: Any, **options: Any) -> LinkNeighborLoader:
    options = {"num_neighbors": [3, 2], "batch_size": 16, "shuffle": True, "seed": 1} | options
    return LinkNeighborLoader(data, **options)


def shapes(batch: Any) -> Any:
    return [
        (store._key, key, value.shape if isinstance(value, torch.Tensor) else value)
        for store in batch.stores
        for key, value in store.items()
    ]


def both(make: Any, data: Any, **options: Any) -> Any:
    """Pairs of batches, without and with padding; all with padding have the same shapes."""
    plain, padded = list(make(data, **options)), list(make(data, pad="auto", **options))
    assert len(plain) == len(padded) > 1
    assert all(shapes(batch) == shapes(padded[0]) for batch in padded)
    return zip(plain, padded, strict=True)
