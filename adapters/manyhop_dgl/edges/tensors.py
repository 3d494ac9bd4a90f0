"""Samples around seed edges as tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from manyhop.graph import EdgeType
from manyhop_dgl.samplers.tensors import BlockTensors
from manyhop_dgl.typing import Pairs

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EdgeTensors:
    """A batch of seed edges: blocks around their ends, and where the ends are among the blocks' output nodes.

    In a graph with one edge type, ``positives``, ``negatives`` and ``edge_ids`` are tensors, else they are keyed by
    edge type.
    """

    sample: BlockTensors
    """The blocks; their output nodes are the ends of seed edges and negatives, each once."""

    ends: dict[EdgeType, Pairs]
    """Source and destination of each seed edge, ``[num_edges]`` each: indices into the output nodes of its types."""

    ids: dict[EdgeType, Tensor]
    """``[num_edges]``: the graph's id of each seed edge."""

    negative_ends: dict[EdgeType, Pairs] | None
    """The same for the negatives; ``None`` without a negative sampler."""

    edge_features: dict[str, Tensor | dict[EdgeType, Tensor]] = field(default_factory=dict)
    """Name -> ``[num_edges, ...]``: rows of the seed edges, such as labels, where a loader is asked for them."""

    masks: dict[EdgeType, Tensor] | None = None
    """``[num_edges] bool``: which seed edges are no padding; ``None`` without padding."""

    negative_masks: dict[EdgeType, Tensor] | None = None
    """The same for the negatives."""

    num_edges: dict[EdgeType, int] | None = None
    """Seed edges that are no padding; ``None`` without padding."""

    @property
    def positives(self) -> Pairs | dict[EdgeType, Pairs]:
        """``ends``, of the one edge type or by edge type."""
        return _only(self.ends)

    @property
    def negatives(self) -> Pairs | dict[EdgeType, Pairs] | None:
        """``negative_ends``, of the one edge type or by edge type."""
        return None if self.negative_ends is None else _only(self.negative_ends)

    @property
    def edge_ids(self) -> Tensor | dict[EdgeType, Tensor]:
        """``ids``, of the one edge type or by edge type."""
        return _only(self.ids)

    @property
    def positive_mask(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``masks``, of the one edge type or by edge type."""
        return None if self.masks is None else _only(self.masks)

    @property
    def negative_mask(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``negative_masks``, of the one edge type or by edge type."""
        return None if self.negative_masks is None else _only(self.negative_masks)

    def to(self, device: torch.device | str) -> EdgeTensors:
        """The same on another device."""

        def moved(pairs: dict[EdgeType, Pairs]) -> dict[EdgeType, Pairs]:
            return {t: (src.to(device), dst.to(device)) for t, (src, dst) in pairs.items()}

        def moved_masks(masks: dict[EdgeType, Tensor] | None) -> dict[EdgeType, Tensor] | None:
            return None if masks is None else {t: mask.to(device) for t, mask in masks.items()}

        return replace(
            self,
            masks=moved_masks(self.masks),
            negative_masks=moved_masks(self.negative_masks),
            sample=self.sample.to(device),
            ends=moved(self.ends),
            ids={t: ids.to(device) for t, ids in self.ids.items()},
            negative_ends=None if self.negative_ends is None else moved(self.negative_ends),
            edge_features={
                name: rows.to(device) if isinstance(rows, Tensor) else {t: x.to(device) for t, x in rows.items()}
                for name, rows in self.edge_features.items()
            },
        )


def _only(by_type: dict[EdgeType, T]) -> T | dict[EdgeType, T]:
    return next(iter(by_type.values())) if len(by_type) == 1 else by_type
