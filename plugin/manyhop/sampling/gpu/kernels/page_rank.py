"""Neighbours by personalised PageRank; see ``manyhop.sampling.cpu.kernels.page_rank`` for the counterpart.

A program, of one warp, pushes for one seed after the other: pushes follow each other, the entries of a column are
handled side by side. Launch it without fused multiply-add (``enable_fp_fusion=False``): results are exact to the last
bit.

The hash table of a program has four words per slot: node (-1: empty); residual; limit, from which on the node is to be
pushed, infinite while it waits for that; rank, negative before its first push. Slots stay where they are: lists hold
slots. A slot is one sector of the memory of the GPU.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.launch import SOURCES
from manyhop.sampling.gpu.kernels.primitives import home, load_ids

# Entries of `numbers`.
ALPHA = tl.constexpr(0)
KEEP = tl.constexpr(1)  # 1 - alpha
THRESHOLD = tl.constexpr(2)  # alpha * eps

# Results in place of a number of neighbours.
NO_SLOTS = tl.constexpr(-1)  # the table of the program is too small
NO_ROOM = tl.constexpr(-2)  # the memory of the results is


@triton.jit
def _enter(table, mask, node, act):
    """Find the slots of nodes, or give them one. Equal nodes go the same way at the same time.

    Returns:
        The slots, int32, and whether they were given.
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
    """Return whether node ``a`` comes after ``b``, both by slot: of a lower rank, or of the same and a higher id."""
    at_a, at_b = 4 * a.to(tl.int64), 4 * b.to(tl.int64)
    rank_a, rank_b = tl.load(value + at_a + 3), tl.load(value + at_b + 3)
    return (rank_a < rank_b) | ((rank_a == rank_b) & (tl.load(table + at_a) > tl.load(table + at_b)))


@triton.jit
def _sift(table, value, heap, size, at, item):
    """Put an item into a heap, the worst first, below a position that is free."""
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
    """Put the ``k`` best of ``n`` slots in front, the best first."""
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
        cursor: ``[1] int64``, 0 before; afterwards the room that the results of all seeds take.
        num_todo: number of seeds.
        log_slots: the tables have ``2 ** log_slots`` slots.
        top_k: at most so many neighbours per seed, by rank; -1: all, in the order of their first push.
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
