"""Induced subgraphs of batches: insert the nodes into a hash table, then look up every entry of their columns.

The nodes of all batches are contiguous, grouped by (batch, node type), their *scope*; their columns are contiguous,
grouped by (edge type, batch), their *segment*. An *entry* is an element of a column; entries are numbered across all
columns and processed in tiles.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.hops.picks import without_replacement
from manyhop.sampling.gpu.kernels.primitives import batch_key, first_above, first_above_one, fold, mix

EMPTY = tl.constexpr(-1)
SPARE = tl.constexpr(1024)  # slots after the table, for lanes without a slot to claim

# Columns of `segments`.
NODES_AT = tl.constexpr(0)  # offset of the nodes of its destination type
SRC_SCOPE = tl.constexpr(1)
COLPTR = tl.constexpr(2)
ROW = tl.constexpr(3)
ROW_WIDE = tl.constexpr(4)
PERM = tl.constexpr(5)  # 0: positions are the user's ids
PERM_WIDE = tl.constexpr(6)
SEGMENT_COLUMNS = tl.constexpr(7)

# Columns of `outputs`.
OUT_FIRST = tl.constexpr(0)  # edges of earlier segments
OUT_ROW = tl.constexpr(1)
OUT_COL = tl.constexpr(2)
OUT_ID = tl.constexpr(3)
OUTPUT_COLUMNS = tl.constexpr(4)

# Entries of `state`.
NUM_ENTRIES = tl.constexpr(0)
NUM_EDGES = tl.constexpr(1)
STATE_EDGES = tl.constexpr(2)  # edges of each segment


@triton.jit
def load_ids(address, wide, at, mask):
    """Load from int32 or int64 tables at one address per element; return int64."""
    narrow = tl.load(address.to(tl.pointer_type(tl.int32)) + at, mask=mask & (wide == 0), other=0)
    return narrow.to(tl.int64) + tl.load(address.to(tl.pointer_type(tl.int64)) + at, mask=mask & (wide != 0), other=0)


@triton.jit(do_not_specialize=["num_nodes", "num_scopes", "num_trees", "max_nodes", "mask"])
def enter_nodes(
    scopes, node, tree, num_nodes, num_scopes, num_trees, max_nodes, keys, local, mask,
    DISJOINT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Insert the nodes into the hash table: ``keys`` has the key of each slot, ``local`` its first local id.

    Args:
        scopes: ``[num_scopes + 1]``: offsets of the scopes.
    """
    i = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    act = i < num_nodes
    high = tl.zeros_like(i) + num_scopes
    scope = first_above(scopes + 1, tl.zeros_like(i), tl.where(act, high, 0), i)
    key = scope * num_trees
    if DISJOINT:
        key += tl.load(tree + i, mask=act, other=0)
    key = key * max_nodes + tl.load(node + i, mask=act, other=0)
    id_ = (i - tl.load(scopes + scope, mask=act, other=0)).to(tl.int32)
    slot = (mix(key.to(tl.uint64)) & mask).to(tl.int64)
    spare = (tl.zeros_like(i) + mask + 1) + i % SPARE
    nobody = tl.full([T], EMPTY, tl.int64)
    todo = act
    while tl.max(todo.to(tl.int32), 0) > 0:
        seen = tl.load(keys + slot, mask=todo, other=0, volatile=True)
        free = todo & (seen == EMPTY)
        if tl.max(free.to(tl.int32), 0) > 0:
            old = tl.atomic_cas(keys + tl.where(free, slot, spare), nobody, key)
            seen = tl.where(free, tl.where(old == EMPTY, key, old), seen)
        hit = todo & (seen == key)
        tl.atomic_min(local + slot, id_, mask=hit)
        todo = todo & (hit == 0)
        slot = tl.where(todo, (slot + 1) & mask, slot)


@triton.jit(do_not_specialize=["num_columns", "num_segments", "num_trees", "max_nodes"])
def measure_columns(
    segments, columns, node, tree, num_columns, num_segments, num_trees, max_nodes, degree, begin, base, dst,
    DISJOINT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Measure every column.

    Args:
        columns: ``[num_segments + 1]``: offsets of the columns of the segments.
        degree: output, number of entries.
        begin: output, stored position of the first entry.
        base: output, key of node 0 of the source type (of the same tree) in the hash table.
        dst: output, destination node: segment in the upper, local id in the lower 32 bits.
    """
    x = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    act = x < num_columns
    high = tl.zeros_like(x) + num_segments
    segment = first_above(columns + 1, tl.zeros_like(x), tl.where(act, high, 0), x)
    row = segments + segment * SEGMENT_COLUMNS
    id_ = x - tl.load(columns + segment, mask=act, other=0)
    at = tl.load(row + NODES_AT, mask=act, other=0) + id_
    v = tl.load(node + at, mask=act, other=0)
    colptr = tl.load(row + COLPTR, mask=act, other=0).to(tl.pointer_type(tl.int64))
    first = tl.load(colptr + v, mask=act, other=0)
    end = tl.load(colptr + v + 1, mask=act, other=0)
    key = tl.load(row + SRC_SCOPE, mask=act, other=0) * num_trees
    if DISJOINT:
        key += tl.load(tree + at, mask=act, other=0)
    tl.store(degree + x, end - first, mask=act)
    tl.store(begin + x, first, mask=act)
    tl.store(base + x, key * max_nodes, mask=act)
    tl.store(dst + x, (segment << 32) | id_, mask=act)


@triton.jit
def keep_known(
    segments, key, position, of_dst, act, in_one, one, keys, local, mask, tile, tile_first, tile_count,
    found_row, found_dst, found_id, edge_capacity, state, T: tl.constexpr,
):  # fmt: skip
    """Keep the entries ``[T]`` of a tile whose source is a node of the batch.

    Args:
        key: key of the source in the hash table.
        in_one: whether all entries are of segment ``one``.
    """
    segment = of_dst >> 32
    row = segments + segment * SEGMENT_COLUMNS
    slot = (mix(key.to(tl.uint64)) & mask).to(tl.int64)
    todo, hit = act, act & (position < 0)
    while tl.max(todo.to(tl.int32), 0) > 0:
        seen = tl.load(keys + slot, mask=todo, other=EMPTY)
        hit = hit | (todo & (seen == key))
        todo = todo & (seen != EMPTY) & (seen != key)
        slot = tl.where(todo, (slot + 1) & mask, slot)

    flag = hit.to(tl.int32)
    count = tl.sum(flag, 0)
    first = tl.zeros([], tl.int64)
    if count > 0:
        first = tl.atomic_add(state + NUM_EDGES, count.to(tl.int64))
        if in_one:
            tl.atomic_add(state + STATE_EDGES + one, count.to(tl.int64))
        else:
            tl.atomic_add(state + STATE_EDGES + segment, tl.full([T], 1, tl.int64), mask=hit)
        to = first + tl.cumsum(flag, 0) - 1
        keep = hit & (to < edge_capacity)
        perm, perm_wide = tl.load(row + PERM, mask=keep, other=0), tl.load(row + PERM_WIDE, mask=keep, other=0)
        ids = load_ids(perm, perm_wide, position, keep & (perm != 0))
        tl.store(found_row + to, tl.load(local + slot, mask=keep, other=0), mask=keep)
        tl.store(found_dst + to, of_dst, mask=keep)
        tl.store(found_id + to, tl.where(perm != 0, ids, position), mask=keep)
    tl.store(tile_first + tile, first)
    tl.store(tile_count + tile, count)


@triton.jit(do_not_specialize=["num_columns", "mask", "tile_capacity", "edge_capacity"])
def find_edges(
    segments, ends, begin, base, dst, num_columns, keys, local, mask,
    tile_first, tile_count, tile_capacity, found_row, found_dst, found_id, edge_capacity, state,
    T: tl.constexpr,
):  # fmt: skip
    """Find the entries whose source is a node of the batch. Edges of a tile are contiguous and ordered; tiles are not.

    Args:
        ends: inclusive prefix sum of the degrees.
        tile_first, tile_count: offset and number of the edges of each tile.
        tile_capacity, edge_capacity: tiles and edges that fit into memory.
    """
    num_entries = tl.load(ends + num_columns - 1)
    if tl.program_id(0) == 0:
        tl.store(state + NUM_ENTRIES, num_entries)
    num_tiles = tl.minimum((num_entries + T - 1) // T, tile_capacity)
    tile = tl.program_id(0).to(tl.int64)
    while tile < num_tiles:
        w = tile * T + tl.arange(0, T)
        act = w < num_entries
        low = first_above_one(ends, tile * 0, tile * 0 + num_columns, tile * T)
        high = first_above_one(ends, low, tile * 0 + num_columns, tl.minimum(tile * T + T, num_entries) - 1)
        zero = tl.zeros_like(w)
        column = first_above(ends, zero + low, tl.where(act, zero + high, zero + low), w)
        before = tl.load(ends + column - 1, mask=act & (column > 0), other=0)
        position = tl.load(begin + column, mask=act, other=0) + w - before
        of_dst = tl.load(dst + column, mask=act, other=0)
        segment = of_dst >> 32
        row = segments + segment * SEGMENT_COLUMNS
        rows, wide = tl.load(row + ROW, mask=act, other=0), tl.load(row + ROW_WIDE, mask=act, other=0)
        key = tl.load(base + column, mask=act, other=0) + load_ids(rows, wide, position, act)

        one, last = tl.load(dst + low) >> 32, tl.load(dst + high) >> 32
        keep_known(
            segments, key, position, of_dst, act, one == last, one, keys, local, mask, tile, tile_first, tile_count,
            found_row, found_dst, found_id, edge_capacity, state, T,
        )  # fmt: skip
        tile += tl.num_programs(0)


@triton.jit(do_not_specialize=["num_tiles"])
def place_edges(
    outputs, tile_first, tile_end, num_tiles, found_row, found_dst, found_id,
    T: tl.constexpr,
):  # fmt: skip
    """Copy the edges of every tile to the output, in order.

    Args:
        tile_end: inclusive prefix sum of the edges of the tiles.
    """
    tile = tl.program_id(0).to(tl.int64)
    while tile < num_tiles:
        end = tl.load(tile_end + tile)
        before = tl.load(tile_end + tile - 1, mask=tile > 0, other=0)
        x = tl.arange(0, T).to(tl.int64)
        act = before + x < end
        at = tl.load(tile_first + tile) + x
        of_dst = tl.load(found_dst + at, mask=act, other=0)
        output = outputs + (of_dst >> 32) * OUTPUT_COLUMNS
        to = before + x - tl.load(output + OUT_FIRST, mask=act, other=0)
        row = tl.load(output + OUT_ROW, mask=act, other=0).to(tl.pointer_type(tl.int64))
        col = tl.load(output + OUT_COL, mask=act, other=0).to(tl.pointer_type(tl.int64))
        edge_id = tl.load(output + OUT_ID, mask=act, other=0).to(tl.pointer_type(tl.int64))
        tl.store(row + to, tl.load(found_row + at, mask=act, other=0).to(tl.int64), mask=act)
        tl.store(col + to, of_dst & 0xFFFFFFFF, mask=act)
        tl.store(edge_id + to, tl.load(found_id + at, mask=act, other=0), mask=act)
        tile += tl.num_programs(0)


HGT_EDGES = tl.constexpr(9)  # use of keys


@triton.jit(do_not_specialize=["num_columns", "num_batches", "mask", "edge_capacity"])
def find_chosen(
    segments, degree, begin, base, dst, num_columns, num_batches, node, copy, batches, keys, local, mask,
    tile_first, tile_count, found_row, found_dst, found_id, edge_capacity, state,
    LIMIT: tl.constexpr, SLOTS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Find edges like ``find_edges``, of up to ``LIMIT`` entries of each column; a tile has ``B`` whole columns.

    Args:
        degree, begin, base, dst: of columns, from ``measure_columns``.
        copy: which copy of a seed each node is.
        batches: ``[num_batches, 3]``: seed, epoch, batch.
    """
    tile = tl.program_id(0).to(tl.int64)
    column = tile * B + tl.arange(0, B)
    act = column < num_columns
    d = tl.load(degree + column, mask=act, other=0)
    of_dst = tl.load(dst + column, mask=act, other=0)
    segment = of_dst >> 32
    row = segments + segment * SEGMENT_COLUMNS
    slot = tl.arange(0, SLOTS)[:, None].to(tl.int64)
    pick = slot + tl.zeros_like(d)[None, :]
    if tl.max(d, 0) > LIMIT:
        at = tl.load(row + NODES_AT, mask=act, other=0) + (of_dst & 0xFFFFFFFF)
        c = tl.load(copy + at, mask=act, other=0)
        key = fold(batch_key(batches + segment % num_batches * 3, HGT_EDGES), segment // num_batches)
        key = fold(key, tl.load(node + at, mask=act, other=0))
        key = tl.where(c > 0, fold(key, c), key)
        pick = without_replacement(key, d, LIMIT, LIMIT, SLOTS)
    chosen = slot < tl.minimum(d, LIMIT)[None, :]
    position = tl.load(begin + column, mask=act, other=0)[None, :] + pick
    rows, wide = tl.load(row + ROW, mask=act, other=0), tl.load(row + ROW_WIDE, mask=act, other=0)
    source = tl.load(base + column, mask=act, other=0)[None, :]
    source += load_ids(rows[None, :], wide[None, :], position, chosen)
    # Edges are ordered by column, then by slot.
    T: tl.constexpr = B * SLOTS
    one = tl.load(dst + tile * B) >> 32
    last = tl.load(dst + tl.minimum(tile * B + B, num_columns) - 1) >> 32
    of_dst = of_dst[None, :] + tl.zeros_like(position)
    keep_known(
        segments, tl.reshape(tl.trans(source), [T]), tl.reshape(tl.trans(position), [T]),
        tl.reshape(tl.trans(of_dst), [T]), tl.reshape(tl.trans(chosen.to(tl.int32)), [T]) > 0, one == last, one,
        keys, local, mask, tile, tile_first, tile_count, found_row, found_dst, found_id, edge_capacity, state, T,
    )  # fmt: skip
