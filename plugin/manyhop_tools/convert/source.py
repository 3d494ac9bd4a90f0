"""Common parts of the readers of other formats."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.graph_writer import GraphWriter
from manyhop.files.sort import EdgeSorter
from manyhop.graph import EdgeType, NodeType


class Source(Protocol):
    """A graph in files of another format."""

    @property
    def homogeneous(self) -> bool:
        """Whether it has one node type and one edge type without their own names."""

    def write(self, writer: GraphWriter) -> None:
        """Write all nodes and edges.

        Raises:
            InputError: a file or a column that is missing or cannot be understood.
            GraphError: ids or numbers of nodes that do not fit.
        """


def report(text: str) -> None:
    """Print a sentence about a decision."""
    print(text, file=sys.stderr)


def least_counts(sorters: Mapping[EdgeType, EdgeSorter]) -> dict[NodeType, int]:
    """Return 1 + the highest id of each node type in edges that were added."""
    found: dict[NodeType, int] = {}
    for (src, _, dst), sorter in sorters.items():
        for name, count in ((src, sorter.num_src), (dst, sorter.num_dst)):
            found[name] = max(found.get(name, 0), count)
    return found


def check_both_ways(edge_types: Collection[EdgeType]) -> None:
    """Raise InputError if edges of a type have no other direction."""
    if any(src != dst for src, _, dst in edge_types):
        raise InputError("Edges can be added in the other direction only if both ends are of the same node type.")


def both_ways(src: Tensor, dst: Tensor, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return each edge, followed by itself in the other direction, with its row of each column."""
    ends = torch.stack([src, dst], 1)
    return ends.view(-1), ends.flip(1).view(-1), {name: rows.repeat_interleave(2, 0) for name, rows in columns.items()}
