"""Random walks and personalised PageRank."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.weighted import find_one
from manyhop.sampling.gpu.kernels.primitives import below, draw, fold, home, is_edge, load_ids, unit
from manyhop.sampling.gpu.kernels.tables import SOURCES

# Random walks; see ``manyhop.sampling.cpu.kernels.walks`` for the counterpart.
#
# Launch it without fused multiply-add (``enable_fp_fusion=False``): results are exact to the last bit.

ATTEMPTS = tl.constexpr(64)
STEP_COLUMNS = tl.constexpr(10)  # of `steps`: the first of `tables.segments`

# Entries of `bias`.
BACK = tl.constexpr(0)  # 1 / p
AWAY = tl.constexpr(1)  # 1 / q
MOST = tl.constexpr(2)  # the largest of these and 1


@triton.jit
def _candidate(step, begin, d, r, act, WEIGHTED: tl.constexpr):
    """Return the entries of columns that draws find."""
    entry = below(r, d).to(tl.int64)
    if WEIGHTED:
        alias = tl.load(step + t.ALIAS)
        if alias != 0:
            entry = find_one(alias.to(tl.pointer_type(tl.int64)) + begin, r, d, act).to(tl.int64)
    return entry


@triton.jit
def _bias(begin, destination, before, neighbor, back, away, act):
    """Return the weights of steps to neighbours."""
    near = is_edge(begin, destination, before, neighbor, act)
    one = tl.full([], 1.0, tl.float64)
    return tl.where(neighbor == before, back, tl.where(near, one, away))


@triton.jit
def _share(step, position, before, edges_begin, edges_destination, back, away, act, WEIGHTED: tl.constexpr):
    """Return the weights of entries in a scan: weight times bias; 0 where not ``act``."""
    row = tl.load(step + t.ROW)
    neighbor = load_ids(row, tl.load(step + t.ROW_WIDE), position, act)
    share = _bias(edges_begin, edges_destination, before, neighbor, back, away, act)
    if WEIGHTED:
        weight = tl.load(step + t.WEIGHT)
        if weight != 0:
            share = tl.load(weight.to(tl.pointer_type(tl.float64)) + position, mask=act, other=0.0) * share
    return tl.where(act, share, 0.0)


@triton.jit
def _scan(step, begin, d, before, drawn, edges_begin, edges_destination, back, away, WEIGHTED: tl.constexpr):
    """Return the entries that draws find in proportion to weight and bias; sums are in stored order."""
    total, longest = tl.zeros_like(drawn), tl.max(d, 0)
    at = longest * 0
    while at < longest:
        total += _share(
            step, begin + at, before, edges_begin, edges_destination, back, away, at < d, WEIGHTED
        )  # fmt: skip
        at += 1
    target = drawn * total
    running, found, last = tl.zeros_like(drawn), tl.zeros_like(d) - 1, tl.zeros_like(d)
    at = longest * 0
    while at < longest:
        share = _share(
            step, begin + at, before, edges_begin, edges_destination, back, away, at < d, WEIGHTED
        )  # fmt: skip
        running += share
        last = tl.where(share > 0.0, at, last)
        found = tl.where((found < 0) & (at < d) & (running > target), at, found)
        at += 1
    return tl.where(found < 0, last, found)


@triton.jit
def _biased(
    step, begin, d, key, before, edges_begin, edges_destination, bias, act, WEIGHTED: tl.constexpr
):  # fmt: skip
    """Return the entries of biased steps."""
    back, away, most = tl.load(bias + BACK), tl.load(bias + AWAY), tl.load(bias + MOST)
    row, wide = tl.load(step + t.ROW), tl.load(step + t.ROW_WIDE)
    entry, todo = tl.zeros_like(d), act
    attempt = tl.zeros([], tl.int64)
    while (attempt < ATTEMPTS) & (tl.max(todo.to(tl.int32), 0) > 0):
        tried = _candidate(step, begin, d, draw(key, 1 + 2 * attempt), todo, WEIGHTED)
        neighbor = load_ids(row, wide, begin + tried, todo)
        counts = _bias(edges_begin, edges_destination, before, neighbor, back, away, todo)
        taken = todo & (unit(draw(key, 2 + 2 * attempt)) * most < counts)
        entry = tl.where(taken, tried, entry)
        todo = todo & (taken == 0)
        attempt += 1
    if tl.max(todo.to(tl.int32), 0) > 0:
        drawn = unit(draw(key, tl.full([], 1 + 2 * ATTEMPTS, tl.int64)))
        left = tl.where(todo, d, 0)
        found = _scan(step, begin, left, before, drawn, edges_begin, edges_destination, back, away, WEIGHTED)
        entry = tl.where(todo, found, entry)
    return entry


@triton.jit(do_not_specialize=["key_high", "key_low", "num_walks", "num_steps"])
def walk(
    steps, stop, bias, edges_begin, edges_destination, node, edge_id, key_high, key_low, num_walks, num_steps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, STOPS: tl.constexpr, EDGE_IDS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Walk from ``node[:, 0]``, ``T`` walks per program.

    Args:
        steps: ``[num_steps, STEP_COLUMNS] int64``: the tables of the edge type of each step.
        stop: ``[num_steps] float64``: the probability that a walk ends before each step.
        bias: ``[3] float64``.
        edges_begin, edges_destination: sorted destinations of all sources, where walks are biased.
        node: ``[num_walks, num_steps + 1] int64``, the result.
        edge_id: ``[num_walks, num_steps] int64``, the result.
        key_high, key_low: the halves of the key of the batch, as int32.
    """
    tl.static_assert(SOURCES >= 0)
    i = tl.program_id(0) * T + tl.arange(0, T).to(tl.int64)
    inside = i < num_walks
    key = (key_high.to(tl.uint32).to(tl.uint64) << 32) | key_low.to(tl.uint32).to(tl.uint64)
    key = fold(key, i)
    node += i * (num_steps + 1)
    edge_id += i * num_steps
    now = tl.load(node, mask=inside, other=-1)
    before = tl.zeros_like(now) - 1  # not `now`: triton would treat it as constant in the loop
    for s in range(num_steps):
        step = steps + s * STEP_COLUMNS
        step_key = fold(key, tl.zeros_like(i) + s)
        act = now >= 0
        colptr = tl.load(step + t.COLPTR).to(tl.pointer_type(tl.int64))
        begin = tl.load(colptr + now, mask=act, other=0)
        d = tl.load(colptr + now + 1, mask=act, other=0) - begin
        act = act & (d > 0)
        if WEIGHTED:
            positive = tl.load(step + t.POSITIVE)
            if positive != 0:
                act = act & (tl.load(positive.to(tl.pointer_type(tl.int64)) + now, mask=act, other=0) > 0)
        if STOPS:
            act = act & (unit(draw(step_key, tl.zeros_like(i))) >= tl.load(stop + s))
        if BIASED:
            if s == 0:
                entry = _candidate(step, begin, d, draw(step_key, tl.zeros_like(i) + 1), act, WEIGHTED)
            else:
                entry = _biased(
                    step, begin, d, step_key, before, edges_begin, edges_destination, bias, act, WEIGHTED
                )  # fmt: skip
        else:
            entry = _candidate(step, begin, d, draw(step_key, tl.zeros_like(i) + 1), act, WEIGHTED)
        position = begin + entry
        before = now
        now = tl.where(act, load_ids(tl.load(step + t.ROW), tl.load(step + t.ROW_WIDE), position, act), -1)
        tl.store(node + s + 1, now, mask=inside)
        if EDGE_IDS:
            perm = tl.load(step + t.PERM)
            if perm != 0:
                position = load_ids(perm, tl.load(step + t.PERM_WIDE), position, act)
            tl.store(edge_id + s, tl.where(act, position, -1), mask=inside)


@triton.jit(do_not_specialize=["key_high", "key_low", "num_walks", "num_steps"])
def negative_walk(num_nodes, node, key_high, key_low, num_walks, num_steps, T: tl.constexpr):
    """Draw nodes after ``node[:, 0]``, ``T`` walks per program.

    Args:
        num_nodes: ``[num_steps] int64``: of the type that each step leads to.
        node: ``[num_walks, num_steps + 1] int64``, the result.
        key_high, key_low: the halves of the key of the batch's negatives of kind 0, as int32.
    """
    i = tl.program_id(0) * T + tl.arange(0, T).to(tl.int64)
    inside = i < num_walks
    key = (key_high.to(tl.uint32).to(tl.uint64) << 32) | key_low.to(tl.uint32).to(tl.uint64)
    key = key + tl.zeros_like(i).to(tl.uint64)
    node += i * (num_steps + 1)
    for s in range(num_steps):
        step = tl.zeros_like(i) + s
        drawn = draw(tl.where(step > 0, fold(key, step), key), i)
        tl.store(node + s + 1, below(drawn, tl.load(num_nodes + s)).to(tl.int64), mask=inside)


# Neighbours by personalised PageRank; see ``manyhop.sampling.cpu.kernels.walks`` for the counterpart.
#
# A program, of one warp, pushes for one seed after the other: pushes follow each other, the entries of a column are
# handled side by side. Launch it without fused multiply-add (``enable_fp_fusion=False``): results are exact to the last
# bit.
#
# The hash table of a program has four words per slot, one memory sector: node (-1: empty), residual, limit, rank
# (negative before the first push). A node with a residual of at least its limit must be pushed; the limit of a waiting
# node is infinite. Slots never move, as lists hold slots.

# Entries of `numbers`.
ALPHA = tl.constexpr(0)
KEEP = tl.constexpr(1)  # 1 - alpha
THRESHOLD = tl.constexpr(2)  # alpha * eps

# Results instead of a number of neighbours.
NO_SLOTS = tl.constexpr(-1)  # the table of the program is too small
NO_ROOM = tl.constexpr(-2)  # the memory of the results is


@triton.jit
def _enter(table, mask, node, act):
    """Find the slots of nodes, or assign one. Equal nodes follow the same path simultaneously.

    Returns:
        The slots, int32, and whether they were assigned.
    """
    slot = home(node, mask)
    todo, fresh = act, act & (node < 0)
    while tl.max(todo.to(tl.int32), 0) > 0:
        at = table + 4 * slot.to(tl.int64)
        empty = todo & (tl.load(at, mask=todo, other=0) < 0)
        tl.store(at, node, mask=empty)
        tl.debug_barrier()
        hit = todo & (tl.load(at, mask=todo, other=-1) == node)
        fresh = fresh | (hit & empty)
        todo = todo & (hit == 0)
        slot = tl.where(todo, (slot + 1) & mask.to(tl.int32), slot)
        tl.debug_barrier()
    return slot, fresh


@triton.jit
def _is_worse(table, value, a, b):
    """Return whether node ``a`` follows ``b``, both by slot: of a lower rank, or of the same and a higher id."""
    at_a, at_b = 4 * a.to(tl.int64), 4 * b.to(tl.int64)
    rank_a, rank_b = tl.load(value + at_a + 3), tl.load(value + at_b + 3)
    return (rank_a < rank_b) | ((rank_a == rank_b) & (tl.load(table + at_a) > tl.load(table + at_b)))


@triton.jit
def _sift(table, value, heap, size, at, item):
    """Store an item in a heap, the worst first, below a position that is free."""
    go = (2 * at + 1 < size).to(tl.int32)
    while go != 0:
        child = 2 * at + 1
        worst = tl.load(heap + child)
        other = tl.load(heap + child + 1, mask=child + 1 < size, other=worst)
        second = _is_worse(table, value, other, worst)
        child, worst = tl.where(second, child + 1, child), tl.where(second, other, worst)
        down = _is_worse(table, value, worst, item)
        tl.store(heap + at, worst, mask=down)
        at = tl.where(down, child, at)
        go = (down & (2 * at + 1 < size)).to(tl.int32)
    tl.store(heap + at, item)
    tl.debug_barrier()


@triton.jit
def _select(table, value, heap, n, k):
    """Move the ``k`` best of ``n`` slots to the front, the best first."""
    at = k // 2 - 1
    while at >= 0:
        _sift(table, value, heap, k, at, tl.load(heap + at))
        at -= 1
    at = k
    while at < n:
        slot = tl.load(heap + at)
        if _is_worse(table, value, tl.load(heap), slot):
            _sift(table, value, heap, k, at * 0, slot)
        at += 1
    at = k - 1
    while at > 0:
        item, worst = tl.load(heap + at), tl.load(heap)
        tl.debug_barrier()
        tl.store(heap + at, worst)
        _sift(table, value, heap, at, at * 0, item)
        at -= 1


@triton.jit(do_not_specialize=["num_todo", "log_slots", "top_k", "room"])
def page_rank(
    edge_type, numbers, seed_ids, todo, memory, lists, size, begin, found_node, found_rank, cursor, num_todo, log_slots,
    top_k, room, T: tl.constexpr,
):  # fmt: skip
    """Find the neighbours of seeds.

    Args:
        edge_type: the tables of the edge type.
        numbers: ``[3] float64``.
        seed_ids: ``[num_seeds] int64``.
        todo: ``[num_todo] int64``: which of them.
        memory: ``[num_programs, num_slots, 4] int64``, the first word of each slot -1, as it is left.
        lists: ``[num_programs, 3, num_slots // 2] int32``.
        size: ``[num_seeds] int64``, a result: how many neighbours a seed has, or why there is no result.
        begin: ``[num_seeds] int64``, a result: where they begin.
        found_node: ``[room] int64``, the result.
        found_rank: ``[room] float64``, the result.
        cursor: ``[1] int64``, 0 before; afterwards the room that the results of all seeds need.
        num_todo: number of seeds.
        log_slots: the tables have ``2 ** log_slots`` slots.
        top_k: limit of neighbours per seed, by rank; -1: all, in the order of their first push.
        room: length of the results.
    """
    tl.static_assert(SOURCES >= 0)
    one = tl.full([], 1, tl.int64)
    num_slots, infinite = one << log_slots, tl.full([], float("inf"), tl.float64)
    capacity, mask, program = num_slots // 2, num_slots - 1, tl.program_id(0).to(tl.int64)
    table = memory + program * 4 * num_slots
    value = table.to(tl.pointer_type(tl.float64))
    queue = lists + program * 3 * capacity
    order, used, wrap = queue + capacity, queue + 2 * capacity, capacity - 1
    colptr = tl.load(edge_type + t.COLPTR).to(tl.pointer_type(tl.int64))
    row, wide = tl.load(edge_type + t.ROW), tl.load(edge_type + t.ROW_WIDE)
    alpha, keep, threshold = tl.load(numbers + ALPHA), tl.load(numbers + KEEP), tl.load(numbers + THRESHOLD)
    lane = tl.arange(0, T).to(tl.int64)
    number = program
    while number < num_todo:
        i = tl.load(todo + number)
        seed = tl.load(seed_ids + i)
        slot = home(seed, mask)
        at = 4 * slot.to(tl.int64)
        tl.store(table + at, seed)
        tl.store(value + at + 1, alpha)
        tl.store(value + at + 2, infinite)
        tl.store(value + at + 3, -1.0)
        tl.store(queue, slot)
        tl.store(used, slot)
        tl.debug_barrier()
        head, tail, count, found, fits = one * 0, one, one, one * 0, one
        while (head < tail) & (fits != 0):
            slot = tl.load(queue + (head & wrap))
            head += 1
            at = 4 * slot.to(tl.int64)
            u, mass, rank = tl.load(table + at), tl.load(value + at + 1), tl.load(value + at + 3)
            column = tl.load(colptr + u)
            degree = tl.load(colptr + u + 1) - column
            tl.debug_barrier()
            tl.store(value + at + 1, 0.0)
            tl.store(value + at + 2, threshold * degree.to(tl.float64))
            tl.store(order + found, slot, mask=rank < 0)
            found += (rank < 0).to(tl.int64)
            tl.store(value + at + 3, tl.where(rank < 0, 0.0, rank) + mass)
            share = keep * mass / tl.maximum(degree, 1).to(tl.float64)
            tl.debug_barrier()
            position = one * 0
            while (position < degree) & (fits != 0):
                fits = (count + T <= capacity).to(tl.int64)
                act = (position + lane < degree) & (fits != 0)
                v = load_ids(row, wide, column + position + lane, act)
                same = (v[:, None] == v[None, :]) & (lane[None, :] < lane[:, None])
                repeat = tl.sum(same.to(tl.int32), 1)  # parallel edges: how many lanes before have the same node
                slots, fresh = _enter(table, mask, v, act)
                fresh = fresh & (repeat == 0)
                places = 4 * slots.to(tl.int64)
                in_edges = tl.load(colptr + v + 1, mask=fresh, other=0) - tl.load(colptr + v, mask=fresh, other=0)
                tl.store(value + places + 1, tl.zeros([T], tl.float64), mask=fresh)
                tl.store(value + places + 2, threshold * in_edges.to(tl.float64), mask=fresh)
                tl.store(value + places + 3, tl.zeros([T], tl.float64) - 1.0, mask=fresh)
                tl.store(used + count + tl.cumsum(fresh.to(tl.int64), 0) - 1, slots, mask=fresh)
                count += tl.sum(fresh.to(tl.int64), 0)
                tl.debug_barrier()
                waits = fresh & (v < 0)
                most = tl.max(tl.where(act, repeat, 0), 0)
                turn = most * 0
                while turn <= most:
                    now = act & (repeat == turn)
                    residual = tl.load(value + places + 1, mask=now, other=0.0) + share
                    limit = tl.load(value + places + 2, mask=now, other=0.0)
                    reached = now & (residual >= limit)
                    tl.store(value + places + 1, residual, mask=now)
                    tl.store(value + places + 2, tl.zeros([T], tl.float64) + infinite, mask=reached)
                    waits = waits | reached
                    turn += 1
                    tl.debug_barrier()
                tl.store(queue + ((tail + tl.cumsum(waits.to(tl.int64), 0) - 1) & wrap), slots, mask=waits)
                tail += tl.sum(waits.to(tl.int64), 0)
                position += T
                tl.debug_barrier()
        if fits != 0:
            taken = found
            if top_k >= 0:
                taken = tl.minimum(found, top_k)
                _select(table, value, order, found, taken)
            start = tl.atomic_add(cursor, taken)
            inside = start + taken <= room
            tl.store(begin + i, start)
            tl.store(size + i, tl.where(inside, taken, NO_ROOM))
            position = one * 0
            while (position < taken) & inside:
                act = position + lane < taken
                places = 4 * tl.load(order + position + lane, mask=act, other=0).to(tl.int64)
                tl.store(found_node + start + position + lane, tl.load(table + places, mask=act), mask=act)
                tl.store(found_rank + start + position + lane, tl.load(value + places + 3, mask=act), mask=act)
                position += T
        else:
            tl.store(size + i, tl.full([], NO_SLOTS, tl.int64))
        tl.debug_barrier()
        position = one * 0
        while position < count:
            act = position + lane < count
            places = 4 * tl.load(used + position + lane, mask=act, other=0).to(tl.int64)
            tl.store(table + places, tl.zeros([T], tl.int64) - 1, mask=act)
            position += T
        tl.debug_barrier()
        number += tl.num_programs(0)
