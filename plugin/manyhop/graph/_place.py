"""Where a topology lies: moved to a GPU, or to host memory that GPUs read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph._graph import CSC, Graph


def place(graph: Graph, device: torch.device | str, where: Literal["device", "pinned"] = "device") -> Graph:
    """The graph with all of its tables in memory that a GPU reads; tables that lie there already are not copied.

    Args:
        graph: the topology.
        device: the GPU.
        where: ``device``: the memory of the GPU. ``pinned``: page-locked host memory; the column pointers, which are
            looked up before each read of the other tables, are in the memory of the GPU all the same.

    Raises:
        InputError: ``where`` is neither, or tables on a GPU were to be pinned.
    """
    device = torch.device(device)
    moves: dict[str, Callable[[Tensor], Tensor]] = {"device": lambda table: table.to(device), "pinned": _pinned}
    if where not in moves:
        raise InputError(f"Expected where to be 'device' or 'pinned', got {where!r}.")
    move = moves[where]
    return replace(
        graph,
        csc={edge_type: _moved(csc, move, device) for edge_type, csc in graph.csc.items()},
        node_time={node_type: move(time) for node_type, time in graph.node_time.items()},
    )


def _moved(csc: CSC, move: Callable[[Tensor], Tensor], device: torch.device) -> CSC:
    values = {field.name: getattr(csc, field.name) for field in fields(csc)}
    colptr = values.pop("colptr").to(device)
    moved: dict[str, Any] = {name: move(x) if isinstance(x, Tensor) else x for name, x in values.items()}
    return CSC(colptr=colptr, **moved)


def _pinned(table: Tensor) -> Tensor:
    if table.device.type != "cpu":
        raise InputError(f"Expected tables in CPU memory to be pinned, got one on {table.device}.")
    return table.pin_memory()
