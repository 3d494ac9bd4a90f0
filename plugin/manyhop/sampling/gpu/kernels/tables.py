"""Columns of the int64 tables that kernels and host share, and how kernels follow each other.

A *type range* is a node type of a batch of the launch: its nodes are contiguous, in the order of their local ids.
A *segment* is an edge type of a batch: its edges are contiguous, hop by hop. The segments of a batch are sorted by
source type, then by edge type: the segments that add nodes to one type range, a *chain*, are adjacent.
"""

import hashlib
from pathlib import Path

import triton
import triton.language as tl

from manyhop.system import nvml

# Columns of `segments`: addresses of the tables of the edge type, ...
COLPTR = tl.constexpr(0)
ROW = tl.constexpr(1)
PERM = tl.constexpr(2)
TIME = tl.constexpr(3)
WEIGHT = tl.constexpr(4)
ALIAS = tl.constexpr(5)
POSITIVE = tl.constexpr(6)
ROW_WIDE = tl.constexpr(7)  # whether `row` is int64
PERM_WIDE = tl.constexpr(8)
WINDOWS = tl.constexpr(9)  # number of windows of `row` and `perm` if they are large and in host memory, else 0
# ... and the segment's position in the batch.
BATCH = tl.constexpr(10)
EDGE_TYPE = tl.constexpr(11)
SRC = tl.constexpr(12)  # type range of the neighbours
DST = tl.constexpr(13)  # type range of the frontier nodes
SRC_TYPE = tl.constexpr(14)
SRC_BASE = tl.constexpr(15)  # offset of the nodes of that type range
DST_BASE = tl.constexpr(16)
EDGE_BASE = tl.constexpr(17)
FRONTIER_BASE = tl.constexpr(18)
CHAIN = tl.constexpr(19)  # first segment of its chain
ENDS_CHAIN = tl.constexpr(20)  # whether it is the last segment of its chain
SEGMENT_COLUMNS = tl.constexpr(21)

# Columns of `type_ranges`.
NODE_BASE = tl.constexpr(0)
NODE_TYPE = tl.constexpr(1)
OF_BATCH = tl.constexpr(2)
NUM_NODES = tl.constexpr(3)
TYPE_RANGE_COLUMNS = tl.constexpr(4)

# Columns of `descriptor`, the host's input of a launch: the stamp, a group per batch, a group per type range; if edges
# are excluded, address and number of their ids for each segment.
STAMP = tl.constexpr(0)
BATCHES = tl.constexpr(1)
SEED_KEY = tl.constexpr(0)
EPOCH_KEY = tl.constexpr(1)
BATCH_KEY = tl.constexpr(2)
FIRST_TREE = tl.constexpr(3)  # seeds of all earlier batches
BATCH_COLUMNS = tl.constexpr(4)
NUM_SEEDS = tl.constexpr(0)
SEEDS = tl.constexpr(1)  # address
FIRST_SEED = tl.constexpr(2)  # offset among the seeds of the launch
TIME_MAX = tl.constexpr(3)  # address, or 0
TIME_MIN = tl.constexpr(4)
SEED_COLUMNS = tl.constexpr(5)

# Columns of `failed`.
BAD_SEED = tl.constexpr(0)
NODES_FULL = tl.constexpr(1)
EDGES_FULL = tl.constexpr(2)
TABLE_FULL = tl.constexpr(3)
FAILED_COLUMNS = tl.constexpr(4)


def _can_overlap() -> bool:
    """Return whether all GPUs have programmatic dependent launches, without starting CUDA in the process."""
    driver = None if triton.knobs.runtime.interpret else nvml.driver()
    gpus = () if driver is None else nvml.visible(driver.gpus)
    return bool(gpus) and min(gpu.capability for gpu in gpus) >= (9, 0)


OVERLAPS = tl.constexpr(_can_overlap())
# The key of triton's cache holds the sources of the functions that a kernel calls and the constants that it imports by
# name, but no attributes of modules (`t.SRC`): after an update of manyhop, kernels for other columns would run.
# `follow`, which kernels that read attributes of this module call, brings a digest of it into their keys.
SOURCES = tl.constexpr(int.from_bytes(hashlib.sha256(Path(__file__).read_bytes()).digest()[:4], "little"))


@triton.jit
def follow():
    """Let the next kernel be launched, and wait for the one before, which may still run when this one is launched.

    Every program calls it before all else, so that what a kernel waits for includes all kernels before.
    """
    tl.static_assert(SOURCES >= 0)
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
