"""Layers that compute only the rows that the rows of seeds depend on, in models that do not trim.

Edges and rows of nodes are sorted by hop. The first rows of a tensor are always valid, and a layer that needs more rows
than it gets raises an error. So a wrong number of following layers, counted in the first call of the model, cannot
cause wrong results.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import Adj

from manyhop.errors import InputError
from manyhop_pyg.batch.join import hops_of, is_sorted
from manyhop_train.aggregation import Edges

_LEAVE_OUT = "Leave out trim=True."
_NOTE = (
    "manyhop: accelerate(model, trim=True) lets each layer return rows only for the nodes that the following layers "
    "need, so rows of different layers differ in number. If the model adds or concatenates them: " + _LEAVE_OUT
)


class Needed(NamedTuple):
    """Numbers of the first nodes and edges of a batch that a layer needs."""

    num_nodes: int
    """All nodes of the sources' type."""
    num_src: int
    num_dst: int
    num_edges: int

    def nodes(self, x: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the rows of sources and of destinations of ``x [num_nodes, num_channels]``, or a pair of these."""
        src, dst = (x, x) if isinstance(x, Tensor) else x
        if src is dst and torch.is_grad_enabled() and _checked(src, max(self.num_src, self.num_dst)).requires_grad:
            ends = _Ends.apply(src, self.num_src, self.num_dst)  # type: ignore[no-untyped-call]  # of torch
            return cast(tuple[Tensor, Tensor], ends)
        return _first(src, self.num_src), _first(dst, self.num_dst)

    def edges(self, value: object, edge_index: Tensor) -> Tensor | None:
        """Return the first rows of an argument that has one per edge, or ``None``."""
        if value is None:
            return None
        if not isinstance(value, Tensor) or value.shape[:1] != edge_index.shape[1:]:
            got = list(value.shape) if isinstance(value, Tensor) else repr(value)
            raise InputError(
                f"Expected layers of x, edge_index and rows of {edge_index.size(1)} edges, got {got}. {_LEAVE_OUT}"
            )
        return value[: self.num_edges]

    def arguments(
        self, args: Sequence[object], kwargs: Mapping[str, object], edge_index: Tensor
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the other arguments of a layer, with rows of the needed edges."""
        return (
            tuple(self.edges(value, edge_index) for value in args),
            {name: self.edges(value, edge_index) for name, value in kwargs.items()},
        )


class Trim:
    """Finds the rows and edges that each layer of a model needs, by the number of following layers.

    Calls on edges of different types count as one layer until edges repeat.
    """

    def __init__(self) -> None:
        self._layers: int | None = None
        """Number of layers in a call of the model; ``None``: before the first call."""
        self._refused = self._logged = False
        self.begin(running=False)

    def begin(self, *, running: bool = True) -> None:
        """Begin a call of the model."""
        self._running = running
        self._layer = 0
        self._edges: set[int] = set()
        """Ids of the layer's edge tensors, which the batch keeps alive."""
        self._others = self._trimmed = False

    def end(self, model: torch.nn.Module, out: object) -> None:
        """End it."""
        error = sys.exception() if out is None else None
        if error is not None:
            if self._trimmed and not isinstance(error, InputError):
                error.add_note(_NOTE)
        elif self._others and self._edges:
            self._refused = True
            self._log("the model passes other edges than those of the batch to some layers")
        elif self._others and model.training:
            self._log(
                "the edges are not those of a batch of manyhop's NeighborLoader or LinkNeighborLoader with directional "
                "sampling, or were changed or copied to another device"
            )
        elif self._edges and self._layers is None:
            self._layers = self._layer + 1
        self.begin(running=False)

    def needed(self, layer: torch.nn.Module, edge_index: Adj) -> Needed | None:
        """Return what the next call of a layer needs; ``None``: everything, without trimming."""
        if not self._running:
            if layer.training:
                self._log("layers are called outside of a call of the model that was passed to accelerate")
            return None
        hops = hops_of(edge_index) if isinstance(edge_index, Tensor) else None
        if hops is None:
            self.check_untrimmed()
            self._others = True
            return None
        if id(edge_index) in self._edges:
            self._layer += 1
            self._edges.clear()
        self._edges.add(id(edge_index))
        if self._others or self._refused or self._layers is None:
            return None
        following = self._layers - 1 - self._layer
        if following < 0:
            raise InputError(
                f"Expected {self._layers} layers in each call of the model, as in the first one, got more. {_LEAVE_OUT}"
            )
        self._trimmed = True
        return Needed(
            sum(hops.src),
            sum(hops.src[: following + 2]),
            sum(hops.dst[: following + 1]),
            sum(hops.edges[: following + 1]),
        )

    def check_untrimmed(self) -> None:
        """Raise InputError if layers before one that needs all rows were trimmed."""
        if self._trimmed:
            raise InputError(f"Expected the same edges in all layers, got others after trimmed layers. {_LEAVE_OUT}")

    def _log(self, reason: str) -> None:
        if not self._logged:
            self._logged = True
            logging.getLogger("manyhop").warning("Layers are not trimmed, since %s.", reason)


class _Ends(torch.autograd.Function):
    """Returns the first rows of a tensor for sources and for destinations.

    torch would add both gradients as tensors of all rows. The gradient of sources is a new tensor of an aggregation or
    a product, so the gradient of destinations is added to its first rows in place.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.num_rows = x.size(0)
        return x[:num_src], x[:num_dst]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, src: Tensor | None, dst: Tensor | None) -> tuple[Tensor | None, None, None]:
        grad = src
        if grad is None or grad.size(0) < ctx.num_rows:
            like = dst if src is None else src
            if like is None:
                return None, None, None
            grad = like.new_zeros(ctx.num_rows, like.size(1))
            if src is not None:
                grad[: src.size(0)] = src
        if dst is not None:
            grad[: dst.size(0)] += dst
        return grad, None, None


def _checked(x: object, number: int) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != 2 or x.size(0) < number:
        got = list(x.shape) if isinstance(x, Tensor) else repr(x)
        raise InputError(f"Expected rows of at least {number} nodes to trim, got {got}. {_LEAVE_OUT}")
    return x


def _first(x: object, number: int) -> Tensor:
    rows = _checked(x, number)
    return rows if rows.size(0) == number else rows[:number]


class PassEdges:
    """The edges of one call of a model: all its layers share their orders."""

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
        """Return edges that begin with these; trimmed edges are a view of the previous layer's edges."""
        if isinstance(edge_index, EdgeIndex):
            ordered, edge_index = edge_index.is_sorted_by_col, edge_index.as_tensor()
        else:
            ordered = is_sorted(edge_index)
        if not self._running or edge_index.is_inference():  # which has no version
            return Edges(edge_index, ordered=ordered)
        key = edge_index.data_ptr(), edge_index.stride(), edge_index.dtype, edge_index._version
        edges = self._known.get(key)
        if edges is None or edges.num_edges < edge_index.size(1):
            if edges is not None:
                edges.join()
            edges = self._known[key] = Edges(edge_index, ordered=ordered, beside=True)
        return edges

    def trimmed(self, layer: MessagePassing, edge_index: Adj) -> tuple[Needed | None, Adj]:
        """Return the rows and edges that a layer needs; ``None`` and all edges without trimming."""
        if self._trim is None:
            return None, edge_index
        if torch.compiler.is_compiling():
            self._trim.check_untrimmed()
            return None, edge_index
        needed = self._trim.needed(layer, edge_index)
        if needed is None or needed.num_edges == edge_index.size(1):
            return needed, edge_index
        self.of(edge_index)  # whose order also serves the first edges
        plain = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
        return needed, plain[:, : needed.num_edges]
