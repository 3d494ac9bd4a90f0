"""Launches of the kernels of aggregation, on the current stream."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhop.system.triton_launch import Kernel
from manyhop_train.aggregation.edges import Order
from manyhop_train.aggregation.gpu import attention as attention_kernels
from manyhop_train.aggregation.gpu import kernels as k
from manyhop_train.aggregation.gpu import softmax as softmax_kernels

_MOST_CHANNELS: Final = 256
_TILE: Final = 1024
"""Entries of rows that a program reads in a step."""
_WINDOW: Final = 32
"""Edges that are added up together where all of them are of one segment."""
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
        limit: edges of this number or more do not count.
        mode: "sum" or "mean".
        weight: ``[num_edges]`` or ``[num_edges, num_heads]``, by number of edge; with several heads, each has an equal
            share of the channels.
        scale: ``[num_rows]``: another factor of each row.
        chosen: ``[num_rows, num_channels]`` and ``[size, num_channels]``: an entry of ``x`` counts where the first is
            equal to the second at the other end of the edge.

    Returns:
        ``[size, num_channels]``, and for means ``[size]``: one over the number of edges.
    """
    x = x.contiguous()
    weight = None if weight is None else weight.contiguous()
    pair = () if chosen is None else (chosen[0].contiguous(), chosen[1].contiguous())
    channels, exact = x.size(1), _sums(x)
    out = x.new_empty(size, channels)
    factors = x.new_empty(size, dtype=exact) if mode == "mean" else None
    # Of means of edges that were sorted here, no more is known of a window than of a segment: which edges count.
    num_windows = order.other.numel() // _WINDOW if size and (mode == "sum" or order.edge is None) else 0
    sums = x.new_empty(num_windows, channels, dtype=exact) if num_windows else None
    types = _constants(order.other, x, out, *pair)
    window = _WINDOW if num_windows else 0
    constants = (order.edge is not None, _heads(weight), scale is not None, chosen is not None, window)
    read = (x, *(pair or (None, None)), sums), (order.ptr, order.other, order.edge, weight, scale)
    rows, edges = [[0 if t is None else t.data_ptr() for t in tensors] for tensors in read]
    if num_windows:
        kernel = _kernel("add_windows", (0,) * 11, types, constants, channels)
        _enqueue(kernel, x, _programs(num_windows, channels), *rows, *edges, size, limit)
    kernel = _kernel("add_segments", (0,) * 12, types, constants, channels, mode)
    _enqueue(kernel, x, _programs(size, channels), *rows, out.data_ptr(), _address(factors), *edges, limit)
    return out, factors


def maxima(x: Tensor, order: Order, size: int, limit: int, *, ties: bool) -> tuple[Tensor, Tensor]:
    """Find maxima per segment: ``[size, num_channels]``, and with ``ties`` how many rows have each, else ``[0]``."""
    x = x.contiguous()
    out = x.new_empty(size, x.size(1))
    equal = x.new_empty(out.shape if ties else 0, dtype=torch.int32)
    constants = (order.edge is not None, ties)
    kernel = _kernel("max_segments", (0,) * 7, _constants(order.other, x, out), constants, x.size(1))
    _enqueue(kernel, x, _programs(size, x.size(1)), *map(_address, (x, out, equal, *order)), limit)
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
    kernel = _kernel("max_rows", (0,) * 5, _constants(other, x, out, found), (), x.size(1))
    _enqueue(kernel, x, _programs(size, x.size(1)), *map(_address, (x, out, found, ptr, other)))
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
    constants = (heads, scale is not None)
    kernel = _kernel("edge_dots", (0,) * 7, _constants(row, x, grad), constants, channels)
    programs = -(-limit * heads // _block(channels)[1]) if channels else 0
    _enqueue(kernel, x, programs, *map(_address, (x, grad, result, row, col, scale)), limit)
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
    kernel = _kernel("add_ends", (0,) * 6, _constants(row, left, right, result), (), channels)
    programs = _programs(-(-limit // _block(channels)[1]), channels)
    _enqueue(kernel, left, programs, *map(_address, (left, right, result, row, col)), limit)
    return result


def softmax(
    scores: Tensor, ptr: Tensor, edge: Tensor | None, own: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Normalize scores per segment.

    Args:
        scores: ``[num_edges, num_heads]``, by number of edge.
        ptr: ``[num_segments + 1] int64``: where each segment begins.
        edge: ``[num_edges] int64``: the number of each edge; ``None``: its position.
        own: ``[num_segments, num_heads]``: one score more of each segment.

    Returns:
        Shares of the edges, and those of ``own``.
    """
    scores, own = scores.contiguous(), None if own is None else own.contiguous()
    out, own_out = torch.empty_like(scores), None if own is None else torch.empty_like(own)
    kernel = _softmax_kernel("softmax_segments", 6, scores.dtype, scores.size(1), edge is not None, own is not None)
    _enqueue(kernel, scores, ptr.numel() - 1, *map(_address, (scores, own, out, own_out, ptr, edge)))
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
    kernel = _softmax_kernel("softmax_gradients", 8, out.dtype, out.size(1), edge is not None, own_out is not None)
    tables = out, own_out, grad, own_grad, result, own_result
    _enqueue(kernel, out, ptr.numel() - 1, *map(_address, (*tables, ptr, edge)))
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
    kernel = _attention_kernel("attention_segments", 6, left, order, slope)
    _enqueue(kernel, left, order.ptr.numel() - 1, *map(_address, (left, right, out, *order)))
    return out


def attention_gradient(
    out: Tensor, grad: Tensor, left: Tensor, right: Tensor, order: Order, slope: float
) -> tuple[Tensor, Tensor]:
    """Return the gradient ``[num_edges, num_heads]`` of the sums of :func:`attention`, and that of ``right``."""
    out, grad, left, right = (t.contiguous() for t in (out, grad, left, right))
    result, of_right = torch.empty_like(out), torch.empty_like(right)
    kernel = _attention_kernel("attention_gradients", 9, left, order, slope)
    _enqueue(kernel, left, order.ptr.numel() - 1, *map(_address, (left, right, out, grad, result, of_right, *order)))
    return result, of_right


def _attention_kernel(name: str, num_arguments: int, left: Tensor, order: Order, slope: float) -> Kernel:
    types = left.dtype, order.other.dtype, left.size(1), order.edge is not None
    return _kernel_of_attention(name, num_arguments, *types, slope)


@functools.cache
def _kernel_of_attention(
    name: str, num_arguments: int, dtype: torch.dtype, index: torch.dtype, heads: int, numbered: bool, slope: float
) -> Kernel:
    block = triton.next_power_of_2(heads)
    sums = tl.float64 if dtype == torch.float64 else tl.float32
    constants = (_TYPES[dtype], sums, _TYPES[index], heads, numbered, slope, block, max(_SOFTMAX_TILE // block, 1))
    return Kernel(getattr(attention_kernels, name), (0,) * num_arguments, constants, num_warps=1)


@functools.cache
def _softmax_kernel(name: str, num_arguments: int, dtype: torch.dtype, heads: int, numbered: bool, own: bool) -> Kernel:
    block = triton.next_power_of_2(heads)
    sums = tl.float64 if dtype == torch.float64 else tl.float32
    edges = max(_SOFTMAX_TILE // block, 1)
    constants = (_TYPES[dtype], sums, heads, numbered, own, block, edges)
    return Kernel(getattr(softmax_kernels, name), (0,) * num_arguments, constants, num_warps=1)


def _heads(weight: Tensor | None) -> int:
    if weight is None:
        return 0
    return 1 if weight.dim() == 1 else weight.size(1)


def _sums(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _constants(index: Tensor, x: Tensor, *others: Tensor) -> tuple[Any, ...]:
    """Types of a kernel, the number of channels, and whether all rows begin at multiples of 16 bytes."""
    aligned = x.size(-1) * x.element_size() % 16 == 0 and not any([value.data_ptr() % 16 for value in (x, *others)])
    return x.dtype, _sums(x), index.dtype, x.size(-1), aligned


@functools.cache
def _block(channels: int) -> tuple[int, int]:
    """Channels and edges of a step."""
    block = min(1 << max(channels - 1, 0).bit_length(), _MOST_CHANNELS)
    return block, max(_TILE // max(block, 16), 1)


@functools.cache
def _kernel(
    name: str, shape: tuple[int, ...], types: tuple[Any, ...], constants: tuple[Any, ...], channels: int, mode: str = ""
) -> Kernel:
    """A kernel; ``types`` are of torch, whose hashes are quicker than those of triton's types."""
    first = (_MODES[mode],) if mode else ()
    known = (_TYPES[t] if isinstance(t, torch.dtype) else t for t in types)
    return Kernel(getattr(k, name), shape, (*first, *known, *constants, *_block(channels)), num_warps=1)


def _programs(size: int, channels: int) -> int:
    return size * -(-channels // _block(channels)[0]) if channels else 0


def _address(value: Tensor | None) -> int:
    return 0 if value is None else value.data_ptr()


def _enqueue(kernel: Kernel, x: Tensor, programs: int, *args: int) -> None:
    if not programs:
        return
    if x.device.type == "cuda" and torch.cuda.current_device() != x.device.index:
        with torch.cuda.device(x.device):
            kernel(x.device, programs, *args)
    else:
        kernel(x.device, programs, *args)
