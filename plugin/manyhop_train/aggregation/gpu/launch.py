"""Launches of the kernels of aggregation, on the current stream."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhop.system.triton_launch import Kernel, as_current
from manyhop_train.aggregation.edges import Order
from manyhop_train.aggregation.gpu import attention as of_heads
from manyhop_train.aggregation.gpu import kernels as k

_MOST_CHANNELS: Final = 256
_TILE: Final = 1024
"""Entries of rows that a program reads in a step."""
_WINDOW: Final = 32
"""Edges that are summed together if all are in one segment."""
_SOFTMAX_TILE: Final = 64
"""Scores that a program of a softmax reads in a step."""

Constant: TypeAlias = torch.dtype | int | float
"""A constant of a kernel: type, number or flag."""
_MODES: Final = {"sum": k.SUM.value, "mean": k.MEAN.value}


def add(
    x: Tensor,
    order: Order,
    size: int,
    limit: int,
    mode: str,
    weight: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    chosen: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Sum or average rows per segment.

    Args:
        x: ``[num_rows, num_channels]``.
        order: the edges; ``other`` are rows of ``x``.
        size: number of segments.
        limit: ignore edges of this number or more.
        mode: "sum" or "mean".
        weight: ``[num_edges]`` or ``[num_edges, num_heads]``, by number of edge; heads have equal shares of channels.
        scale: ``[num_rows]`` another factor of each row.
        chosen: ``[num_rows, num_channels]`` and ``[size, num_channels]``: use only entries of ``x`` where the first
            equals the second at the other end of the edge.

    Returns:
        ``[size, num_channels]``, and for means ``[size]``, one over the number of edges.
    """
    x, weight, *pair = _contiguous(x, weight, *(chosen or ()))
    channels, exact = x.size(1), _sums(x)
    out = x.new_empty(size, channels)
    factors = x.new_empty(size, dtype=exact) if mode == "mean" else None
    # Means of edges that were sorted here need no more of a window than of a segment: the edges that count.
    num_windows = order.other.numel() // _WINDOW if size and (mode == "sum" or order.edge is None) else 0
    sums = x.new_empty(num_windows, channels, dtype=exact) if num_windows else None
    constants = _constants(order.other, x, out, *pair) | {
        "NUMBERED": order.edge is not None,
        "HEADS": 0 if weight is None else weight.shape[1:].numel(),
        "SCALED": scale is not None,
        "CHOSEN": chosen is not None,
        "WINDOW": _WINDOW if num_windows else 0,
    }
    rows = {"x": x, "sums": sums} | dict(zip(("maxima", "chosen"), pair or (None, None), strict=True))
    edges = {"ptr": order.ptr, "other": order.other, "edge": order.edge, "weight": weight, "scale": scale}
    if num_windows:
        programs = _programs(num_windows, channels)
        _run(k.add_windows, constants, programs, **rows, **edges, num_segments=size, limit=limit)
    constants["MODE"] = _MODES[mode]
    _run(k.add_segments, constants, _programs(size, channels), **rows, out=out, counts=factors, **edges, limit=limit)
    return out, factors


def maxima(
    x: Tensor, order: Order, size: int, limit: int, *, ties: bool = False, rows: bool = False
) -> tuple[Tensor, Tensor]:
    """Find maxima per segment: ``[size, num_channels]``.

    Args:
        x, order, size, limit: as for :func:`add`.
        ties: also return ``[size, num_channels] int32``: how many rows have the maximum.
        rows: also return ``[size, num_channels]``: the row of the maximum, of equal ones that of the first edge. Then
            empty segments have minus infinity, and row 0; otherwise 0.
    """
    x = x.contiguous()
    out = x.new_empty(size, x.size(1))
    equal = x.new_empty(out.shape if ties else 0, dtype=torch.int32)
    found = order.other.new_empty(out.shape if rows else 0)
    flags = {"NUMBERED": order.edge is not None, "TIES": ties, "FOUND": rows}
    given = {"x": x, "out": out, "ties": equal, "found": found, **order._asdict()}
    constants = _constants(order.other, x, out, found) | flags
    _run(k.max_segments, constants, _programs(size, x.size(1)), **given, limit=limit)
    return out, found if rows else equal


def dots(x: Tensor, grad: Tensor, row: Tensor, col: Tensor, limit: int, scale: Tensor | None) -> Tensor:
    """Multiply the rows of ``x [num_src, ..., num_channels]`` and ``grad [num_dst, ..., num_channels]`` of edges.

    Returns:
        ``[limit, ...]`` for the first edges; ``scale [num_dst]`` is a factor of each row of ``grad``.
    """
    x, grad, row, col = _contiguous(x, grad, row, col)
    result = x.new_empty(limit, *x.shape[1:-1])
    channels, heads = x.size(-1), x.shape[1:-1].numel()
    constants = _constants(row, x, grad) | {"HEADS": heads, "SCALED": scale is not None}
    programs = -(-limit * heads // _block(channels)[1]) if channels else 0
    _run(k.edge_dots, constants, programs, x=x, grad=grad, result=result, row=row, col=col, scale=scale, limit=limit)
    return result if channels else result.zero_()


def add_ends(left: Tensor, right: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """Add the rows at both ends of edges, ``left[row] + right[col]``: ``[num_edges, num_channels]``."""
    left, right, row, col = _contiguous(left, right, row, col)
    limit, channels = row.numel(), left.size(1)
    result = left.new_empty(limit, channels)
    constants, programs = _constants(row, left, right, result), _programs(-(-limit // _block(channels)[1]), channels)
    _run(k.add_ends, constants, programs, left=left, right=right, result=result, row=row, col=col, limit=limit)
    return result


class Ends(NamedTuple):
    """Numbers at both ends of edges, whose scores are leaky ReLUs of their sums."""

    left: Tensor
    """``[num_rows, num_heads]``, at the other ends."""
    right: Tensor
    """``[num_segments, num_heads]``."""
    slope: float
    """Of the leaky ReLU below 0."""


def softmax(scores: Tensor | Ends, order: Order, own: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Normalize scores per segment.

    Args:
        scores: ``[num_edges, num_heads]``, by number of edge; or numbers at the ends of edges.
        order: the edges; ``other`` is needed for ends only.
        own: ``[num_segments, num_heads]`` additional score of each segment.

    Returns:
        Shares of the edges, ``[num_edges, num_heads]``, and of ``own``.
    """
    left, right, slope = scores if isinstance(scores, Ends) else (scores, None, 0.0)
    left, right, own = _contiguous(left, right, own)
    out = torch.empty_like(left) if right is None else left.new_empty(order.other.numel(), left.size(1))
    own_out = None if own is None else torch.empty_like(own)
    given = {"scores": left, "right": right, "other": order.other, "own": own, "out": out, "own_out": own_out}
    constants = _of_heads(left, order, own is not None, right is not None, slope)
    _run(of_heads.softmax_segments, constants, order.ptr.numel() - 1, **given, ptr=order.ptr, edge=order.edge)
    return out, own_out


def softmax_gradient(
    out: Tensor, grad: Tensor, order: Order, own: tuple[Tensor, Tensor] | None = None, ends: Ends | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the scores of :func:`softmax`, or of the sums of both ends; and of ``own`` or ``right``.

    Args:
        out: ``[num_edges, num_heads]`` shares.
        grad: their gradient.
        order: the edges.
        own: shares of the additional scores, and their gradient.
        ends: scores, if they were such.
    """
    left, right, slope = ends or (None, None, 0.0)
    own_out, own_grad = own or (None, None)
    out, grad, left, right, own_out, own_grad = _contiguous(out, grad, left, right, own_out, own_grad)
    like = right if own_out is None else own_out
    result, of_segments = torch.empty_like(out), None if like is None else torch.empty_like(like)
    given = {"scores": left, "right": right, "other": order.other, "out": out, "own_out": own_out, "grad": grad}
    given |= {"own_grad": own_grad, "result": result, "of_segments": of_segments, "ptr": order.ptr, "edge": order.edge}
    constants = _of_heads(out, order, own is not None, ends is not None, slope)
    _run(of_heads.softmax_gradients, constants, order.ptr.numel() - 1, **given)
    return result, of_segments


def _contiguous(*tensors: Tensor | None) -> Any:
    return tuple(None if t is None else t.contiguous() for t in tensors)


def _sums(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _constants(index: Tensor, x: Tensor, *others: Tensor) -> dict[str, Constant]:
    """Return the constants of a kernel over rows of channels; ALIGNED: all rows begin at multiples of 16 bytes."""
    aligned = x.size(-1) * x.element_size() % 16 == 0 and not any([value.data_ptr() % 16 for value in (x, *others)])
    block, edges = _block(x.size(-1))
    types: dict[str, Constant] = {"DTYPE": x.dtype, "ACC": _sums(x), "INDEX": index.dtype}
    return types | {"CHANNELS": x.size(-1), "ALIGNED": aligned, "BLOCK": block, "EDGES": edges}


def _of_heads(x: Tensor, order: Order, own: bool, ends: bool, slope: float) -> dict[str, Constant]:
    """Return the constants of a kernel over values ``[num_edges, num_heads]`` of edges, or of their ends."""
    block = triton.next_power_of_2(x.size(1))
    index = order.other.dtype if ends else torch.int64
    types: dict[str, Constant] = {"DTYPE": x.dtype, "ACC": _sums(x), "INDEX": index, "SLOPE": slope}
    flags = {"NUMBERED": order.edge is not None, "OWN": own, "ENDS": ends}
    return types | flags | {"HEADS": x.size(1), "BLOCK": block, "EDGES": max(_SOFTMAX_TILE // block, 1)}


@functools.cache
def _block(channels: int) -> tuple[int, int]:
    """Return the channels and edges of a step."""
    block = min(1 << max(channels - 1, 0).bit_length(), _MOST_CHANNELS)
    return block, max(_TILE // max(block, 16), 1)


@functools.cache
def _kernel(function: Any, **constants: Constant) -> Kernel:
    """Return a kernel with constants by name; types are torch's, which hash faster than triton's equal ones."""
    values = (constants[name] for name in inspect.signature(function.fn).parameters if name in constants)
    known = (getattr(tl, str(v).removeprefix("torch.")) if isinstance(v, torch.dtype) else v for v in values)
    return Kernel(function, tuple(known), num_warps=1)


def _run(function: Any, constants: dict[str, Constant], programs: int, **arguments: Tensor | int | None) -> None:
    """Enqueue programs of a kernel on the current stream of the first tensor's GPU.

    Args:
        function: a ``triton.jit`` function, of numbers and addresses.
        constants: its constexpr arguments.
        programs: number of programs.
        **arguments: its other ones: numbers, and tensors for addresses; ``None``: 0.
    """
    if not programs:
        return
    device = next(value.device for value in arguments.values() if isinstance(value, Tensor))
    numbers = {n: v.data_ptr() if isinstance(v, Tensor) else v or 0 for n, v in arguments.items()}
    with as_current(device):
        _kernel(function, **constants)(device, programs, **numbers)


def _programs(size: int, channels: int) -> int:
    return size * -(-channels // _block(channels)[0]) if channels else 0
