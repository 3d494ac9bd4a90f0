"""PyG's NeighborLoader and manyhop's for ``manyhop bench``: an entry point of ``manyhop.peers``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.typing as pyg_typing
from torch_geometric.data import Data, HeteroData

from manyhop_pyg.data.folder import open
from manyhop_pyg.loaders.node import NeighborLoader


def epochs(
    folder: Path, *, fanout: Sequence[int], batch_size: int, batches: int, threads: int, device: str
) -> dict[str, Callable[[], tuple[int, int]] | str]:
    """Return epochs of both loaders over the graph of a folder, with all features of its nodes."""
    data = open(folder)
    assert isinstance(data, Data | HeteroData)  # one process shards nothing
    node_type = None if isinstance(data, Data) else data.edge_types[0][2]
    num_nodes = data.num_nodes if node_type is None else data[node_type].num_nodes
    assert num_nodes is not None
    seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[: batches * batch_size]
    options: dict[str, Any] = {
        "num_neighbors": list(fanout),
        "input_nodes": seeds if node_type is None else (node_type, seeds),
        "batch_size": batch_size,
        "shuffle": True,
        "is_sorted": True,
        "num_workers": threads if threads > 1 else 0,
    }
    found: dict[str, Callable[[], tuple[int, int]] | str] = {
        "manyhop": _epoch(NeighborLoader(data, device=None if device == "cpu" else device, **options), device)
    }
    library = "pyg-lib" if pyg_typing.WITH_PYG_LIB else "torch-sparse" if pyg_typing.WITH_TORCH_SPARSE else None
    if library is None:
        wheels = f"https://data.pyg.org/whl/torch-{torch.__version__.partition('+')[0]}+cpu.html"
        found["PyG"] = f"needs pyg-lib to sample: pip install pyg-lib -f {wheels}"
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        loader = torch_geometric.loader.NeighborLoader(data, persistent_workers=threads > 1, **options)
    found[f"PyG, {library}"] = _epoch(loader, device)
    return found


def _epoch(loader: Iterable[Data | HeteroData], device: str) -> Callable[[], tuple[int, int]]:
    def run() -> tuple[int, int]:
        count = edges = 0
        for batch in loader:
            count += 1
            edges += sum(store.edge_index.shape[1] for store in batch.to(device).edge_stores)
        if device != "cpu":
            torch.cuda.synchronize()
        return count, edges

    return run
