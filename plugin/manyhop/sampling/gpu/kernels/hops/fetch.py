"""Read neighbours from host memory, one window of the table after the other.

A GPU translates host addresses through a small TLB. Random reads of a large table miss it almost always, which costs
several times as much as the read itself; reads within a window hit it.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.launch import follow

WINDOW_BITS = 24  # entries of a window: 64 MiB of int32


@triton.jit(do_not_specialize=["hop", "num_segments"])
def fetch(tables, edges, hop, num_segments, T: tl.constexpr):
    """Store the neighbours of a hop's edges in ``edges.slots``; programs loop over tiles of ``T`` edges per window.

    Programs do not synchronize: since all run at the same time, they are in the same window most of the time.
    """
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    n = tl.load(edges.counts + (hop + 1) * num_segments + r) - done
    source = tl.load(segment + t.ROW).to(tl.pointer_type(tl.int32))
    base = tl.load(segment + t.EDGE_BASE) + done
    window_bits = tl.load(tables.bits + 3)
    for window in range(0, tl.load(segment + t.WINDOWS)):
        for first in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
            i = first + tl.arange(0, T).to(tl.int64)
            act = i < n
            at = tl.load(edges.position + base + i, mask=act, other=0)
            inside = act & ((at >> window_bits) == window)
            tl.store(edges.slots + base + i, tl.load(source + at, mask=inside, other=0), mask=inside)
