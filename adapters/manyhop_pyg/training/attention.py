"""PyG's attention layers whose softmax and weighted sums are the engine's."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import dropout, leaky_relu, pad
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing

from manyhop_pyg.training.convs import PassEdges, is_plain
from manyhop_train.aggregation import add_ends, aggregate, normalize

Shares: TypeAlias = "tuple[Tensor, Tensor | None]"
"""Of edges, and of self loops: see :func:`manyhop_train.aggregation.normalize`."""


class _Attention(MessagePassing):  # type: ignore[misc]  # PyG is untyped
    """Overrides of PyG's methods; falls back to these. Self loops are no edges here: their number is not known."""

    add_self_loops: bool
    segment_edges: PassEdges
    _loops: bool | None = None
    """Whether there are self loops; ``None``: PyG's code runs."""

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Leave the class as it is: see ``_BySegments``."""

    def forward(self, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        """Let PyG project rows, and attend over segments."""
        needed, edges = self.segment_edges.trimmed(self, edge_index)
        if needed is not None:
            x = needed.nodes(x)
            args, kwargs = needed.arguments(args, kwargs, edge_index)
        edge_index = edges
        pair = (x, x) if isinstance(x, Tensor) else x
        if (
            any(value is not None for value in (*args, *kwargs.values()))  # attributes of edges, weights to return
            or torch.compiler.is_compiling()
            or not is_plain(self, edge_index)
            or not all(isinstance(rows, Tensor) and rows.dim() == 2 for rows in pair)
            or self._edge_update_forward_pre_hooks
            or self._edge_update_forward_hooks
        ):
            return super().forward(x, edge_index, *args, **kwargs)
        self._loops, self.add_self_loops = self.add_self_loops, False
        try:
            return super().forward(x, edge_index)
        finally:
            self.add_self_loops, self._loops = self._loops, None

    def edge_updater(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
        """Return the shares of edges and self loops."""
        if self._loops is None:
            return super().edge_updater(edge_index, size=size, **kwargs)
        left, right = self.ends(**kwargs)
        edges, limit = self.segment_edges.of(edge_index), edge_index.size(1)
        scores, own = self.scores(add_ends(left, right, edges, num_edges=limit)), None
        if self._loops:
            both = min(left.size(0), right.size(0))
            own = self.scores(left[:both] + right[:both])
            own = pad(own, (0, 0, 0, right.size(0) - both), value=-torch.inf)
            row, col = edges.edge_index[:, :limit]
            scores = scores.masked_fill((row == col).unsqueeze(1), -torch.inf)
        shares, own = normalize(scores, edges, num_dst=right.size(0), own=own)
        shares = dropout(shares, self.dropout, self.training)
        return shares, None if own is None else dropout(own, self.dropout, self.training)

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """Sum the rows of sources, weighted by their shares: ``[num_dst, num_heads, num_channels]``."""
        if self._loops is None:
            theirs: Tensor = super().propagate(edge_index, size=size, **kwargs)
            return theirs
        (source, target), (shares, own) = kwargs["x"], kwargs["alpha"]
        num_dst = target.size(0)
        source = source.to(torch.promote_types(source.dtype, shares.dtype))
        out = aggregate(
            source.flatten(1),
            self.segment_edges.of(edge_index),
            num_dst=num_dst,
            num_edges=edge_index.size(1),
            reduce="sum",
            weight=shares.to(source.dtype),
        ).view(num_dst, *source.shape[1:])
        if own is None:
            return out
        both = min(num_dst, source.size(0))
        loops = own[:both].unsqueeze(-1) * source[:both]
        return out + pad(loops, (0, 0, 0, 0, 0, num_dst - both))

    def ends(self, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """What of sources and destinations makes scores: ``[num_nodes, num_heads, ...]``."""
        raise NotImplementedError

    def scores(self, sums: Tensor) -> Tensor:
        """Scores ``[num_edges, num_heads]`` of the sums of both ends."""
        raise NotImplementedError


class SegmentGATConv(_Attention, GATConv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``GATConv``."""

    def ends(self, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return a number per head."""
        left, right = kwargs["alpha"]
        return left, right

    def scores(self, sums: Tensor) -> Tensor:
        """Activate them."""
        return leaky_relu(sums, self.negative_slope)


class SegmentGATv2Conv(_Attention, GATv2Conv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``GATv2Conv``, whose scores need a row of both ends per edge."""

    def ends(self, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return a row per head."""
        left, right = kwargs["x"]
        return left, right

    def scores(self, sums: Tensor) -> Tensor:
        """Activate them, and multiply them by the learnt vector."""
        scores: Tensor = (leaky_relu(sums, self.negative_slope) * self.att).sum(-1)
        return scores
