"""Functions that the kernels of all modes call: random numbers, hash table, scans, bisection."""

import triton
import triton.language as tl

GAMMA = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def mix(z):
    """Return the finaliser of splitmix64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def draw(key, j):
    """Return the j-th random number of a key; ``key`` and ``j`` (tensor, at least 0) broadcast."""
    return mix(key + (j + 1).to(tl.uint64) * GAMMA)


@triton.jit
def fold(key, x):
    """Return the key of a key and a tensor of integers."""
    return mix(key + (x.to(tl.uint64) + 1) * GAMMA)


@triton.jit
def _product(r, n):
    """Return ``floor(r * n / 2^32)`` for ``n < 2^32``, from two products of 32-bit numbers."""
    wide = n.to(tl.uint32).to(tl.uint64)
    high = (r >> 32).to(tl.uint32).to(tl.uint64)
    low = r.to(tl.uint32).to(tl.uint64)
    return high * wide + ((low * wide) >> 32)


@triton.jit
def below(r, n):
    """Return ``floor(r * n / 2^64)`` as uint32, for integers ``n < 2^32``."""
    return (_product(r, n) >> 32).to(tl.uint32)


@triton.jit
def below_with_fraction(r, n):
    """Return ``below``, and the 32 bits that follow; both uint32."""
    s = _product(r, n)
    return (s >> 32).to(tl.uint32), s.to(tl.uint32)


@triton.jit
def unit(r):
    """Return a float64 in [0, 1) with 53 random bits."""
    return (r >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def batch_key(key, use: tl.constexpr):
    """Return the key of a use in a batch; at ``key``: seed, epoch and batch, the low 64 bits of each as int64."""
    made = mix(tl.full([], (use + 1) * GAMMA % (1 << 64), tl.uint64))
    made = fold(made, tl.load(key))
    made = fold(made, tl.load(key + 1))
    return fold(made, tl.load(key + 2))


@triton.jit
def load_ids(address, wide, index, mask):
    """Load ``int64`` values of an int32 or int64 array at ``address``."""
    if wide != 0:
        ids = tl.load(address.to(tl.pointer_type(tl.int64)) + index, mask=mask, other=0)
    else:
        ids = tl.load(address.to(tl.pointer_type(tl.int32)) + index, mask=mask, other=0).to(tl.int64)
    return ids


@triton.jit
def first_above(table, low, high, x):
    """Return the first position of ``[low, high)`` whose entry exceeds ``x``, or ``high``; all int64."""
    while tl.max((low < high).to(tl.int32), 0) > 0:
        open_ = low < high
        middle = (low + high) >> 1
        above = tl.load(table + middle, mask=open_, other=0) > x
        high = tl.where(open_ & above, middle, high)
        low = tl.where(open_ & (above == 0), middle + 1, low)
    return low


@triton.jit
def first_not_below(table, low, high, x):
    """Return the first position of ``[low, high)`` whose entry is ``x`` or more; ``high`` where none is."""
    while tl.max((low < high).to(tl.int32), 0) > 0:
        open_ = low < high
        middle = (low + high) >> 1
        below = tl.load(table + middle, mask=open_, other=0) < x
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & (below == 0), middle, high)
    return low


@triton.jit
def first_above_one(table, low, high, x):
    """Return ``first_above`` for one ``x``; all are scalars."""
    while low < high:
        middle = (low + high) >> 1
        above = tl.load(table + middle) > x
        high = tl.where(above, middle, high)
        low = tl.where(above, low, middle + 1)
    return low


@triton.jit
def is_edge(begin, destination, src, dst, act):
    """Return whether an edge exists; source ``s`` has sorted ``destination[begin[s] : begin[s + 1]]``."""
    low = tl.load(begin + src, mask=act, other=0)
    end = tl.load(begin + src + 1, mask=act, other=0)
    at = first_not_below(destination, low, end, dst)
    inside = act & (at < end)
    return inside & (tl.load(destination + at, mask=inside, other=0) == dst)


# Prefix sums over the programs of a kernel in one pass (Merrill and Garland, "Single-pass parallel prefix scan with
# decoupled look-back", 2016): a program publishes its sum, then adds up the sums that earlier programs have published.
# No program waits for a later one.
#
# The state of a program is one int64: two saturating sums of 31 bits, and two bits of status: empty, aggregate (its own
# sum), or inclusive prefix (the sum of all programs up to it).

AGGREGATE = tl.constexpr(1 << 62)
INCLUSIVE = tl.constexpr(-(1 << 62))
SUMS = tl.constexpr((1 << 62) - 1)
MOST = tl.constexpr((1 << 31) - 1)


@triton.jit
def publish(state, index, kind, a, b):
    """Publish the sums of a program."""
    a, b = tl.minimum(a, MOST), tl.minimum(b, MOST)
    tl.atomic_xchg(state + index, (a << 31) | b | kind, sem="relaxed")


@triton.jit
def look_back(state, first, index, W: tl.constexpr):
    """Return the sums of the programs ``[first, index)``; all numbers are int64."""
    a, b, end = first * 0, first * 0, index
    lane = tl.arange(0, W)
    while end > first:
        at = end - W + lane
        states = tl.load(state + at, mask=at >= first, other=AGGREGATE, volatile=True)
        nearest = tl.max(tl.where(states < 0, at, first - 1), 0)
        missing = tl.sum(((states == 0) & (at > nearest)).to(tl.int32), 0)
        if missing == 0:
            sums = tl.where(at >= nearest, states & SUMS, 0)
            a += tl.sum(sums >> 31, 0)
            b += tl.sum(sums & MOST, 0)
            end = tl.where(nearest >= first, first, end - W)
    return a, b


@triton.jit
def exclusive_sums(state, first, index, a, b, W: tl.constexpr):
    """Publish ``a`` and ``b``. Return the sums of the programs from ``first`` on, without this one."""
    if index > first:
        publish(state, index, AGGREGATE, a, b)
    before_a, before_b = look_back(state, first, index, W)
    publish(state, index, INCLUSIVE, before_a + a, before_b + b)
    return before_a, before_b


@triton.jit
def clear_states(state, pitch, B: tl.constexpr):
    """Clear the states of the row of this program for the next kernel that scans; no program may be reading them."""
    begin = tl.program_id(1).to(tl.int64) * pitch
    for at in range(tl.program_id(0) * B, pitch, tl.num_programs(0) * B):
        i = at + tl.arange(0, B)
        tl.store(state + begin + i, tl.zeros([B], tl.int64), mask=i < pitch)


# The hash table of a launch: (scope, node) -> position of the node's first occurrence.
#
# A scope is a type range or, if disjoint, a tree and a node type; a key is ``scope << node_bits | node``. The table
# uses open addressing with linear probing. An entry is one int64: a stamp, a key (``key_bits``), a position
# (``pos_bits``); entries with the stamp of another launch are empty. A position is the local id of the node or, until
# its hop ends, the index of its first edge with the top bit of the position set, which makes it larger than any local
# id.

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
    """Insert keys with their positions; the smallest position of a key remains.

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


TILE = tl.constexpr(256)


@triton.jit(do_not_specialize=["columns", "tiles"])
def fill_indptr(columns, tiles):
    """Fill the result of each row of the table; its ``tiles`` programs alternate, ``TILE`` entries each.

    Args:
        columns: address of ``[n, 4] int64``: the address of int64 ``col``, ascending; its length; a number of nodes;
            the address of the result, one entry longer: the first edge whose ``col`` is at least 0, 1, 2, ...
        tiles: programs of a row.
    """
    about = columns.to(tl.pointer_type(tl.int64)) + tl.program_id(0) // tiles * 4
    col = tl.load(about).to(tl.pointer_type(tl.int64))
    num_edges, num_dst = tl.load(about + 1), tl.load(about + 2)
    result = tl.load(about + 3).to(tl.pointer_type(tl.int64))
    for at in range(tl.program_id(0) % tiles * TILE, num_dst + 1, tiles * TILE):
        node = at + tl.arange(0, TILE).to(tl.int64)
        none = tl.zeros([TILE], tl.int64)
        tl.store(result + node, first_not_below(col, none, none + num_edges, node), mask=node <= num_dst)
