"""What the kernels know of a graph and a spec, whatever the batches."""

from __future__ import annotations

import numpy as np
import torch
import triton
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.graph import Graph
from manyhop.sampling._contract import NeighborSpec
from manyhop.sampling._gpu.kernels import tables as t


class Plan:
    """A graph and a spec, as the kernels see them.

    Raises:
        InputError: the device is none that kernels run on.
        GraphError: a table of the graph is none that kernels can read.
    """

    def __init__(self, graph: Graph, spec: NeighborSpec, device: torch.device) -> None:
        if device.type != "cuda" and not (device.type == "cpu" and triton.knobs.runtime.interpret):
            raise InputError(f"Expected a CUDA device, got {device}. On CPUs, use CPUSampler.")
        self.graph, self.spec, self.device = graph, spec, device
        self.types = types = {name: i for i, name in enumerate(graph.node_types)}
        self.num_nodes = [graph.num_nodes[name] for name in graph.node_types]
        self.node_bits = max(*self.num_nodes, 2).bit_length()
        self.src = np.array([types[e[0]] for e in graph.edge_types], np.int64)
        self.dst = np.array([types[e[2]] for e in graph.edge_types], np.int64)
        fanouts = [spec.fanouts[e] for e in graph.edge_types]
        self.num_hops = len(fanouts[0]) if fanouts else 0
        self.fanouts = np.array(fanouts, np.int64).reshape(len(fanouts), self.num_hops).T.copy()
        self.timed = spec.temporal is not None
        self.last = spec.temporal == "last"
        self.replace = spec.replace and not self.last
        self.counts_ahead = len(fanouts) == 1 and graph.is_homogeneous and spec.expand == "new"
        """Whether the nodes that a hop adds, in their order, are the items of the next hop."""
        self.edges = np.zeros((len(fanouts), t.PERM_WIDE.value + 1), np.int64)
        for about, edge_type in zip(self.edges, graph.edge_types, strict=True):
            csc = graph.csc[edge_type]
            for column, name, array in (
                (t.COLPTR, "colptr", csc.colptr),
                (t.ROW, "row", csc.row),
                (t.PERM, "perm", csc.perm),
                (t.TIME, "time", csc.time if self.timed else None),
                (t.WEIGHT, "weight", csc.weight if spec.weighted else None),
                (t.ALIAS, "alias", csc.alias if spec.weighted else None),
                (t.POSITIVE, "num_positive", csc.num_positive if spec.weighted else None),
            ):
                about[column.value] = 0 if array is None else self._address(f"{name} of {edge_type}", name, array)
            about[t.ROW_WIDE.value] = csc.row.dtype == torch.int64
            about[t.PERM_WIDE.value] = csc.perm is not None and csc.perm.dtype == torch.int64

    def _address(self, what: str, name: str, array: Tensor) -> int:
        dtypes = {"row": (torch.int32, torch.int64), "perm": (torch.int32, torch.int64), "weight": (torch.float64,)}
        expected = dtypes.get(name, (torch.int64,))
        readable = array.device == self.device or (self.device.type == "cuda" and array.is_pinned())
        if not readable or array.dtype not in expected or not array.is_contiguous():
            raise GraphError(
                f"Expected {what} contiguous on {self.device} or in pinned memory, of dtype "
                f"{' or '.join(map(str, expected))}, got {array.dtype} on {array.device}. "
                "Use manyhop.graph.place to move a graph."
            )
        return array.data_ptr()
