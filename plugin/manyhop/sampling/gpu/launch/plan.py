"""A graph and a spec in the form that kernels read, independent of batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from manyhop.graph import Graph
from manyhop.sampling.contract import NeighborSpec
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.fetch import WINDOW_BITS
from manyhop.sampling.gpu.transfer import address


def is_on_host(table: torch.Tensor, device: torch.device) -> bool:
    """Return whether a table resides in host memory."""
    return table.device != device


class Plan:
    """Addresses and dtypes of the tables of a graph, and the sampling modes of a spec.

    Args:
        graph: the topology, in memory that the device can read.
        spec: how to sample.
        device: where kernels run.

    Raises:
        GraphError: kernels cannot read a table of the graph.
    """

    def __init__(self, graph: Graph, spec: NeighborSpec, device: torch.device) -> None:
        self.graph, self.spec, self.device = graph, spec, device
        self.guess = spec
        """The spec from which the first capacity is estimated."""
        self.types = types = {name: i for i, name in enumerate(graph.node_types)}
        self.edge_types = graph.edge_types
        self.num_nodes = [graph.num_nodes[name] for name in graph.node_types]
        self.node_bits = max(*self.num_nodes, 2).bit_length()
        self.src = np.array([types[e[0]] for e in graph.edge_types], np.int64)
        self.dst = np.array([types[e[2]] for e in graph.edge_types], np.int64)
        fanouts = [spec.fanouts[e] for e in graph.edge_types]
        self.num_hops = len(fanouts[0]) if fanouts else 0
        self.fanouts = np.array(fanouts, np.int64).reshape(len(fanouts), self.num_hops).T.copy()
        self.window_bits = WINDOW_BITS
        self.timed = spec.temporal is not None
        self.last = spec.temporal == "last"
        self.replace = spec.replace and not self.last
        self.weighs = False
        """Whether picked edges have weights."""
        self.counts_ahead = len(fanouts) == 1 and graph.is_homogeneous and spec.expand == "new"
        """Whether the nodes that a hop adds, in their order, are the frontier of the next hop."""
        self.edges = edge_tables(graph, device, timed=self.timed, weighted=spec.weighted)
        for about, edge_type in zip(self.edges, graph.edge_types, strict=True):
            csc = graph.csc[edge_type]
            windows = -(-csc.num_edges >> self.window_bits)
            if csc.row.dtype == torch.int32 and windows > 1 and is_on_host(csc.row, device):
                about[t.WINDOWS.value] = windows


def edge_tables(
    graph: Graph, device: torch.device, *, timed: bool = False, weighted: bool = False
) -> npt.NDArray[np.int64]:
    """Return ``[num_edge_types, WINDOWS + 1]``: addresses and widths of the tables of each edge type.

    Args:
        graph: the topology, in memory that the device can read.
        device: where kernels run.
        timed, weighted: whether kernels read times and weights; addresses that they do not read are 0.

    Raises:
        GraphError: kernels cannot read a table of the graph.
    """
    found = np.zeros((len(graph.edge_types), t.WINDOWS.value + 1), np.int64)
    ids, long = (torch.int32, torch.int64), (torch.int64,)
    for about, edge_type in zip(found, graph.edge_types, strict=True):
        csc = graph.csc[edge_type]
        for column, name, array, dtypes in (
            (t.COLPTR, "colptr", csc.colptr, long),
            (t.ROW, "row", csc.row, ids),
            (t.PERM, "perm", csc.perm, ids),
            (t.TIME, "time", csc.time if timed else None, long),
            (t.WEIGHT, "weight", csc.weight if weighted else None, (torch.float64,)),
            (t.ALIAS, "alias", csc.alias if weighted else None, long),
            (t.POSITIVE, "num_positive", csc.num_positive if weighted else None, long),
        ):
            about[column.value] = address(f"{name} of {edge_type}", array, device, *dtypes)
        about[t.ROW_WIDE.value] = csc.row.dtype == torch.int64
        about[t.PERM_WIDE.value] = csc.perm is not None and csc.perm.dtype == torch.int64
    return found
