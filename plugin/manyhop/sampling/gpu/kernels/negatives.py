"""Endpoints of seed edges: the given ones and those of negatives, then their sorted unique ids.

A launch reads one int64 array, ``descriptor``: the columns below, then a group for each edge type and batch. A *row*
has the endpoints of one node type of a batch. Tables are passed by address: launches with few arguments are faster.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.primitives import batch_key, below, draw, first_above, fold, is_edge, unit

# Columns of `about`, for the sources and again for the destinations: their candidates.
NODE = tl.constexpr(0)
TIME = tl.constexpr(1)
CUMW = tl.constexpr(2)
LAST_POSITIVE = tl.constexpr(3)
NUM_NODES = tl.constexpr(4)
FIRST_POSITIVE = tl.constexpr(5)
END_COLUMNS = tl.constexpr(6)
# ... and the lookup of edges.
EDGES_BEGIN = tl.constexpr(12)
EDGES_DESTINATION = tl.constexpr(13)

# Columns of `descriptor`: addresses of the output, and of the lengths of the rows.
OUT = tl.constexpr(0)  # endpoints
OUT_MAX = tl.constexpr(1)  # their times
OUT_MIN = tl.constexpr(2)
INDEX = tl.constexpr(3)  # local id of each endpoint in the sample
UNIQUE = tl.constexpr(4)
FAILED = tl.constexpr(5)  # int8, by edge type and batch: whether a negative is a true edge after all attempts
STATE = tl.constexpr(6)
LENGTHS = tl.constexpr(7)
PITCH = tl.constexpr(8)  # length of a row
DESCRIPTOR_COLUMNS = tl.constexpr(9)
# ... and of its groups.
NUM_POS = tl.constexpr(0)
NUM_NEG = tl.constexpr(1)
SRC = tl.constexpr(2)  # addresses of the seed edges
DST = tl.constexpr(3)
TIME_MAX = tl.constexpr(4)
TIME_MIN = tl.constexpr(5)
KEY = tl.constexpr(6)  # seed, epoch, batch
SRC_AT = tl.constexpr(9)  # offset of its sources in the output
DST_AT = tl.constexpr(10)
SRC_LOCAL = tl.constexpr(11)  # endpoints of its row before its sources
DST_LOCAL = tl.constexpr(12)
KIND = tl.constexpr(13)  # number of its edge type, if a batch has seed edges of multiple types
BATCH_COLUMNS = tl.constexpr(14)

# Entries of `state`.
NUM_BAD = tl.constexpr(0)  # ids out of range
NUM_LEFT = tl.constexpr(1)  # negatives that are true edges after all attempts
STATE_COUNTS = tl.constexpr(2)  # unique endpoints of each row

ATTEMPTS = tl.constexpr(16)
NEGATIVE_SRC = tl.constexpr(2)  # uses of keys
NEGATIVE_DST = tl.constexpr(3)


@triton.jit
def _ints(address):
    return address.to(tl.pointer_type(tl.int64))


@triton.jit
def _floats(address):
    return address.to(tl.pointer_type(tl.float64))


@triton.jit
def _eligible(limit, act, about, TIMES: tl.constexpr):
    """Return how many candidates, from the first on, a draw chooses from."""
    n = tl.zeros_like(limit) + tl.load(about + NUM_NODES)
    if TIMES:
        n = first_above(_ints(tl.load(about + TIME)), tl.zeros_like(limit), tl.where(act, n, 0), limit)
        n = tl.maximum(n, tl.load(about + FIRST_POSITIVE) + 1)
    return n


@triton.jit
def _draw(key, index, n, act, about, SORTED: tl.constexpr, WEIGHTED: tl.constexpr):
    """Return a node for every draw number, among the first ``n`` candidates."""
    r = draw(key, index)
    if WEIGHTED:
        cumw = _floats(tl.load(about + CUMW))
        target = unit(r) * tl.load(cumw + n - 1, mask=act, other=0.0)
        at = first_above(cumw, tl.zeros_like(n), tl.where(act, n, 0), target)
        at = tl.minimum(at, tl.load(_ints(tl.load(about + LAST_POSITIVE)) + n - 1, mask=act, other=0))
    else:
        at = below(r, n).to(tl.int64)
    if SORTED:
        at = tl.load(_ints(tl.load(about + NODE)) + at, mask=act, other=0)
    return at


@triton.jit
def _is_edge(src, dst, act, about, WIDE: tl.constexpr):
    """Return whether there is an edge, from the sorted destinations of all sources."""
    begin = _ints(tl.load(about + EDGES_BEGIN))
    destination = tl.load(about + EDGES_DESTINATION).to(tl.pointer_type(tl.int64 if WIDE else tl.int32))
    return is_edge(begin, destination, src, dst, act)


@triton.jit
def _key_of_kind(batch, use: tl.constexpr):
    """Return the key of a batch and its edge type."""
    key, kind = batch_key(batch + KEY, use), tl.load(batch + KIND)
    return tl.where(kind > 0, fold(key, kind), key)


@triton.jit(do_not_specialize=["first"])
def draw_endpoints(
    about, descriptor, first,
    BINARY: tl.constexpr, TRIPLET: tl.constexpr, GIVEN: tl.constexpr, EXCLUDE: tl.constexpr, EDGES_WIDE: tl.constexpr,
    LIMITS: tl.constexpr, WINDOW: tl.constexpr, DISJOINT: tl.constexpr, OUT_WIDE: tl.constexpr,
    SRC_SORTED: tl.constexpr, SRC_WEIGHTED: tl.constexpr, DST_SORTED: tl.constexpr, DST_WEIGHTED: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Write the endpoints of an edge type, one program for ``T`` of the pairs of a batch; negatives are drawn here.

    Disjoint, it also writes their times and the position of each endpoint among the nodes of the sample.

    Args:
        first: number of the first of its groups.
        GIVEN: negatives are not drawn, but lie behind the destinations of the seed edges.
    """
    group = first + tl.program_id(1)
    batch = descriptor + DESCRIPTOR_COLUMNS + group * BATCH_COLUMNS
    about_dst = about + END_COLUMNS
    num_pos, num_neg = tl.load(batch + NUM_POS), tl.load(batch + NUM_NEG)
    i = tl.program_id(0) * T + tl.arange(0, T).to(tl.int64)
    given = i < num_pos
    drawn = (i >= num_pos) & (i < num_pos + num_neg)
    j = tl.where(drawn, i - num_pos, 0)
    seed_edge = tl.where(drawn, j % tl.maximum(num_pos, 1), i)
    act = given | drawn
    state = _ints(tl.load(descriptor + STATE))
    s = tl.load(_ints(tl.load(batch + SRC)) + seed_edge, mask=act, other=0)
    of_dst, read = seed_edge, given
    if GIVEN:
        of_dst, read = i, act
    d = tl.load(_ints(tl.load(batch + DST)) + of_dst, mask=read, other=0)
    no_src = (s < 0) | (s >= tl.load(about + NUM_NODES))
    no_dst = (d < 0) | (d >= tl.load(about_dst + NUM_NODES))
    bad = act & (no_src | no_dst)
    if tl.max(bad.to(tl.int32), 0) > 0:
        tl.atomic_add(state + NUM_BAD, tl.sum(bad.to(tl.int64), 0))
    s = tl.where(bad, 0, s)
    d = tl.where(bad, 0, d)
    limit = tl.zeros_like(i)
    if LIMITS:
        limit = tl.load(_ints(tl.load(batch + TIME_MAX)) + seed_edge, mask=act, other=0)

    if (BINARY | TRIPLET) and not GIVEN:
        src_key = _key_of_kind(batch, NEGATIVE_SRC)
        dst_key = _key_of_kind(batch, NEGATIVE_DST)
        n_dst = _eligible(limit, drawn, about_dst, LIMITS & DST_SORTED)
        n_src = n_dst
        if BINARY:
            n_src = _eligible(limit, drawn, about, LIMITS & SRC_SORTED)
        todo = drawn
        attempt = 0
        while (attempt < ATTEMPTS) & (tl.max(todo.to(tl.int32), 0) > 0):
            number = j + attempt * num_neg
            if BINARY:
                at = _draw(src_key, number, n_src, todo, about, SRC_SORTED, SRC_WEIGHTED)
                s = tl.where(todo, at, s)
            at = _draw(dst_key, number, n_dst, todo, about_dst, DST_SORTED, DST_WEIGHTED)
            d = tl.where(todo, at, d)
            if EXCLUDE:
                todo = todo & _is_edge(s, d, todo, about, EDGES_WIDE)
            if not EXCLUDE:
                todo = todo & (i < 0)
            attempt += 1
        if EXCLUDE:
            failed = tl.load(descriptor + FAILED).to(tl.pointer_type(tl.int8))
            failed += group * tl.load(descriptor + PITCH)
            tl.store(failed + j, todo.to(tl.int8), mask=drawn)
            if tl.max(todo.to(tl.int32), 0) > 0:
                tl.atomic_add(state + NUM_LEFT, tl.sum(todo.to(tl.int64), 0))

    has_src = given
    if BINARY:
        has_src = act
    out = tl.load(descriptor + OUT).to(tl.pointer_type(tl.int64 if OUT_WIDE else tl.int32))
    src_at, dst_at = tl.load(batch + SRC_AT) + i, tl.load(batch + DST_AT) + i
    dst_to = dst_at  # in the result
    if TRIPLET:  # [num_pos, amount]
        amount = num_neg // tl.maximum(num_pos, 1)
        transposed = (j % tl.maximum(num_pos, 1)) * amount + j // tl.maximum(num_pos, 1)
        dst_to = tl.where(drawn, dst_at - j + transposed, dst_at)
    tl.store(out + src_at, s.to(out.dtype.element_ty), mask=has_src)
    tl.store(out + (dst_at if DISJOINT else dst_to), d.to(out.dtype.element_ty), mask=act)
    if DISJOINT:
        if LIMITS:
            out_max = _ints(tl.load(descriptor + OUT_MAX))
            tl.store(out_max + src_at, limit, mask=has_src)
            tl.store(out_max + dst_at, limit, mask=act)
        if WINDOW:
            out_min = _ints(tl.load(descriptor + OUT_MIN))
            earliest = tl.load(_ints(tl.load(batch + TIME_MIN)) + seed_edge, mask=act, other=0)
            tl.store(out_min + src_at, earliest, mask=has_src)
            tl.store(out_min + dst_at, earliest, mask=act)
        index = _ints(tl.load(descriptor + INDEX))
        tl.store(index + src_at, tl.load(batch + SRC_LOCAL) + i, mask=has_src)
        tl.store(index + dst_to, tl.load(batch + DST_LOCAL) + i, mask=act)


@triton.jit
def number_endpoints(descriptor, value, order, T: tl.constexpr):
    """Find the unique endpoints of a sorted row, and the local id of each endpoint; one program per row.

    Args:
        value, order: ``[num_rows, pitch]``: the sorted endpoints, and their positions before sorting.
    """
    row = tl.program_id(0)
    start = row * tl.load(descriptor + PITCH)
    unique = _ints(tl.load(descriptor + UNIQUE)) + start
    index = _ints(tl.load(descriptor + INDEX)) + start
    length = tl.load(_ints(tl.load(descriptor + LENGTHS)) + row)
    count = tl.zeros([], tl.int64)
    tile = tl.zeros([], tl.int64)
    while tile < length:
        x = tile + tl.arange(0, T)
        act = x < length
        v = tl.load(value + start + x, mask=act, other=0)
        before = tl.load(value + start + x - 1, mask=act & (x > 0), other=-1)
        first = (act & (v != before)).to(tl.int64)
        local = count + tl.cumsum(first, 0) - 1
        tl.store(unique + local, v.to(tl.int64), mask=first > 0)
        to = tl.load(order + start + x, mask=act, other=0)
        tl.store(index + to, local, mask=act)
        count += tl.sum(first, 0)
        tile += T
    tl.store(_ints(tl.load(descriptor + STATE)) + STATE_COUNTS + row, count)
