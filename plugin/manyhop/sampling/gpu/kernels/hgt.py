"""Sampling of the Heterogeneous Graph Transformer: budgets of candidates, and the draw of nodes.

The nodes and candidates of a (batch, node type), a *scope*, have their own memory. A hop lists, scope by scope, the
nodes of the sample, the candidates of earlier hops, and the share that each neighbour adds to a budget. Sorted by node,
the pieces of a candidate are contiguous, in the order of the list.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.hops.picks import without_replacement
from manyhop.sampling.gpu.kernels.primitives import batch_key, draw, first_above, first_above_one, fold, load_ids, unit

NOTHING = tl.constexpr(0x7FFFFFFFFFFFFFFF)  # key of an empty place in the list
HGT_BUDGET = tl.constexpr(4)  # uses of keys
HGT_PICK = tl.constexpr(5)
MAX_REPEATS = tl.constexpr(16)
AHEAD = tl.constexpr(8)  # pieces loaded ahead of their addition

# Columns of `scopes`.
NODES_AT = tl.constexpr(0)
OLD_AT = tl.constexpr(1)  # offset of the candidates of the previous hop
NEW_AT = tl.constexpr(2)
LIST_AT = tl.constexpr(3)
LIST_OLD = tl.constexpr(4)  # offset of the candidates in the list
LIST_ADDED = tl.constexpr(5)  # offset of the shares of neighbours in the list
LIST_END = tl.constexpr(6)
NUM_SAMPLES = tl.constexpr(7)
SCOPE_COLUMNS = tl.constexpr(8)

# Columns of `jobs`: the frontier of an edge type and batch.
SRC_SCOPE = tl.constexpr(0)
DST_SCOPE = tl.constexpr(1)
ADD_AT = tl.constexpr(2)  # offset of its neighbours in the list
FRONTIER_SIZE = tl.constexpr(3)  # largest number of frontier nodes
COLPTR = tl.constexpr(4)
ROW = tl.constexpr(5)
ROW_WIDE = tl.constexpr(6)
EDGE_TYPE = tl.constexpr(7)
NODES_OF_DST = tl.constexpr(8)  # offset of the nodes of DST_SCOPE
JOB_COLUMNS = tl.constexpr(9)

# Rows of `counts`, each ``[num_scopes]``.
BEGIN = tl.constexpr(0)  # nodes before the last hop
COUNT = tl.constexpr(1)  # nodes
CANDIDATES = tl.constexpr(2)
AFTER_HOP = tl.constexpr(3)  # nodes, a row for each hop


@triton.jit(do_not_specialize=["num_scopes", "max_nodes"])
def list_what_is_there(
    scopes, counts, num_scopes, max_nodes, node, candidate, budget, key, value, T: tl.constexpr,
):  # fmt: skip
    """List the nodes and candidates of every scope; one row of programs per scope."""
    s = tl.program_id(1)
    scope = scopes + s * SCOPE_COLUMNS
    begin, old = tl.load(scope + LIST_AT), tl.load(scope + LIST_OLD)
    i = begin + tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    in_nodes = (i < old) & (i - begin < tl.load(counts + COUNT * num_scopes + s))
    listed = (i >= old) & (i < tl.load(scope + LIST_ADDED))
    in_old = listed & (i - old < tl.load(counts + CANDIDATES * num_scopes + s))
    at = tl.load(scope + OLD_AT) + i - old
    id_ = tl.load(node + tl.load(scope + NODES_AT) + i - begin, mask=in_nodes, other=0)
    id_ += tl.load(candidate + at, mask=in_old, other=0)
    here = s.to(tl.int64) * max_nodes + id_
    tl.store(key + i, tl.where(in_nodes | in_old, here, NOTHING), mask=(i < old) | listed)
    tl.store(value + i, tl.load(budget + at, mask=in_old, other=0.0), mask=in_old)


@triton.jit(do_not_specialize=["num_scopes", "num_types", "max_nodes", "hop"])
def list_neighbors(
    jobs, counts, keys, num_scopes, num_types, max_nodes, hop, node, copy, key, value,
    LIMIT: tl.constexpr, SLOTS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """List up to ``LIMIT`` neighbours of each frontier node, with the share that each adds to a budget.

    Args:
        keys: ``[num_batches, 3]``: seed, epoch, batch.
        copy: which copy of a seed each node is.
    """
    job = jobs + tl.program_id(1) * JOB_COLUMNS
    f = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    dst = tl.load(job + DST_SCOPE)
    local = tl.load(counts + BEGIN * num_scopes + dst) + f
    act = local < tl.load(counts + COUNT * num_scopes + dst)
    v = tl.load(node + tl.load(job + NODES_OF_DST) + local, mask=act, other=0)
    colptr = tl.load(job + COLPTR).to(tl.pointer_type(tl.int64))
    start = tl.load(colptr + v, mask=act, other=0)
    d = tl.load(colptr + v + 1, mask=act, other=0) - start
    slot = tl.arange(0, SLOTS)[:, None].to(tl.int64)
    pick = slot + tl.zeros_like(d)[None, :]
    if tl.max(d, 0) > LIMIT:
        c = tl.load(copy + tl.load(job + NODES_OF_DST) + local, mask=act, other=0)
        job_key = fold(batch_key(keys + dst // num_types * 3, HGT_BUDGET), tl.zeros([], tl.int64) + hop)
        node_key = fold(fold(job_key, tl.load(job + EDGE_TYPE)), v)
        node_key = tl.where(c > 0, fold(node_key, c), node_key)
        pick = without_replacement(node_key, d, LIMIT, LIMIT, SLOTS)
    taken = tl.minimum(d, LIMIT)
    there = slot < taken[None, :]
    u = load_ids(tl.load(job + ROW), tl.load(job + ROW_WIDE), start[None, :] + pick, there)
    u += tl.load(job + SRC_SCOPE) * max_nodes
    to = tl.load(job + ADD_AT) + f[None, :] * LIMIT + slot
    room = (f < tl.load(job + FRONTIER_SIZE))[None, :] & (slot < LIMIT)
    tl.store(key + to, tl.where(there, u, NOTHING), mask=room)
    added = 1.0 / tl.maximum(taken, 1).to(tl.float64)
    tl.store(value + to, added[None, :] + tl.zeros(there.shape, tl.float64), mask=room & there)


@triton.jit(do_not_specialize=["num_items", "max_nodes"])
def mark_candidates(scopes, key, order, num_items, max_nodes, first, T: tl.constexpr):
    """Mark the first place of each candidate in the list.

    Args:
        key: sorted keys.
        order: place in the list of each sorted key.
        first: output by place in the list: sorted offset of the candidate's pieces, plus 1; 0 at other places.
    """
    x = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    act = x < num_items
    k = tl.load(key + x, mask=act, other=NOTHING)
    before = tl.load(key + x - 1, mask=act & (x > 0), other=-1)
    place = tl.load(order + x, mask=act, other=0)
    head = act & (k != NOTHING) & (k != before)
    scope = tl.where(head, k // max_nodes, 0)
    in_batch = place < tl.load(scopes + scope * SCOPE_COLUMNS + LIST_OLD, mask=head, other=0)
    tl.store(first + place, tl.where(head & (in_batch == 0), x + 1, 0), mask=act)


@triton.jit(do_not_specialize=["num_items", "max_nodes"])
def add_up(scopes, key, piece, first, number, num_items, max_nodes, candidate, budget, square, T: tl.constexpr):
    """Compute the budgets: add pieces one by one, in the order of the list.

    Args:
        piece: the values in sorted order.
        number: inclusive prefix count of candidates, by place in the list.
        square: output, squares of the budgets.
    """
    i = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    inside = i < num_items
    x = tl.load(first + i, mask=inside, other=0) - 1
    act = x >= 0
    k = tl.load(key + x, mask=act, other=NOTHING)
    scope = scopes + tl.where(act, k // max_nodes, 0) * SCOPE_COLUMNS
    list_at = tl.load(scope + LIST_AT, mask=act, other=0)
    earlier = tl.load(number + list_at - 1, mask=act & (list_at > 0), other=0)
    to = tl.load(scope + NEW_AT, mask=act, other=0) + tl.load(number + i, mask=act, other=0) - earlier - 1
    total = tl.zeros([T], tl.float64)
    more = act
    while tl.max(more.to(tl.int32), 0) > 0:
        for r in tl.static_range(AHEAD):
            more = more & (x + r < num_items)
            more = more & (tl.load(key + x + r, mask=more, other=NOTHING) == k)
            total = tl.where(more, total + tl.load(piece + x + r, mask=more, other=0.0), total)
        x += AHEAD
    tl.store(candidate + to, k % max_nodes, mask=act)
    tl.store(budget + to, total, mask=act)
    tl.store(square + to, total * total, mask=act)


@triton.jit
def _weight(running, i, act):
    """Return the weights of entries in the draw: differences of the prefix sums."""
    before = tl.load(running + i - 1, mask=act & (i > 0), other=0.0)
    return tl.load(running + i, mask=act, other=0.0) - before


@triton.jit
def _add_in_order(total, w, lane):
    """Add nonnegative numbers to ``total`` in order, with float64 rounding after each; as many of a tile as possible.

    While a sum stays between two powers of two, it is a multiple of its unit in the last place, and adding a number
    adds that number rounded to this unit, independent of the sum: integers can be added in any order instead. The tile
    ends at a number halfway between two multiples, whose rounding depends on the sum, and where the sum reaches the
    next power of two: the caller adds that number alone.

    Returns:
        The sums ``[T]``, and how many of them are valid.
    """
    exponent = total.to(tl.int64, bitcast=True) >> 52
    place = ((exponent - 52) << 52).to(tl.float64, bitcast=True)  # unit in the last place of the total
    scale = ((2098 - exponent) << 52).to(tl.float64, bitcast=True)  # its reciprocal
    x = tl.where(total > 0, w * scale, 0.0)
    large = x >= 4503599627370496.0  # 2^52
    floor = tl.where(large, 0.0, x).to(tl.int64)
    part = tl.where(large, 0.0, x) - floor.to(tl.float64)
    units = tl.where(total > 0, total * scale, 0.0).to(tl.int64) + tl.cumsum(floor + (part > 0.5).to(tl.int64), 0)
    wrong = tl.where(total > 0, large | (part == 0.5) | (units >= 9007199254740992), w > 0)
    return tl.where(total > 0, units.to(tl.float64) * place, 0.0), tl.min(tl.where(wrong, lane, lane.shape[0]), 0)


@triton.jit
def _sum_in_order(source, picked, n, to, FREE: tl.constexpr, T: tl.constexpr):
    """Compute prefix sums from left to right, one addition at a time.

    Args:
        source: with ``FREE``, running sums whose differences are added where nothing is picked; else what is added.

    Returns:
        The last sum, and the last place at which something was added.
    """
    lane = tl.arange(0, T)
    total = tl.zeros([], tl.float64)
    latest = tl.zeros([], tl.int64)
    i = tl.zeros([], tl.int64)
    while i < n:
        x = i + lane
        if FREE:
            w = _weight(source, x, x < n)
            w = tl.where(tl.load(picked + x, mask=x < n, other=1, volatile=True) == 0, w, 0.0)
        else:
            w = tl.load(source + x, mask=x < n, other=0.0)
        sums, right = _add_in_order(total, w, lane)
        tl.store(to + x, sums, mask=(lane < right) & (x < n))
        total = tl.where(right > 0, tl.sum(tl.where(lane == right - 1, sums, 0.0), 0), total)
        if right < T:
            total += tl.sum(tl.where(lane == right, w, 0.0), 0)
            tl.store(to + i + right, total)
        added = tl.minimum(right + 1, T)
        latest = tl.maximum(latest, tl.max(tl.where((w > 0) & (lane < added), x, 0), 0))
        i += added
    return total, latest


@triton.jit(do_not_specialize=["num_scopes"])
def sum_squares(scopes, counts, num_scopes, number, square, running, T: tl.constexpr):
    """Count the candidates of every scope and sum their squared budgets, in order; one program per scope."""
    s = tl.program_id(0)
    scope = scopes + s * SCOPE_COLUMNS
    begin, end = tl.load(scope + LIST_AT), tl.load(scope + LIST_END)
    n = tl.load(number + end - 1, mask=end > begin, other=0).to(tl.int64)
    n -= tl.load(number + begin - 1, mask=(end > begin) & (begin > 0), other=0).to(tl.int64)
    tl.store(counts + CANDIDATES * num_scopes + s, n)
    at = tl.load(scope + NEW_AT)
    _sum_in_order(square + at, square, n, running + at, False, T)


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["num_scopes", "num_types", "hop"])
def draw_nodes(
    scopes, counts, keys, num_scopes, num_types, hop, node, candidate, running, left, picked,
    T: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Draw the next nodes of every scope, without replacement, in proportion to the squares; one program per scope.

    Args:
        left: scratch memory, for sums of the remaining entries.
        T: draws at a time; ``LONG``: candidates.
    """
    s = tl.program_id(0)
    scope = scopes + s * SCOPE_COLUMNS
    n = tl.load(counts + CANDIDATES * num_scopes + s)
    have = tl.load(counts + COUNT * num_scopes + s)
    new_at = tl.load(scope + NEW_AT)
    candidate += new_at
    running += new_at
    left += new_at
    picked += new_at
    to = node + tl.load(scope + NODES_AT) + have
    lane, many = tl.arange(0, T), tl.arange(0, LONG)

    num_positive = tl.zeros([], tl.int64)
    last_positive = tl.zeros([], tl.int64)
    tile = tl.zeros([], tl.int64)
    while tile < n:
        i = tile + many
        positive = _weight(running, i, i < n) > 0
        tl.store(picked + i, tl.zeros([LONG], tl.int8), mask=i < n)
        num_positive += tl.sum(positive.to(tl.int64), 0)
        last_positive = tl.maximum(last_positive, tl.max(tl.where(positive, i, 0), 0))
        tile += LONG
    wanted = tl.minimum(tl.load(scope + NUM_SAMPLES), num_positive)
    tl.debug_barrier()

    done = tl.zeros([], tl.int64)
    if wanted == num_positive:  # all of them, in order
        tile = tl.zeros([], tl.int64)
        while tile < n:
            i = tile + many
            positive = (_weight(running, i, i < n) > 0).to(tl.int64)
            slot = done + tl.cumsum(positive, 0) - 1
            tl.store(to + slot, tl.load(candidate + i, mask=i < n, other=0), mask=positive > 0)
            done += tl.sum(positive, 0)
            tile += LONG
    key = fold(batch_key(keys + s // num_types * 3, HGT_PICK), tl.zeros([], tl.int64) + hop)
    key = fold(key, tl.zeros([], tl.int64) + s % num_types)
    total = tl.load(running + n - 1, mask=n > 0, other=0.0)
    t = tl.zeros([], tl.int64)
    repeats = tl.zeros([], tl.int32)  # draws of the current slot that hit picked entries
    while done < wanted:
        target = unit(draw(key, t + lane)) * total
        entry = first_above(running, tl.zeros([T], tl.int64), tl.zeros([T], tl.int64) + n, target)
        entry = tl.minimum(entry, last_positive)
        same = (entry[:, None] == entry[None, :]) & (lane[None, :] < lane[:, None])
        again = tl.max(same.to(tl.int32), 1) > 0
        new = (again == 0) & (tl.load(picked + entry, volatile=True) == 0)
        slot = done + tl.cumsum(new.to(tl.int64), 0) - new.to(tl.int64)
        previous = tl.associative_scan(tl.where(new, lane, -1), 0, _later)
        since = tl.where(previous < 0, lane + 1 + repeats, lane - previous)
        stuck = (new == 0) & (since >= MAX_REPEATS) & (slot < wanted)
        at = tl.min(tl.where(stuck, lane, T), 0)
        accept = new & (lane < at) & (slot < wanted)
        tl.store(to + slot, tl.load(candidate + entry, mask=accept, other=0), mask=accept)
        tl.debug_barrier()  # all lanes have read which entries are picked
        tl.store(picked + entry, tl.full([T], 1, tl.int8), mask=accept)
        done += tl.sum(accept.to(tl.int64), 0)
        tl.debug_barrier()
        if at < T:  # too many repeats: draw exactly from the remaining entries
            t += at + 1
            sum_left, last_left = _sum_in_order(running, picked, n, left, True, LONG)
            tl.debug_barrier()
            found = first_above_one(left, t * 0, n, unit(draw(key, t)) * sum_left)
            found = tl.minimum(found, last_left)
            tl.store(to + done, tl.load(candidate + found))
            tl.store(picked + found, tl.full([], 1, tl.int8))
            done += 1
            t += 1
            repeats = tl.zeros([], tl.int32)
            tl.debug_barrier()
        else:
            last_new = tl.max(previous, 0)
            repeats = tl.where(last_new < 0, repeats + T, T - 1 - last_new).to(tl.int32)
            t += T
    tl.store(counts + BEGIN * num_scopes + s, have)
    tl.store(counts + COUNT * num_scopes + s, have + wanted)
    tl.store(counts + (AFTER_HOP + hop) * num_scopes + s, have + wanted)
