"""Where each node's edges begin among the edges of a hop."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.primitives import first_not_below

TILE = tl.constexpr(256)


@triton.jit(do_not_specialize=["columns", "tiles"])
def fill_indptr(columns, tiles):
    """For each row of the table, ``tiles`` programs take turns at ``TILE`` entries of its result.

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
