"""The hash table of a launch: (scope, node) -> position of the node's first occurrence.

A scope is a type range or, if disjoint, a tree and a node type; a key is ``scope << node_bits | node``. The table uses
open addressing with linear probing. An entry is one int64: a stamp, a key (``key_bits``), a position (``pos_bits``);
entries with the stamp of another launch are empty. A position is the local id of the node or, until its hop ends, the
index of its first edge with the top bit of the position set, which makes it larger than any local id.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.primitives.random import mix

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
MAX_PROBES = tl.constexpr(512)
MAYBE = tl.constexpr(-(1 << 31))
KNOWN = tl.constexpr(1 << 30)
SLOT = tl.constexpr((1 << 30) - 1)


@triton.jit
def home(key, mask):
    """Return the first slot of the probe sequence of a key, as int32."""
    return (mix(key.to(tl.uint64)) & mask.to(tl.uint64)).to(tl.int32)


@triton.jit
def _swap(table, slot, mask, expected, entry, act):
    """Compare and swap where ``act``; return the old entries."""
    if INTERPRETED:
        at = tl.where(act, slot, (mask + 1).to(tl.int32))  # inactive lanes use an entry after the table
        found = tl.atomic_cas(table + at, expected, entry)
    else:
        found = tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $4, 0; mov.b64 $0, $2; "
            "@p atom.global.relaxed.gpu.cas.b64 $0, [$1], $2, $3; }",
            "=l,l,l,l,r",
            [(table + slot).to(tl.int64), expected, entry, act.to(tl.int32)],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    return found


@triton.jit
def insert(table, mask, stamp, key, position, act, pos_bits, key_bits, failed):
    """Insert keys with their positions; the smallest position of a key is kept.

    Returns:
        For each key, an int32: its slot, with ``MAYBE`` if its position may be the smallest; or, with ``KNOWN``, its
        local id.
    """
    full = (stamp << key_bits) | key
    entry = (full << pos_bits) | position
    slot = home(key, mask)
    todo = act
    result = slot
    unassigned = tl.full([], 1, tl.int64) << (pos_bits - 1)
    probes = 0
    while (probes < MAX_PROBES) & (tl.max(tl.ravel(todo.to(tl.int32)), 0) > 0):
        old = tl.load(table + slot, mask=todo, other=0, volatile=True)
        free = todo & ((old >> (pos_bits + key_bits)) != stamp)
        found = _swap(table, slot, mask, old, entry, free)
        won = free & (found == old)
        old = tl.where(free, found, old)
        hit = todo & (won == 0) & ((old >> pos_bits) == full)
        earlier = hit & (old > entry)
        tl.atomic_min(table + slot, entry, mask=earlier, sem="relaxed")
        result = tl.where(todo, tl.where(won | earlier, slot | MAYBE, slot), result)
        known = hit & ((old & unassigned) == 0)
        result = tl.where(known, (old & (unassigned - 1)).to(tl.int32) | KNOWN, result)
        todo = todo & (won == 0) & (hit == 0)
        slot = tl.where(todo, (slot + 1) & mask.to(tl.int32), slot)
        probes += 1
    if tl.max(tl.ravel(todo.to(tl.int32)), 0) > 0:
        tl.store(failed, 1)
    return result


@triton.jit
def find(table, mask, stamp, key, act, pos_bits, key_bits):
    """Return the position of each key, -1 if it is absent."""
    full = (stamp << key_bits) | key
    slot = home(key, mask)
    todo = act
    position = tl.zeros_like(key) - 1
    probes = 0
    while (probes < MAX_PROBES) & (tl.max(tl.ravel(todo.to(tl.int32)), 0) > 0):  # the table may be full
        old = tl.load(table + slot, mask=todo, other=0)
        hit = todo & ((old >> pos_bits) == full)
        position = tl.where(hit, old & ((1 << pos_bits) - 1), position)
        todo = todo & (hit == 0) & ((old >> (pos_bits + key_bits)) == stamp)
        slot = tl.where(todo, (slot + 1) & mask.to(tl.int32), slot)
        probes += 1
    return position
