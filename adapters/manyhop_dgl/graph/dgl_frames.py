"""DGL's frames of tensors that are known to fit: one call each, where DGL's own take a dozen to check them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dgl.frame import Column, Frame, Scheme
from torch import Tensor

_COLUMN: dict[str, Any] = vars(Column(torch.empty(0), Scheme((), torch.float32)))
_FRAME: dict[str, Any] = vars(Frame(num_rows=0))
_IDS = {dtype: Scheme((), dtype) for dtype in (torch.int32, torch.int64)}


def make_frame(num_rows: int, columns: dict[str, Column]) -> Frame:
    """A frame of ``num_rows`` rows with these columns."""
    frame = object.__new__(Frame)
    frame.__dict__ = {**_FRAME, "_columns": columns, "_num_rows": num_rows, "_initializers": {}}
    return frame


def make_column(values: Tensor) -> Column:
    """A column of values ``[num_rows, ...]``."""
    column = object.__new__(Column)
    scheme = tuple.__new__(Scheme, (tuple(values.shape[1:]), values.dtype))
    column.__dict__ = {**_COLUMN, "storage": values, "scheme": scheme}
    return column


def same_columns(frame: Frame) -> Frame:
    """A frame with the columns that another one has now."""
    copy = object.__new__(Frame)
    copy.__dict__ = {**frame.__dict__, "_columns": frame._columns.copy()}
    return copy


def frames_of_ids(name: str, ids: Sequence[Tensor], of_graph: Sequence[Frame] | None = None) -> list[Frame]:
    """Make a frame for each tensor of ids ``[num_rows]``, which holds them under this name.

    With the frames of a graph, each also has these rows of one of them, gathered when they are read, and then on the
    device of the ids.
    """
    frames = []
    for i, some in enumerate(ids):
        column, frame = object.__new__(Column), object.__new__(Frame)
        column.__dict__ = {**_COLUMN, "storage": some, "scheme": _IDS[some.dtype]}
        frame.__dict__ = {**_FRAME, "_columns": {name: column}, "_num_rows": some.shape[0], "_initializers": {}}
        if of_graph is not None:
            whole = of_graph[i]
            if whole._columns:
                frame._columns = {**_rows_of(whole._columns, some), name: column}
            frame._initializers, frame._default_initializer = whole._initializers, whole._default_initializer
        frames.append(frame)
    return frames


def _rows_of(columns: dict[str, Column], ids: Tensor) -> dict[str, Column]:
    found: dict[str, Column] = {}
    there: tuple[torch.device, dict[str, Any]] = ids.device, {}
    for name, column in columns.items():
        state = column.__dict__
        if state["index"] is not None:
            found[name] = column.subcolumn(ids)
            continue
        made = found[name] = object.__new__(Column)
        device = there if state["device"] is None and state["storage"].device != ids.device else state["device"]
        made.__dict__ = {**state, "index": ids, "device": device, "pinned_by_dgl": False, "_data_nd": None}
    return found


def values_of(frame: Frame, name: str) -> Any:
    """The values of that name, gathered or moved if they still have to be; ``None`` if there are none."""
    column = frame._columns.get(name)
    if type(column) is not Column:
        return None
    state = column.__dict__
    if state["index"] is None and state["device"] is None and state["deferred_dtype"] is None:
        return state["storage"]
    return column.data
