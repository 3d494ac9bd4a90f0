"""PyG's layers whose aggregation is the engine's: subclasses that a layer's class is exchanged for."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import GCNConv, GINConv, GraphConv, MessagePassing, SAGEConv
from torch_geometric.nn.aggr import MaxAggregation, MeanAggregation, SumAggregation
from torch_geometric.nn.models.basic_gnn import TrimToLayer

from manyhop.errors import InputError
from manyhop_pyg.training.trim import Needed, Trim
from manyhop_train.aggregation import Edges, Reduction, aggregate, is_sorted

REDUCTIONS: Final[dict[type, Reduction]] = {SumAggregation: "sum", MeanAggregation: "mean", MaxAggregation: "max"}
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class PassEdges:
    """The edges of one call of a model: all its layers share their orders.

    Args:
        trim: which of them layers need; ``None``: all.
    """

    def __init__(self, trim: Trim | None = None) -> None:
        self._running = False
        self._trim = trim
        self._known: dict[object, Edges] = {}

    def begin(self, *_: object) -> None:
        """Begin a call of the model."""
        if not torch.compiler.is_compiling():
            self._known.clear()
            self._running = True
            if self._trim is not None:
                self._trim.begin()

    def end(self, model: torch.nn.Module, _: object, out: object) -> None:
        """End it."""
        if not torch.compiler.is_compiling():
            if self._trim is not None:
                self._trim.end(model, out)
            for edges in self._known.values():
                edges.join()
            self._known.clear()
            self._running = False

    def of(self, edge_index: Tensor) -> Edges:
        """Return edges that begin with these; trimmed ones are a view of those of the layer before."""
        if isinstance(edge_index, EdgeIndex):
            ordered, edge_index = edge_index.is_sorted_by_col, edge_index.as_tensor()
        elif torch.compiler.is_compiling():
            ordered = False
        else:
            ordered = is_sorted(edge_index)
        if torch.compiler.is_compiling() or not self._running or edge_index.is_inference():  # which has no version
            return Edges(edge_index, ordered=ordered)
        key = edge_index.data_ptr(), edge_index.stride(), edge_index.dtype, edge_index._version
        edges = self._known.get(key)
        if edges is None or edges.num_edges < edge_index.size(1):
            if edges is not None:
                edges.join()
            edges = self._known[key] = Edges(edge_index, ordered=ordered, beside=True)
        return edges

    def trims(self, edge_index: Any) -> bool:
        """Whether the model that is called trims its layers, on these edges."""
        return self._trim is not None and not torch.compiler.is_compiling() and self._trim.trims(edge_index)

    def trimmed(self, layer: MessagePassing, edge_index: Any) -> tuple[Needed | None, Any]:
        """Return what a call of a layer needs, and the edges that it needs; ``None`` and all edges without trimming."""
        if self._trim is None:
            return None, edge_index
        if torch.compiler.is_compiling():
            self._trim.check_untrimmed()
            return None, edge_index
        needed = self._trim.needed(layer, edge_index)
        if needed is None or needed.num_edges == edge_index.size(1):
            return needed, edge_index
        self.of(edge_index)  # whose order serves the first edges, too
        plain = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
        return needed, plain[:, : needed.num_edges]


class TrimByNeed(TrimToLayer):  # type: ignore[misc]  # PyG is untyped
    """What PyG's models trim by, if they are given counts per hop: leaves a batch as it is where layers trim more."""

    segment_edges: PassEdges

    def forward(self, layer: int, nodes: Any, edges: Any, x: Any, edge_index: Any, edge_attr: Any = None) -> Any:
        """Return rows, edges and what they have, for a layer."""
        if self.segment_edges.trims(edge_index):
            return x, edge_index, edge_attr
        return super().forward(layer, nodes, edges, x, edge_index, edge_attr)


def is_plain(layer: MessagePassing, edge_index: Any) -> bool:
    """Whether edges are a plain tensor, and nobody looks at the messages of a layer."""
    return (
        isinstance(edge_index, Tensor)
        and edge_index.layout == torch.strided
        and edge_index.dim() == 2
        and edge_index.size(0) == 2
        and edge_index.dtype in (torch.int32, torch.int64)
        and not layer.explain
        and not layer._propagate_forward_pre_hooks
        and not layer._propagate_forward_hooks
        and not layer._message_forward_pre_hooks
        and not layer._message_forward_hooks
        and not layer._aggregate_forward_pre_hooks
        and not layer._aggregate_forward_hooks
    )


class _BySegments(MessagePassing):  # type: ignore[misc]  # PyG is untyped
    """Overrides of PyG's methods; falls back to these."""

    segment_edges: PassEdges

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Leave the class as it is: when a layer is copied, PyG would put code of its own in place of ``propagate``."""

    def forward(self, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        """Run PyG's code on what is needed."""
        needed, edges = self.segment_edges.trimmed(self, edge_index)
        if needed is not None:
            x = needed.nodes(x)
            args, kwargs = needed.arguments(args, kwargs, edge_index)
        return super().forward(x, edges, *args, **kwargs)

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """Aggregate the rows of sources at destinations."""
        x, weight = kwargs["x"], kwargs.get("edge_weight")
        source, target = (x, x) if isinstance(x, Tensor) else x
        sizes = (None, None) if size is None else size
        num_dst = sizes[1] if target is None else target.size(0)
        if (
            num_dst is None
            or sizes[0] not in (None, source.size(0))
            or sizes[1] not in (None, num_dst)
            or not self.takes(edge_index, source, weight)
        ):
            theirs: Tensor = super().propagate(edge_index, size=size, **kwargs)
            return theirs
        return self.add_up(edge_index, source, weight, num_dst)

    def takes(self, edge_index: Any, x: Tensor, weight: Tensor | None) -> bool:
        """Whether the engine can aggregate these."""
        return (
            is_plain(self, edge_index)
            and x.dim() == 2
            and x.dtype in _FLOATS
            and (weight is None or (weight.numel() == edge_index.size(1) and weight.dtype == x.dtype))
            and not (weight is not None and self.aggr == "max")
        )

    def add_up(self, edge_index: Tensor, x: Tensor, weight: Tensor | None, num_dst: int) -> Tensor:
        """``[num_dst, num_channels]``."""
        return aggregate(
            x,
            self.segment_edges.of(edge_index),
            num_dst=num_dst,
            num_edges=edge_index.size(1),
            reduce=REDUCTIONS[type(self.aggr_module)],
            weight=None if weight is None else weight.view(-1),
        )


class SegmentSAGEConv(_BySegments, SAGEConv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``SAGEConv``."""


class SegmentGINConv(_BySegments, GINConv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``GINConv``."""


class SegmentGraphConv(_BySegments, GraphConv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``GraphConv``."""


class SegmentGCNConv(_BySegments, GCNConv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``GCNConv``, whose self loops are no edges here: their number is not known without waiting for a GPU."""

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Normalise by degrees, and aggregate."""
        needed, edges = self.segment_edges.trimmed(self, edge_index)
        own = self.normalize and not self.cached and isinstance(x, Tensor)
        if not own or not self.takes(edge_index, x, edge_weight):
            if needed is not None and self.normalize:  # by the degrees of needed edges, which lack some
                raise InputError("Expected GCNConv(cached=False) on plain edges and rows. Leave out trim=True.")
            if needed is not None:
                x, edge_weight = needed.nodes(x)[0], needed.edges(edge_weight, edge_index)
            theirs: Tensor = GCNConv.forward(self, x, edges, edge_weight)
            return theirs if needed is None else theirs[: needed.num_dst]
        num_nodes, num_dst = x.size(0), x.size(0)
        if needed is not None:  # degrees count all edges of the batch
            num_nodes, num_dst, (x, _) = needed.num_nodes, needed.num_dst, needed.nodes(x)
        plain = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
        weight, loops = _normalised(plain, edge_weight, num_nodes, x.dtype, self.add_self_loops)
        sums_first = x.size(1) <= self.out_channels  # of narrower rows, and without their gradients in a first layer
        x = (x if sums_first else self.lin(x)).to(weight.dtype)  # of this dtype, too, is PyG's product under autocast
        out = self.add_up(edges, x, weight[: edges.size(1)], num_dst)
        if loops is not None:
            out = torch.addcmul(out, loops[:num_dst].unsqueeze(1), x[:num_dst])
        if sums_first:
            out = self.lin(out).to(weight.dtype)
        return out if self.bias is None else out + self.bias


def _normalised(
    edge_index: Tensor, weight: Tensor | None, num_nodes: int, dtype: torch.dtype, add_self_loops: bool
) -> tuple[Tensor, Tensor | None]:
    """Weights of edges, 0 for self loops if these are added, and the weights ``[num_nodes]`` of self loops."""
    row, col = edge_index
    own: Tensor | None = None
    kept = torch.ones(row.numel(), dtype=dtype, device=row.device) if weight is None else weight.view(-1)
    if add_self_loops:
        is_loop = row == col
        own = kept.new_ones(num_nodes)
        if weight is not None:  # nodes keep the weights of the loops that they have
            at = row.masked_fill(~is_loop, num_nodes).long()
            own = kept.new_ones(num_nodes + 1).scatter(0, at, kept)[:num_nodes]
        kept = kept.masked_fill(is_loop, 0)
    degree = kept.new_zeros(num_nodes).index_add(0, col, kept)
    inverse = (degree if own is None else degree + own).pow(-0.5)
    inverse = inverse.masked_fill(inverse == torch.inf, 0)
    kept = inverse.index_select(0, row) * kept * inverse.index_select(0, col)
    return kept, None if own is None else inverse * own * inverse
