"""Random walks; see ``manyhop.sampling.cpu.kernels.walks`` for the counterpart.

Launch it without fused multiply-add (``enable_fp_fusion=False``): results are exact to the last bit.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.weighted import find_one
from manyhop.sampling.gpu.kernels.launch import SOURCES
from manyhop.sampling.gpu.kernels.primitives import below, draw, fold, is_edge, load_ids, unit

ATTEMPTS = tl.constexpr(64)
STEP_COLUMNS = tl.constexpr(10)  # of `steps`: the first of `tables.segments`

# Entries of `bias`.
BACK = tl.constexpr(0)  # 1 / p
AWAY = tl.constexpr(1)  # 1 / q
MOST = tl.constexpr(2)  # the largest of these and 1


@triton.jit
def _candidate(step, begin, d, r, act, WEIGHTED: tl.constexpr):
    """Return the entries of columns that draws find."""
    if WEIGHTED:
        alias = tl.load(step + t.ALIAS)
        if alias != 0:
            entry = find_one(alias.to(tl.pointer_type(tl.int64)) + begin, r, d, act).to(tl.int64)
        else:
            entry = below(r, d).to(tl.int64)
    else:
        entry = below(r, d).to(tl.int64)
    return entry


@triton.jit
def _bias(begin, destination, before, neighbor, back, away, act):
    """Return what steps to neighbours count."""
    near = is_edge(begin, destination, before, neighbor, act)
    one = tl.full([], 1.0, tl.float64)
    return tl.where(neighbor == before, back, tl.where(near, one, away))


@triton.jit
def _share(step, position, before, edges_begin, edges_destination, back, away, act, WEIGHTED: tl.constexpr):
    """Return what entries count in a scan: their weights times their bias; 0 where not ``act``."""
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
    """Return the entries that biased steps take."""
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
    before = tl.zeros_like(now) - 1  # not `now`: triton would then take it for constant in the loop
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
