"""Launches of the kernels of aggregation, on the current stream."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final, TypeAlias

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

_TYPES: Final = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
}
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
    x = x.contiguous()
    weight = None if weight is None else weight.contiguous()
    pair = () if chosen is None else (chosen[0].contiguous(), chosen[1].contiguous())
    channels, exact = x.size(1), _sums(x)
    out = x.new_empty(size, channels)
    factors = x.new_empty(size, dtype=exact) if mode == "mean" else None
    # Means of edges that were sorted here need no more of a window than of a segment: the edges that count.
    num_windows = order.other.numel() // _WINDOW if size and (mode == "sum" or order.edge is None) else 0
    sums = x.new_empty(num_windows, channels, dtype=exact) if num_windows else None
    constants = _constants(order.other, x, out, *pair) | {
        "NUMBERED": order.edge is not None,
        "HEADS": _heads(weight),
        "SCALED": scale is not None,
        "CHOSEN": chosen is not None,
        "WINDOW": _WINDOW if num_windows else 0,
    }
    most, own = pair or (None, None)
    rows = {"x": x, "maxima": most, "chosen": own, "sums": sums}
    edges = {"ptr": order.ptr, "other": order.other, "edge": order.edge, "weight": weight, "scale": scale}
    if num_windows:
        kernel = _kernel(k.add_windows, **constants)
        kernel(_programs(num_windows, channels), **rows, **edges, num_segments=size, limit=limit)
    kernel = _kernel(k.add_segments, MODE=_MODES[mode], **constants)
    kernel(_programs(size, channels), **rows, out=out, counts=factors, **edges, limit=limit)
    return out, factors


def maxima(x: Tensor, order: Order, size: int, limit: int, *, ties: bool) -> tuple[Tensor, Tensor]:
    """Find maxima per segment, ``[size, num_channels]``, and with ``ties`` the number of equal rows, else ``[0]``."""
    x = x.contiguous()
    out = x.new_empty(size, x.size(1))
    equal = x.new_empty(out.shape if ties else 0, dtype=torch.int32)
    constants = _constants(order.other, x, out) | {"NUMBERED": order.edge is not None, "TIES": ties, "FOUND": False}
    given = {"x": x, "out": out, "ties": equal, "found": None, **order._asdict()}
    _kernel(k.max_segments, **constants)(_programs(size, x.size(1)), **given, limit=limit)
    return out, equal


def maxima_and_rows(x: Tensor, ptr: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Find maxima per segment, and which rows they came from: of equal ones, that of the first edge.

    Args:
        x: ``[num_rows, num_channels]``.
        ptr: ``[num_segments + 1] int64``: where each segment begins.
        other: ``[num_edges]``: the row of each edge.

    Returns:
        ``[num_segments, num_channels]``, minus infinity in empty segments; and the rows, 0 there.
    """
    x, size = x.contiguous(), ptr.numel() - 1
    out, found = x.new_empty(size, x.size(1)), other.new_empty(size, x.size(1))
    constants = _constants(other, x, out, found) | {"NUMBERED": False, "TIES": False, "FOUND": True}
    given = {"x": x, "out": out, "ties": None, "found": found, "ptr": ptr, "other": other, "edge": None}
    _kernel(k.max_segments, **constants)(_programs(size, x.size(1)), **given, limit=other.numel())
    return out, found


def dots(x: Tensor, grad: Tensor, row: Tensor, col: Tensor, limit: int, scale: Tensor | None) -> Tensor:
    """Multiply the rows at both ends of edges.

    Args:
        x: ``[num_src, num_channels]`` or ``[num_src, num_heads, num_channels]``.
        grad: ``[num_dst, ...]``, of the same shape else.
        row: ``[num_edges]``: rows of ``x``.
        col: ``[num_edges]``: rows of ``grad``.
        limit: use the first edges only.
        scale: ``[num_dst]``: a factor of each row of ``grad``.

    Returns:
        ``[limit]`` or ``[limit, num_heads]``.
    """
    x, grad, row, col = (t.contiguous() for t in (x, grad, row, col))
    result = x.new_empty(limit, *x.shape[1:-1])
    channels, heads = x.size(-1), x.shape[1:-1].numel()
    kernel = _kernel(k.edge_dots, **_constants(row, x, grad), HEADS=heads, SCALED=scale is not None)
    programs = -(-limit * heads // _block(channels)[1]) if channels else 0
    kernel(programs, x=x, grad=grad, result=result, row=row, col=col, scale=scale, limit=limit)
    return result if channels else result.zero_()


def add_ends(left: Tensor, right: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """Add the rows at both ends of edges.

    Args:
        left: ``[num_src, num_channels]``.
        right: ``[num_dst, num_channels]``.
        row: ``[num_edges]``: rows of ``left``.
        col: ``[num_edges]``: rows of ``right``.

    Returns:
        ``[num_edges, num_channels]``.
    """
    left, right, row, col = (t.contiguous() for t in (left, right, row, col))
    limit, channels = row.numel(), left.size(1)
    result = left.new_empty(limit, channels)
    kernel = _kernel(k.add_ends, **_constants(row, left, right, result))
    programs = _programs(-(-limit // _block(channels)[1]), channels)
    kernel(programs, left=left, right=right, result=result, row=row, col=col, limit=limit)
    return result


def softmax(
    scores: Tensor, ptr: Tensor, edge: Tensor | None, own: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Normalize scores per segment.

    Args:
        scores: ``[num_edges, num_heads]``, by number of edge.
        ptr: ``[num_segments + 1] int64`` first edge of each segment.
        edge: ``[num_edges] int64`` number of each edge; ``None``: its position.
        own: ``[num_segments, num_heads]`` additional score of each segment.

    Returns:
        Shares of the edges and of ``own``.
    """
    scores, own = scores.contiguous(), None if own is None else own.contiguous()
    out, own_out = torch.empty_like(scores), None if own is None else torch.empty_like(own)
    kernel = _kernel(of_heads.softmax_segments, **_of_heads(scores, edge, own=own is not None))
    kernel(
        ptr.numel() - 1, scores=scores, right=None, other=None, own=own, out=out, own_out=own_out, ptr=ptr, edge=edge
    )
    return out, own_out


def softmax_gradient(
    out: Tensor,
    grad: Tensor,
    ptr: Tensor,
    edge: Tensor | None,
    own_out: Tensor | None = None,
    own_grad: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the scores of :func:`softmax` and of ``own``."""
    out, grad = out.contiguous(), grad.contiguous()
    result, own_result = torch.empty_like(out), None
    if own_out is not None and own_grad is not None:
        own_out, own_grad, own_result = own_out.contiguous(), own_grad.contiguous(), torch.empty_like(own_out)
    kernel = _kernel(of_heads.softmax_gradients, **_of_heads(out, edge, own=own_out is not None))
    given = {"scores": None, "right": None, "other": None, "out": out, "own_out": own_out, "grad": grad}
    kernel(ptr.numel() - 1, **given, own_grad=own_grad, result=result, of_segments=own_result, ptr=ptr, edge=edge)
    return result, own_result


def attention(left: Tensor, right: Tensor, order: Order, slope: float) -> Tensor:
    """Normalize the leaky ReLUs of the sums of numbers at both ends of edges, per segment.

    Args:
        left: ``[num_rows, num_heads]``, at the other ends.
        right: ``[num_segments, num_heads]``.
        order: the edges.
        slope: of the leaky ReLU below 0.

    Returns:
        ``[num_edges, num_heads]``, by number of edge.
    """
    left, right = left.contiguous(), right.contiguous()
    out = left.new_empty(order.other.numel(), left.size(1))
    kernel = _kernel(of_heads.softmax_segments, **_of_heads(left, order.edge, order.other.dtype, slope))
    given = {"scores": left, "right": right, "other": order.other, "own": None, "out": out, "own_out": None}
    kernel(order.ptr.numel() - 1, **given, ptr=order.ptr, edge=order.edge)
    return out


def attention_gradient(
    out: Tensor, grad: Tensor, left: Tensor, right: Tensor, order: Order, slope: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the sums of :func:`attention`, ``[num_edges, num_heads]``, and of ``right``."""
    out, grad, left, right = (t.contiguous() for t in (out, grad, left, right))
    result, of_right = torch.empty_like(out), torch.empty_like(right)
    kernel = _kernel(of_heads.softmax_gradients, **_of_heads(left, order.edge, order.other.dtype, slope))
    given = {"scores": left, "right": right, "other": order.other, "out": out, "own_out": None, "grad": grad}
    found = {"own_grad": None, "result": result, "of_segments": of_right}
    kernel(order.ptr.numel() - 1, **given, **found, ptr=order.ptr, edge=order.edge)
    return result, of_right


def _heads(weight: Tensor | None) -> int:
    if weight is None:
        return 0
    return 1 if weight.dim() == 1 else weight.size(1)


def _sums(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _constants(index: Tensor, x: Tensor, *others: Tensor) -> dict[str, Constant]:
    """Return the constants of a kernel over rows of channels; ALIGNED: all rows begin at multiples of 16 bytes."""
    aligned = x.size(-1) * x.element_size() % 16 == 0 and not any([value.data_ptr() % 16 for value in (x, *others)])
    block, edges = _block(x.size(-1))
    types: dict[str, Constant] = {"DTYPE": x.dtype, "ACC": _sums(x), "INDEX": index.dtype}
    return types | {"CHANNELS": x.size(-1), "ALIGNED": aligned, "BLOCK": block, "EDGES": edges}


def _of_heads(
    x: Tensor, edge: Tensor | None, index: torch.dtype | None = None, slope: float = 0.0, *, own: bool = False
) -> dict[str, Constant]:
    """Return the constants of a kernel over values ``[num_edges, num_heads]`` of edges, or of their ends."""
    block = triton.next_power_of_2(x.size(1))
    types: dict[str, Constant] = {"DTYPE": x.dtype, "ACC": _sums(x), "INDEX": index or torch.int64, "SLOPE": slope}
    flags = {"NUMBERED": edge is not None, "OWN": own, "ENDS": index is not None}
    return types | flags | {"HEADS": x.size(1), "BLOCK": block, "EDGES": max(_SOFTMAX_TILE // block, 1)}


@functools.cache
def _block(channels: int) -> tuple[int, int]:
    """Return the channels and edges of a step."""
    block = min(1 << max(channels - 1, 0).bit_length(), _MOST_CHANNELS)
    return block, max(_TILE // max(block, 16), 1)


class _Kernel:
    """A kernel with named integer arguments: numbers, and addresses of tensors (0: no tensor).

    Args:
        function: a ``triton.jit`` function.
        constants: its constexpr arguments, by name.
    """

    def __init__(self, function: Any, constants: dict[str, Constant]) -> None:
        parameters = inspect.signature(function.fn).parameters.values()
        self._names = tuple(p.name for p in parameters if p.annotation is not tl.constexpr)
        values = [constants[p.name] for p in parameters if p.annotation is tl.constexpr]
        assert len(values) == len(constants), (function, constants)
        known = tuple(_TYPES[value] if isinstance(value, torch.dtype) else value for value in values)
        self._kernel = Kernel(function, known, num_warps=1)

    def __call__(self, programs: int, **arguments: Tensor | int | None) -> None:
        """Enqueue programs on the current stream of the first tensor's GPU.

        Args:
            programs: number of programs.
            **arguments: in the order of the kernel's arguments.
        """
        assert tuple(arguments) == self._names, (tuple(arguments), self._names)
        if not programs:
            return
        device = next(value.device for value in arguments.values() if isinstance(value, Tensor))
        numbers = [
            0 if value is None else value if isinstance(value, int) else value.data_ptr()
            for value in arguments.values()
        ]
        with as_current(device):
            self._kernel(device, programs, *numbers)


@functools.cache
def _kernel(function: Any, **constants: Constant) -> _Kernel:
    """Return a kernel; its types are torch's, which hash faster than triton's."""
    return _Kernel(function, constants)


def _programs(size: int, channels: int) -> int:
    return size * -(-channels // _block(channels)[0]) if channels else 0
