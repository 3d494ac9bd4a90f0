"""Data sets of PyG by the name of their class, for ``manyhop convert``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

import torch_geometric.datasets
from torch_geometric.data import Data, Dataset, HeteroData

from manyhop.errors import InputError
from manyhop_pyg.data.folder import SavedData


def load_dataset(name: str, arguments: Mapping[str, Any]) -> SavedData:
    """Make a data set of ``torch_geometric.datasets``: the entry point ``dataset`` of ``manyhop.formats``.

    This runs PyG's code, which may download, and unpickle what it has processed before.

    Args:
        name: of its class, such as ``"Planetoid"``.
        arguments: of its class, such as ``root`` and ``name``.

    Raises:
        InputError: no such class, other arguments than it has, or not one graph.
    """
    found = getattr(torch_geometric.datasets, name, None)
    if not (inspect.isclass(found) and issubclass(found, Dataset)):
        known = torch_geometric.datasets.__all__
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f" Did you mean {', '.join(close)}?" if close else ""
        raise InputError(f"Expected a class of torch_geometric.datasets after 'pyg:', got '{name}'.{hint}")
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"{name}{inspect.signature(found)}: {error}. Pass what it takes by --dataset-arg NAME=VALUE."
        ) from None
    dataset: Any = found(**arguments)
    if len(dataset) != 1:
        raise InputError(
            f"{name}: expected one graph, got {len(dataset)}. Call manyhop_pyg.save(data, folder) for one."
        )
    data = dataset[0]
    if not isinstance(data, Data | HeteroData):
        raise InputError(f"{name}: expected a Data or HeteroData, got {type(data).__name__}.")
    return SavedData(data)
