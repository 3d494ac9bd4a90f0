"""Types that the modules of GraphBolt's replacement share. What is by type is a dictionary in heterogeneous graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import IterDataPipe

Pipe: TypeAlias = IterDataPipe[Any]
"""Hands on minibatches, or whatever items and functions of the user are."""
Nodes: TypeAlias = Tensor | dict[str, Tensor]
"""A tensor, by node type or edge type: ids ``[n]``, pairs of ids ``[n, 2]``, times, labels, ..."""
Fanout: TypeAlias = int | Sequence[int] | Tensor
"""Edges per node of one layer: of all types together, or ``[num_edge_types]``."""
Pairs: TypeAlias = tuple[Tensor, Tensor]
"""Sources and destinations, ``[n]`` each."""
Links: TypeAlias = Pairs | dict[str, Pairs]
"""Pairs, by edge type."""
Features: TypeAlias = dict[Any, Tensor]
"""Feature name, or ``(type, feature name)`` -> rows ``[n, ...]``."""


class GBWarning(UserWarning):
    """The category of all warnings of this package, as in DGL 2.4."""
