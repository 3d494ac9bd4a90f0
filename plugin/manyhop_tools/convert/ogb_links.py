"""Splits of OGB's link property prediction data sets: edges to train on, to predict, and negatives of them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.graph_writer import NodeIds
from manyhop.files.saved_tensors import load_plain
from manyhop.graph import NodeType

_PARTS = {"train": "train", "val": "valid", "test": "test"}
_NODES = {
    "edge", "edge_neg", "source_node", "target_node", "target_node_neg", "head", "tail", "head_neg", "tail_neg",
}  # fmt: skip
_WHOLE = "split_dict.pt"  # all parts in one file, which OGB prefers


def has_link_split(folder: Path) -> bool:
    """Whether a folder of ``split/`` is of links."""
    return (folder / _WHOLE).exists() or (folder / "train.pt").exists()


def link_split(folder: Path, node_types: Collection[NodeType]) -> dict[str, Any]:
    """Read a split of links.

    Args:
        folder: of the split.
        node_types: of the graph, in order.

    Returns:
        What belongs to the graph as a whole: ``train_edge [n, 2]``, ``val_edge_neg``, ... with OGB's names. Node types
        (``train_head_type``) are their positions among ``node_types``.

    Raises:
        InputError: a file that is missing or not as expected.
    """
    whole = load_plain(folder / _WHOLE) if (folder / _WHOLE).exists() else None
    found: dict[str, Any] = {}
    for ours, theirs in _PARTS.items():
        path = folder / (f"{theirs}.pt" if whole is None else _WHOLE)
        part = load_plain(path) if whole is None else whole.get(theirs) if isinstance(whole, dict) else None
        if not isinstance(part, dict):
            raise InputError(f"{path}: expected a dictionary of tensors for '{theirs}', got {type(part).__name__}.")
        for name, value in part.items():
            if name.endswith("_type") and isinstance(value, list):
                value = _positions(value, list(node_types), f"{path}, '{name}'")
            elif name in _NODES and isinstance(value, Tensor):
                value = NodeIds(value.long(), tuple(node_types) if len(node_types) == 1 else ())
            found[f"{ours}_{name}"] = value
    return found


def _positions(names: list[Any], node_types: list[NodeType], where: str) -> Tensor:
    position = {name: k for k, name in enumerate(node_types)}
    for name in set(names):
        if name not in position:
            raise InputError(f"{where}: expected node types of {node_types}, got {name!r}.")
    return torch.tensor([position[name] for name in names])
