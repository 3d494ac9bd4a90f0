"""``accelerate``: unchanged PyG models aggregate by segments of sorted edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import dropout, leaky_relu, pad
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, MessagePassing, SAGEConv
from torch_geometric.nn.aggr import MaxAggregation, MeanAggregation, SumAggregation
from torch_geometric.typing import Adj, Size

from manyhop.errors import InputError
from manyhop_pyg.training.trim import PassEdges, Trim
from manyhop_train.aggregation import Reduction, add_ends, aggregate, normalize

REDUCTIONS: Final[dict[type, Reduction]] = {SumAggregation: "sum", MeanAggregation: "mean", MaxAggregation: "max"}
Pair: TypeAlias = tuple[Tensor, Tensor]
Rows: TypeAlias = Tensor | Pair
"""Rows of nodes, or of sources and of destinations."""
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def is_plain(layer: MessagePassing, edge_index: Adj) -> bool:
    """Return whether edges are a plain tensor, and no hook, explanation or compiler needs the messages of a layer."""
    return (
        isinstance(edge_index, Tensor)
        and edge_index.layout == torch.strided
        and edge_index.dim() == 2
        and edge_index.size(0) == 2
        and edge_index.dtype in (torch.int32, torch.int64)
        and not torch.compiler.is_compiling()
        and not layer.explain
        and not layer._propagate_forward_pre_hooks
        and not layer._propagate_forward_hooks
        and not layer._message_forward_pre_hooks
        and not layer._message_forward_hooks
        and not layer._aggregate_forward_pre_hooks
        and not layer._aggregate_forward_hooks
    )


class _Trimmed(MessagePassing):  # type: ignore[misc]  # PyG is untyped
    """Runs PyG's code on the needed rows and edges."""

    segment_edges: PassEdges

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Keep the class: PyG would replace ``propagate`` by generated code when a layer is copied."""

    def forward(self, x: Rows, edge_index: Adj, *args: object, **kwargs: object) -> object:
        """Run the layer on the needed rows and edges."""
        needed, edges = self.segment_edges.trimmed(self, edge_index)
        if needed is not None:
            x = needed.nodes(x)
            args, kwargs = needed.arguments(args, kwargs, edge_index)
        return self.run(x, edges, *args, **kwargs)

    def run(self, x: Rows, edge_index: Adj, *args: object, **kwargs: object) -> object:
        """Run PyG's code."""
        return super().forward(x, edge_index, *args, **kwargs)


class _BySegments(_Trimmed):
    """Overrides of PyG's methods; falls back to these."""

    def propagate(self, edge_index: Adj, size: Size = None, **kwargs: Any) -> Tensor:
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

    def takes(self, edge_index: Adj, x: Tensor, weight: Tensor | None) -> bool:
        """Return whether the engine can aggregate these rows and edges."""
        return (
            is_plain(self, edge_index)
            and x.dim() == 2
            and x.dtype in _FLOATS
            and (weight is None or (weight.numel() == edge_index.size(1) and weight.dtype == x.dtype))
            and not (weight is not None and self.aggr == "max")
        )

    def add_up(self, edge_index: Tensor, x: Tensor, weight: Tensor | None, num_dst: int) -> Tensor:
        """Return the aggregated rows, ``[num_dst, num_channels]``."""
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
    """PyG's ``GCNConv``, without self loops as edges, whose number would have to be read from the GPU."""

    def forward(  # type: ignore[override]
        self, x: Tensor, edge_index: Adj, edge_weight: Tensor | None = None
    ) -> Tensor:
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
        x = (x if sums_first else self.lin(x)).to(weight.dtype)  # the dtype of PyG's product under autocast
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


Shares: TypeAlias = "tuple[Tensor, Tensor | None]"
"""Attention of edges and self loops; see :func:`manyhop_train.aggregation.normalize`."""


class _Attention(_Trimmed):
    """Overrides of PyG's methods with a fallback to them. Self loops are not edges, as their number is unknown."""

    add_self_loops: bool
    _loops: bool | None = None
    """Whether there are self loops; ``None``: PyG's code runs."""

    def run(self, x: Rows, edge_index: Adj, *args: object, **kwargs: object) -> object:
        """Let PyG project rows, and attend over segments."""
        pair = (x, x) if isinstance(x, Tensor) else x
        if (
            any(value is not None for value in (*args, *kwargs.values()))  # attributes of edges, weights to return
            or not is_plain(self, edge_index)
            or not all(isinstance(rows, Tensor) and rows.dim() == 2 for rows in pair)
            or self._edge_update_forward_pre_hooks
            or self._edge_update_forward_hooks
        ):
            return super().run(x, edge_index, *args, **kwargs)
        self._loops, self.add_self_loops = self.add_self_loops, False
        try:
            return super().run(x, edge_index)
        finally:
            self.add_self_loops, self._loops = self._loops, None

    def edge_updater(self, edge_index: Adj, size: Size = None, **kwargs: Pair) -> object:
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

    def propagate(self, edge_index: Adj, size: Size = None, **kwargs: Any) -> Tensor:
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

    def ends(self, **kwargs: Pair) -> tuple[Tensor, Tensor]:
        """Return values of sources and destinations for scores, ``[num_nodes, num_heads, ...]``."""
        raise NotImplementedError

    def scores(self, sums: Tensor) -> Tensor:
        """Scores ``[num_edges, num_heads]`` of the sums of both ends."""
        raise NotImplementedError


class SegmentGATConv(_Attention, GATConv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``GATConv``."""

    def ends(self, **kwargs: Pair) -> tuple[Tensor, Tensor]:
        """Return a number per head."""
        left, right = kwargs["alpha"]
        return left, right

    def scores(self, sums: Tensor) -> Tensor:
        """Activate them."""
        return leaky_relu(sums, self.negative_slope)


class SegmentGATv2Conv(_Attention, GATv2Conv):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``GATv2Conv``, whose scores need a row of both ends per edge."""

    def ends(self, **kwargs: Pair) -> tuple[Tensor, Tensor]:
        """Return a row per head."""
        left, right = kwargs["x"]
        return left, right

    def scores(self, sums: Tensor) -> Tensor:
        """Activate them, and multiply them by the learnt vector."""
        scores: Tensor = (leaky_relu(sums, self.negative_slope) * self.att).sum(-1)
        return scores


_CLASSES: Final[dict[type, type]] = {
    SAGEConv: SegmentSAGEConv,
    GCNConv: SegmentGCNConv,
    GINConv: SegmentGINConv,
    GraphConv: SegmentGraphConv,
    GATConv: SegmentGATConv,
    GATv2Conv: SegmentGATv2Conv,
}


def obstacle(layer: MessagePassing) -> str | None:
    """Return why a layer cannot aggregate by segments; ``None``: it can."""
    if type(layer) in _CLASSES.values():
        return "it is accelerated already"
    if type(layer) not in _CLASSES:
        return f"{type(layer).__name__} is none of {', '.join(known.__name__ for known in _CLASSES)}"
    if type(layer.aggr_module) not in REDUCTIONS:
        return f"its aggregation {layer.aggr_module} is no sum, mean or maximum"
    if isinstance(layer, GATConv | GATv2Conv) and type(layer.aggr_module) is not SumAggregation:
        return f"its aggregation {layer.aggr_module} is no sum"
    if layer.flow != "source_to_target":
        return f"flow='{layer.flow}'"
    if layer.node_dim not in (-2, 0):
        return f"node_dim={layer.node_dim}"
    if layer.decomposed_layers != 1:
        return f"decomposed_layers={layer.decomposed_layers}"
    if isinstance(layer, GCNConv) and layer.improved:
        return "improved=True"
    return None


@dataclass(frozen=True, kw_only=True)
class Accelerated:
    """The layers of a model that :func:`accelerate` has changed."""

    reached: list[str] = field(default_factory=list)
    """Names of layers, as in ``model.named_modules()``."""

    others: dict[str, str] = field(default_factory=dict)
    """Names of the other message passing layers, and why they are unchanged."""


def accelerate(model: torch.nn.Module, *, trim: bool = False) -> Accelerated:
    """Aggregate by segments of sorted edges, without atomics, in the layers of a PyG model.

    Applies to ``SAGEConv``, ``GCNConv``, ``GINConv`` and ``GraphConv`` with sums, means and maxima, ``GATConv`` and
    ``GATv2Conv``. Parameters, state dicts and results (within rounding) are unchanged; gradients become deterministic.
    Subclasses of these layers and other layers are unchanged. A layer runs PyG's code if its arguments are not plain
    edges ``[2, num_edges]`` and rows ``[num_nodes, num_channels]``, if it has PyG's hooks, or if it is explained.

    Batches of manyhop's loaders are sorted; other edges are sorted once per call of the model.

    With ``trim=True``, a layer computes only the rows and edges that the rows of the seeds depend on. The output begins
    with the rows of the seeds, ``[: batch.batch_size]``; do not use others. The first call of the model computes all
    rows and counts the layers. All rows are also computed if the edges do not come from ``NeighborLoader`` or
    ``LinkNeighborLoader``, and if layers are called outside of the model; training then logs a warning.

    Args:
        model: model to change in place.
        trim: compute only rows that the rows of seeds depend on. All message passing layers must be accelerated, and
            the model must not add or concatenate rows of different layers, which raises an error.

    Returns:
        The accelerated layers, and the others with a reason.

    Raises:
        InputError: ``model`` is not a module, or ``trim=True`` with other layers or none.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"Expected a torch.nn.Module, got a {type(model).__name__}. Pass the model.")
    edges = PassEdges(Trim() if trim else None)
    found = Accelerated()
    layers = {name: module for name, module in model.named_modules() if isinstance(module, MessagePassing)}
    for name, module in layers.items():
        reason = obstacle(module)
        if reason is None:
            found.reached.append(name)
        else:
            found.others[name] = reason
    if trim and (found.others or not found.reached):
        got = "; ".join(f"{name}: {reason}" for name, reason in found.others.items()) or "none"
        raise InputError(f"Expected layers that accelerate supports, got {got}. Leave out trim=True.")
    for name in found.reached:
        layers[name].__class__ = _CLASSES[type(layers[name])]
        layers[name].segment_edges = edges
    if found.reached:
        model.register_forward_pre_hook(edges.begin)
        model.register_forward_hook(edges.end, always_call=True)
    return found
