"""The kernels of aggregation: a program reduces one segment of edges, for one tile of channels.

Sums are float32 (float64 for float64), in a fixed order, so results are deterministic. One program would be slow for a
hub. So edges are split into windows of equal size; separate programs sum the windows inside of a segment before the
programs of segments add these sums.
"""

import triton
import triton.language as tl

SUM = tl.constexpr(0)
MEAN = tl.constexpr(1)
MAX = tl.constexpr(2)


@triton.jit
def _nodes(other, edge, at, end, limit, INDEX: tl.constexpr, NUMBERED: tl.constexpr):
    """Load the other endpoints of the edges at these positions, the numbers of the edges, and a mask."""
    valid = at < end
    number = at
    if NUMBERED:
        number = tl.load(edge.to(tl.pointer_type(tl.int64)) + at, mask=valid, other=0)
        valid = valid & (number < limit)
    node = tl.load(other.to(tl.pointer_type(INDEX)) + at, mask=valid, other=0).to(tl.int64)
    return node, number, valid


@triton.jit
def _rows(
    table, node, valid, channel, inside,
    DTYPE: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Load ``[edges, channels]`` rows of nodes, zeros if invalid. ALIGNED: rows begin at multiples of 16 bytes."""
    place = table.to(tl.pointer_type(DTYPE)) + node[:, None] * CHANNELS + channel[None, :]
    if ALIGNED:
        place = tl.multiple_of(place, [1, 16])
    return tl.load(place, mask=valid[:, None] & inside[None, :], other=0.0).to(ACC)


@triton.jit
def _store_row(table, node, channel, inside, value, DTYPE: tl.constexpr, CHANNELS: tl.constexpr, ALIGNED: tl.constexpr):
    """Write a part of the row of one node."""
    place = table.to(tl.pointer_type(DTYPE)) + node * CHANNELS + channel
    if ALIGNED:
        place = tl.multiple_of(place, 16)
    tl.store(place, value.to(DTYPE), mask=inside)


@triton.jit
def _add_step(
    acc, count, own, x, maxima, other, edge, weight, scale, begin, end, limit, channel, inside,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, CHANNELS: tl.constexpr, ALIGNED: tl.constexpr,
    NUMBERED: tl.constexpr, HEADS: tl.constexpr, SCALED: tl.constexpr, CHOSEN: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Add the rows of the next edges."""
    at = begin + tl.arange(0, EDGES)
    node, number, valid = _nodes(other, edge, at, end, limit, INDEX, NUMBERED)
    value = _rows(x, node, valid, channel, inside, DTYPE, ACC, CHANNELS, ALIGNED)
    if HEADS == 1:
        factor = tl.load(weight.to(tl.pointer_type(DTYPE)) + number, mask=valid, other=0.0).to(ACC)
        value = value * factor[:, None]
    elif HEADS > 1:
        place = number[:, None] * HEADS + (channel // (CHANNELS // HEADS))[None, :]
        use = valid[:, None] & inside[None, :]
        value = value * tl.load(weight.to(tl.pointer_type(DTYPE)) + place, mask=use, other=0.0).to(ACC)
    if SCALED:
        factor = tl.load(scale.to(tl.pointer_type(ACC)) + node, mask=valid, other=0.0)
        value = value * factor[:, None]
    if CHOSEN:
        best = _rows(maxima, node, valid, channel, inside, DTYPE, ACC, CHANNELS, ALIGNED)
        value = tl.where(best == own[None, :], value, 0.0)
    return acc + tl.sum(value, 0), count + tl.sum(valid.to(tl.int32), 0)


@triton.jit
def _own_row(chosen, segment, channel, inside, DTYPE: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr):
    """Load a part of the row of a segment."""
    place = chosen.to(tl.pointer_type(DTYPE)) + segment * CHANNELS + channel
    return tl.load(place, mask=inside, other=0.0).to(ACC)


@triton.jit
def _segment_of(ptr, at, num_segments):
    """Find the last segment that begins at or before a position; ``num_segments`` is not 0.

    It compares 32 beginnings at once: a binary search would wait for memory four times as often.
    """
    lane = tl.arange(0, 32).to(tl.int64)
    low = at * 0
    size = low + num_segments
    while size > 1:
        stride = (size + 31) // 32
        first = tl.load(
            ptr.to(tl.pointer_type(tl.int64)) + low + lane * stride, mask=lane * stride < size, other=at + 1
        )
        skipped = (tl.sum((first <= at).to(tl.int32), 0) - 1).to(tl.int64) * stride
        low += skipped
        size = tl.minimum(stride, size - skipped)
    return low


@triton.jit
def add_windows(
    x, maxima, chosen, sums, ptr, other, edge, weight, scale, num_segments, limit,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr, NUMBERED: tl.constexpr, HEADS: tl.constexpr, SCALED: tl.constexpr, CHOSEN: tl.constexpr,
    WINDOW: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Sum the rows of windows that are inside of one segment: sums: address of ``[num_windows, CHANNELS] ACC``.

    All else as in ``add_segments``.
    """
    TILES: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    program = tl.program_id(0).to(tl.int64)
    window = program // TILES
    channel = (program % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    begin = window * WINDOW
    stop = begin + WINDOW
    segment = _segment_of(ptr, begin, num_segments)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    if not NUMBERED:
        end = tl.minimum(end, limit)
    if stop <= end:
        acc = tl.zeros([BLOCK], ACC)
        count = tl.zeros([], tl.int32)
        own = acc
        if CHOSEN:
            own = _own_row(chosen, segment, channel, inside, DTYPE, ACC, CHANNELS)
        while begin < stop:
            acc, count = _add_step(
                acc, count, own, x, maxima, other, edge, weight, scale, begin, stop, limit, channel, inside,
                DTYPE, ACC, INDEX, CHANNELS, ALIGNED, NUMBERED, HEADS, SCALED, CHOSEN, EDGES,
            )  # fmt: skip
            begin += EDGES
        _store_row(sums, window, channel, inside, acc, ACC, CHANNELS, ALIGNED)


@triton.jit
def add_segments(
    x, maxima, chosen, sums, out, counts, ptr, other, edge, weight, scale, limit,
    MODE: tl.constexpr, DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr, NUMBERED: tl.constexpr, HEADS: tl.constexpr, SCALED: tl.constexpr, CHOSEN: tl.constexpr,
    WINDOW: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Sum or average rows per segment.

    x: address of ``[num_rows, CHANNELS] DTYPE``. maxima, chosen: of ``[num_rows, CHANNELS]`` and ``[num_segments,
    CHANNELS]``: only entries of x count whose maximum is equal to the one that the segment has chosen (CHOSEN). sums:
    of ``add_windows``; WINDOW is 0 without them. out: of ``[num_segments, CHANNELS] DTYPE``. counts: of
    ``[num_segments] ACC``, which get one over the number of edges (MEAN). ptr, other, edge: of an Order. weight: of
    ``[num_edges, HEADS] DTYPE``, by number of edge, if there are HEADS. scale: of ``[num_rows] ACC``. limit: edges of
    this number or more do not count.
    """
    TILES: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    program = tl.program_id(0).to(tl.int64)
    segment = program // TILES
    channel = (program % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    begin = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    if not NUMBERED:
        end = tl.minimum(end, limit)
    acc = tl.zeros([BLOCK], ACC)
    count = tl.zeros([], tl.int32)
    own = acc
    if CHOSEN:
        own = _own_row(chosen, segment, channel, inside, DTYPE, ACC, CHANNELS)
    if WINDOW > 0:
        window = (begin + WINDOW - 1) // WINDOW
        last = end // WINDOW
        if window < last:
            stop = window * WINDOW
            while begin < stop:
                acc, count = _add_step(
                    acc, count, own, x, maxima, other, edge, weight, scale, begin, stop, limit, channel, inside,
                    DTYPE, ACC, INDEX, CHANNELS, ALIGNED, NUMBERED, HEADS, SCALED, CHOSEN, EDGES,
                )  # fmt: skip
                begin += EDGES
            count += ((last - window) * WINDOW).to(tl.int32)
            while window < last:
                row = window + tl.arange(0, EDGES)
                acc += tl.sum(_rows(sums, row, row < last, channel, inside, ACC, ACC, CHANNELS, ALIGNED), 0)
                window += EDGES
            begin = last * WINDOW
    while begin < end:
        acc, count = _add_step(
            acc, count, own, x, maxima, other, edge, weight, scale, begin, end, limit, channel, inside,
            DTYPE, ACC, INDEX, CHANNELS, ALIGNED, NUMBERED, HEADS, SCALED, CHOSEN, EDGES,
        )  # fmt: skip
        begin += EDGES
    if MODE == MEAN:
        factor = 1.0 / tl.maximum(count, 1).to(ACC)
        acc = acc * factor
        if program % TILES == 0:
            tl.store(counts.to(tl.pointer_type(ACC)) + segment, factor)
    _store_row(out, segment, channel, inside, acc, DTYPE, CHANNELS, ALIGNED)


@triton.jit
def max_segments(
    x, out, ties, found, ptr, other, edge, limit,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr, NUMBERED: tl.constexpr, TIES: tl.constexpr, FOUND: tl.constexpr,
    BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Find maxima of rows per segment; 0 in empty ones, NaN where a row has it.

    As in ``add_segments``; ties: address of ``[num_segments, CHANNELS] int32``: how many rows have the maximum (TIES).
    With FOUND, empty segments get minus infinity. found: of ``[num_segments, CHANNELS] INDEX``: the rows of the maxima,
    of equal ones that of the first edge; 0 in empty segments.
    """
    NUM_TILES: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    program = tl.program_id(0).to(tl.int64)
    segment = program // NUM_TILES
    channel = (program % NUM_TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    begin = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    if not NUMBERED:
        end = tl.minimum(end, limit)
    best = tl.full([BLOCK], float("-inf"), ACC)
    equal = tl.zeros([BLOCK], tl.int32)
    broken = tl.zeros([BLOCK], tl.int32)
    place = tl.full([BLOCK], -1, tl.int64)
    count = tl.zeros([], tl.int32)
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        node, _, valid = _nodes(other, edge, at, end, limit, INDEX, NUMBERED)
        value = _rows(x, node, valid, channel, inside, DTYPE, ACC, CHANNELS, ALIGNED)
        if not FOUND:
            broken = tl.maximum(broken, tl.max((value != value).to(tl.int32), 0))
        value = tl.where(valid[:, None], value, float("-inf"))
        top = tl.max(value, 0)
        if FOUND:
            first = tl.min(tl.where(valid[:, None] & (value == top[None, :]), at[:, None], end), 0)
            place = tl.where((top > best) | (place < 0), first, place)
        better = tl.maximum(best, top)
        if TIES:
            same = valid[:, None] & (value == better[None, :])
            equal = tl.where(best == better, equal, 0) + tl.sum(same.to(tl.int32), 0)
        best = better
        count += tl.sum(valid.to(tl.int32), 0)
        begin += EDGES
    if FOUND:
        row = tl.load(other.to(tl.pointer_type(INDEX)) + place, mask=(place >= 0) & (place < end), other=0)
        _store_row(found, segment, channel, inside, row, INDEX, CHANNELS, ALIGNED)
    else:
        best = tl.where(broken > 0, float("nan"), best)
        best = tl.where(count > 0, best, 0.0)
    _store_row(out, segment, channel, inside, best, DTYPE, CHANNELS, ALIGNED)
    if TIES:
        _store_row(ties, segment, channel, inside, equal, tl.int32, CHANNELS, ALIGNED)


@triton.jit
def edge_dots(
    x, grad, result, row, col, scale, limit,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr, HEADS: tl.constexpr,
    SCALED: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Multiply the rows at both ends of each edge, head by head: the gradients of weights.

    x: address of ``[num_src, HEADS, CHANNELS]``. grad: of ``[num_dst, HEADS, CHANNELS]``. result: of ``[limit, HEADS]
    DTYPE``. row, col: of ``[limit] INDEX``. scale: of ``[num_dst] ACC``.
    """
    at = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    valid = at < limit * HEADS
    source = tl.load(row.to(tl.pointer_type(INDEX)) + at // HEADS, mask=valid, other=0).to(tl.int64)
    target = tl.load(col.to(tl.pointer_type(INDEX)) + at // HEADS, mask=valid, other=0).to(tl.int64)
    left_row, right_row = source * HEADS + at % HEADS, target * HEADS + at % HEADS
    acc = tl.zeros([EDGES], ACC)
    for begin in tl.static_range(0, CHANNELS, BLOCK):
        channel = begin + tl.arange(0, BLOCK)
        inside = channel < CHANNELS
        left = _rows(x, left_row, valid, channel, inside, DTYPE, ACC, CHANNELS, ALIGNED)
        acc += tl.sum(left * _rows(grad, right_row, valid, channel, inside, DTYPE, ACC, CHANNELS, ALIGNED), 1)
    if SCALED:
        acc = acc * tl.load(scale.to(tl.pointer_type(ACC)) + target, mask=valid, other=0.0)
    tl.store(result.to(tl.pointer_type(DTYPE)) + at, acc.to(DTYPE), mask=valid)


@triton.jit
def add_ends(
    left, right, result, row, col, limit,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, CHANNELS: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Add the rows at both ends of each edge.

    left, right: addresses of ``[num_src, CHANNELS]`` and ``[num_dst, CHANNELS] DTYPE``. result: of ``[limit, CHANNELS]
    DTYPE``. row, col: of ``[limit] INDEX``.
    """
    TILES: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    program = tl.program_id(0).to(tl.int64)
    at = (program // TILES) * EDGES + tl.arange(0, EDGES)
    channel = (program % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    valid = at < limit
    source = tl.load(row.to(tl.pointer_type(INDEX)) + at, mask=valid, other=0).to(tl.int64)
    target = tl.load(col.to(tl.pointer_type(INDEX)) + at, mask=valid, other=0).to(tl.int64)
    value = _rows(left, source, valid, channel, inside, DTYPE, ACC, CHANNELS, ALIGNED)
    value += _rows(right, target, valid, channel, inside, DTYPE, ACC, CHANNELS, ALIGNED)
    place = result.to(tl.pointer_type(DTYPE)) + at[:, None] * CHANNELS + channel[None, :]
    tl.store(place, value.to(DTYPE), mask=valid[:, None] & inside[None, :])
