"""Sampling graphs in files: of this package, and of DGL's GraphBolt, without its library."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.make import fused_csc_sampling_graph
from manyhop_graphbolt.types import ORIGINAL_EDGE_ID, GBWarning

_reading = threading.Lock()
_PACKAGES = (__name__.removesuffix(".datasets.graph"), "manyhop_dgl" + ".graphbolt")  # that have written graphs
_VERSION = 6199  # which GraphBolt writes into its graphs


def read_sampling_graph(path: Path) -> FusedCSCSamplingGraph:
    """Load a sampling graph that ``torch.save`` has written, here or in DGL. Only tensors are unpickled."""
    known: list[Any] = [
        *((FusedCSCSamplingGraph, f"{module}.graph.graph.FusedCSCSamplingGraph") for module in _PACKAGES),
        (_OfDGL, "dgl.graphbolt.impl.fused_csc_sampling_graph.FusedCSCSamplingGraph"),
        (_OfTorch, "torch.ScriptObject"),
    ]
    try:
        with _reading, torch.serialization.safe_globals(known):  # which are forgotten again at its end
            graph = torch.load(path, weights_only=True)
        unordered = isinstance(graph, _OfDGL) and graph.unordered()
        if isinstance(graph, _OfDGL):
            graph = graph.convert()
    except Exception as error:  # damaged files raise errors of many kinds
        raise InputError(
            f"{path}: Expected the sampling graph of the dataset, which cannot be read: "
            f"{(str(error) or repr(error)).splitlines()[0]}. Make it again with force_preprocess=True."
        ) from error
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise InputError(f"{path}: Expected a FusedCSCSamplingGraph, got a {type(graph).__name__}.")
    if unordered:
        warnings.warn(
            f"{path}: Expected original edge ids beside the edge data {unordered}, which DGL leaves in the order of "
            "the files of edges, got none: the data belong to other edges. Restore the files of edges.",
            GBWarning,
            stacklevel=2,
        )
    graph.indices = torch.from_numpy(graph.indices.numpy().copy())  # numpy allocates with huge pages
    return graph


class _OfTorch:
    """An object of a C++ class, pickled by torch as its state and the name of its class."""

    def __setstate__(self, state: tuple[dict[str, dict[str, Tensor]], str]) -> None:
        self.state = state[0]


class _OfDGL:
    """DGL's graph: an object around one of C++."""

    _c_csc_graph: _OfTorch

    def unordered(self) -> list[str]:
        """Return the names of edge data whose order is unknown, without original edge ids."""
        data = self._c_csc_graph.state.get("edge_attributes") or {}
        return [] if ORIGINAL_EDGE_ID in data else sorted(data)

    def convert(self) -> FusedCSCSamplingGraph:
        """Convert a graph of DGL's GraphBolt to a :class:`FusedCSCSamplingGraph`.

        DGL leaves edge data in the order of the files of edges. Original edge ids sort them into the graph's order.
        """
        state: dict[str, dict[str, Any]] = self._c_csc_graph.state
        tensors = state["independent_tensors"]
        if int(tensors["version_number"]) != _VERSION:
            raise InputError(f"Expected version {_VERSION} of GraphBolt's files, got {int(tensors['version_number'])}.")
        numbers = {
            name: {key: int(value) for key, value in state[name].items()} if name in state else None
            for name in ("node_type_to_id", "edge_type_to_id")
        }
        data = dict(state.get("edge_attributes") or {})
        kind = tensors.get("type_per_edge")
        if ORIGINAL_EDGE_ID in data:
            row = data[ORIGINAL_EDGE_ID].long()
            if kind is not None:  # ids count within a type
                sizes = kind.long().bincount()
                row = row + (sizes.cumsum(0) - sizes)[kind.long()]
            data |= {name: values[row] for name, values in data.items() if name != ORIGINAL_EDGE_ID}
        return fused_csc_sampling_graph(
            tensors["indptr"],
            tensors["indices"],
            tensors.get("node_type_offset"),
            kind,
            numbers["node_type_to_id"],
            numbers["edge_type_to_id"],
            state.get("node_attributes"),
            data or None,
        )
