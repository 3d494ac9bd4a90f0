"""The nodes of GraphSAINT's subgraphs (arXiv 1907.04931); the contract defines the draws."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, Graph
from manyhop.sampling.contract import BatchKey, WalkRequest, WalkSpec
from manyhop.sampling.cpu.walk_sampler import CPUWalkSampler
from manyhop.sampling.random import Use, draw, make_key, unit

SaintMethod: TypeAlias = Literal["nodes", "edges", "walks"]
Ints = npt.NDArray[np.int64]


class SaintDraws:
    """Draws the nodes of one subgraph after the other; safe to call from several threads.

    Args:
        graph: without types, its edges reversed: the column of a node holds the nodes that its edges lead to.
        method: ``"nodes"``: the sources of uniform edges; ``"edges"``: both ends of edges, in proportion to the number
            of edges into the source and out of the destination; ``"walks"``: what uniform walks visit.
        num_draws: how many nodes, edges or walks, with replacement.
        walk_length: steps of each walk.

    Raises:
        InputError: a graph without nodes or edges.
    """

    def __init__(self, graph: Graph, method: SaintMethod, num_draws: int, walk_length: int = 1) -> None:
        csc, num_nodes = graph.csc[HOMOGENEOUS_EDGE], graph.num_nodes[HOMOGENEOUS_NODE]
        if num_nodes == 0 or csc.num_edges == 0:
            raise InputError(
                f"Expected a graph with nodes and edges to draw from, got {num_nodes} nodes and {csc.num_edges} edges."
            )
        self._method, self._num_draws, self._num_nodes, self._csc = method, num_draws, num_nodes, csc.made()
        self._sums = _running_sums(self._csc) if method == "edges" else None
        self._walks = CPUWalkSampler(graph, WalkSpec(steps=(HOMOGENEOUS_EDGE,) * walk_length))

    def draw(self, key: BatchKey) -> Tensor:
        """Return the distinct nodes of a batch, ``[num_nodes] int64``, in ascending order."""
        share = unit(draw(make_key(Use.SAINT, *key), np.arange(self._num_draws)))
        if self._method == "walks":
            start = torch.from_numpy((share * self._num_nodes).astype(np.int64))
            node = self._walks.sample(WalkRequest(key=key, start=start)).node.numpy()
            found = np.unique(node)
            return torch.from_numpy(found[found >= 0])
        if self._sums is None:
            return torch.from_numpy(np.unique(self._source((share * self._csc.num_edges).astype(np.int64))))
        position = np.searchsorted(self._sums, (share * self._sums[-1]).astype(np.int64), side="right")
        ends = np.concatenate([self._source(position), self._csc.row.numpy()[position]])
        return torch.from_numpy(np.unique(ends))

    def _source(self, position: Ints) -> Ints:
        """The node whose column has each stored position."""
        return np.searchsorted(self._csc.colptr.numpy(), position, side="right") - 1


def _running_sums(csc: CSC) -> Ints:
    """``[num_edges]``: those of the edges into the source and out of the destination; of 1 where there are none."""
    out_degree, row = np.diff(csc.colptr.numpy()), csc.row.numpy()
    in_degree = np.bincount(row, minlength=out_degree.size)
    weight = np.repeat(in_degree, out_degree) + out_degree[row]
    return np.cumsum(weight if weight.any() else np.ones_like(weight))
