"""Picks of a hop by the program that finds the nodes which ask, and the neighbours' way into the hash table.

That spares a launch two kernels per hop. It is for fan-outs whose slots fit into the registers of one thread, of one
edge type, without weights and excluded edges.
"""

import triton
import triton.language as tl

from . import tables as t
from .hash import insert
from .memory import load_ids
from .pick import choose


@triton.jit
def neighbors(
    row, key, v, start, d, size, act, k, K: tl.constexpr, KP: tl.constexpr, REPLACE: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """The edges that items take, ``[KP, B] int64``, their neighbours, and which of them there are."""
    choice = choose(row, key, start, d, v, act, k, K, KP, REPLACE, False, LAST)
    taken = act[None, :] & (tl.arange(0, KP)[:, None] < size[None, :])
    edge = start[None, :] + choice
    return edge, load_ids(tl.load(row + t.ROW), tl.load(row + t.ROW_WIDE), edge, taken), taken


@triton.jit
def enter_taken(
    row, edge, neighbor, taken, local, scope, off, size, done, cap, position, column, slots, table, mask, stamp, bits,
    failed, SETTLED: tl.constexpr,
):  # fmt: skip
    """Write the edges of items, and enter their neighbours.

    Args:
        off: where the edges of each item begin, behind the ``done`` ones of the row.
        cap: room for edges of the row.
        SETTLED: as for :func:`hash.insert`.
    """
    node_bits, pos_bits, key_bits = tl.load(bits), tl.load(bits + 1), tl.load(bits + 2)
    taken = taken & (done + off + size <= cap)[None, :]
    to = (tl.load(row + t.EDGE_BASE) + done + off)[None, :] + tl.arange(0, edge.shape[0])[:, None]
    tl.store(position + to, edge, mask=taken)
    tl.store(column + to, (local[None, :] + edge * 0).to(tl.int32), mask=taken)
    unassigned = tl.full([], 1, tl.int64) << (pos_bits - 1)
    name = (scope[None, :] << node_bits) | neighbor
    slot = insert(table, mask, stamp, name, unassigned | to, taken, pos_bits, key_bits, failed, SETTLED)
    tl.store(slots + to, slot, mask=taken)
