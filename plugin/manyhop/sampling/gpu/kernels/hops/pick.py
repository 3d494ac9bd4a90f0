"""Pick neighbours: stored positions of edges, without the local ids of the neighbours."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops import picks, weighted
from manyhop.sampling.gpu.kernels.hops.count import columns, num_positive
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.primitives.hash import find
from manyhop.sampling.gpu.kernels.primitives.random import fold

MOST = tl.constexpr(32)  # largest fanout of this kernel; `wide.py` has the others, and -1


@triton.jit
def node_keys(
    segment, keys, at, v, local, act, tree, first_tree, nodes, num_seeds, table, mask, stamp, node_bits, pos_bits,
    key_bits, DISJOINT: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """Return the keys of frontier nodes; every further copy of a seed has its own."""
    key = tl.load(keys + at).to(tl.uint64, bitcast=True)
    if DISJOINT:
        key = fold(fold(key, tree - first_tree), v)
    else:
        key = fold(key, v)
        if COPIES:
            seed = act & (local < num_seeds)
            name = (tl.load(segment + t.DST) << node_bits) | v
            copy = seed & (find(table, mask, stamp, name, seed, pos_bits, key_bits) != local)
            if tl.max(copy.to(tl.int32), 0) > 0:
                base = tl.load(segment + t.DST_BASE)
                earlier = tl.zeros_like(local)
                last = tl.max(tl.where(copy, local, 0), 0)
                for at_seed in range(0, last):
                    same = tl.load(nodes + base + at_seed) == v
                    earlier += (same & (at_seed < local)).to(tl.int64)
                key = tl.where(copy & (earlier > 0), fold(key, earlier), key)
    return key


@triton.jit
def choose(
    segment, key, start, d, p, v, act, k,
    K: tl.constexpr, KP: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """Pick entries from the ranges of nodes: ``[KP, B] int64``; ``p`` of the ``d`` entries may be picked."""
    if LAST:
        choice = picks.last(d, k, KP)
    elif WEIGHTED:
        alias, weight = tl.load(segment + t.ALIAS), tl.load(segment + t.WEIGHT)
        if alias != 0:
            table = alias.to(tl.pointer_type(tl.int64))
            if TIMED:
                begin, length = columns(segment, v, act)
                column = weight.to(tl.pointer_type(tl.float64)) + start
                choice = weighted.in_range(
                    table + begin, length, start - begin, column, key, d, p, k, REPLACE, True, K, KP
                )
            elif REPLACE:
                table += start
                choice = weighted.with_replacement(table, key, d, p, K, KP)
            else:
                table += start
                column = weight.to(tl.pointer_type(tl.float64)) + start
                choice = weighted.without_replacement(table, column, key, d, p, k, K, KP)
        else:
            choice = _uniform(key, d, k, K, KP, REPLACE)
    else:
        choice = _uniform(key, d, k, K, KP, REPLACE)
    return choice


@triton.jit
def _uniform(key, d, k, K: tl.constexpr, KP: tl.constexpr, REPLACE: tl.constexpr):
    return picks.with_replacement(key, d, KP) if REPLACE else picks.without_replacement(key, d, k, K, KP)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def pick(
    tables, seeds, nodes, frontier, edges, hash_table, mask, hop, num_type_ranges, num_segments,
    K: tl.constexpr, KP: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr,
    LAST: tl.constexpr, DISJOINT: tl.constexpr, EXPAND_ALL: tl.constexpr, COPIES: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Pick for the frontier nodes of a segment, ``B`` at a time per program; a thread has all slots of a node."""
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    k = tl.load(tables.fanouts + hop * num_segments + r)
    if (tl.load(edges.counts + (hop + 1) * num_segments + r) > done) & (k > 0) & (k <= MOST):
        dst, base = tl.load(segment + t.DST), tl.load(segment + t.DST_BASE)
        begin = tl.zeros([], tl.int64)
        if not EXPAND_ALL:
            begin = tl.load(nodes.counts + (hop - 1) * num_type_ranges + dst, mask=hop > 0, other=0)
        n = tl.load(nodes.counts + hop * num_type_ranges + dst) - begin
        node_bits, pos_bits, key_bits = tl.load(tables.bits), tl.load(tables.bits + 1), tl.load(tables.bits + 2)
        stamp = tl.load(seeds.stamps)
        edge_base = tl.load(segment + t.EDGE_BASE) + done
        entry_base = tl.load(segment + t.FRONTIER_BASE)
        j = tl.arange(0, KP).to(tl.int64)[:, None]
        for at in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
            i = at + tl.arange(0, B).to(tl.int64)
            act = i < n
            local = begin + i
            v = tl.load(nodes.ids + base + local, mask=act, other=0)
            start = tl.load(frontier.start + entry_base + i, mask=act, other=0)
            d = tl.load(frontier.degree + entry_base + i, mask=act, other=0)
            off = tl.load(frontier.offset + entry_base + i, mask=act, other=0)
            of_tree = tl.zeros_like(v)
            if DISJOINT:
                of_tree = tl.load(nodes.tree + base + local, mask=act, other=0).to(tl.int64)
            key = node_keys(
                segment, seeds.keys, hop * num_segments + r, v, local, act, of_tree,
                tl.load(seeds.first_tree + tl.load(segment + t.BATCH)), nodes.ids, tl.load(nodes.counts + dst),
                hash_table, mask, stamp, node_bits, pos_bits, key_bits, DISJOINT, COPIES,
            )  # fmt: skip

            p = num_positive(segment, v, act, start, d, WEIGHTED, TIMED)
            size = picks.count(p, k, REPLACE)
            choice = choose(segment, key, start, d, p, v, act, k, K, KP, REPLACE, WEIGHTED, TIMED, LAST)
            taken = act[None, :] & (j < size[None, :]) & (j < K)
            edge = start[None, :] + choice
            to = edge_base + off[None, :] + j
            tl.store(edges.position + to, edge, mask=taken)
            tl.store(edges.column + to, (local[None, :] + j * 0).to(tl.int32), mask=taken)
