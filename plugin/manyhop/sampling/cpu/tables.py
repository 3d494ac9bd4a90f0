"""How the sampler describes graph and workspace to the kernels: tables of int64, most entries addresses.

One row per edge type or node type, so that one call serves any number of types. This module does not import numba.
"""

from __future__ import annotations

# edges[edge_type, ...]: the graph. Addresses are 0 where something is absent.
COLPTR = 0  # int64
ROW = 1  # int32 or int64
ROW_WIDE = 2  # whether row is int64
PERM = 3  # int32 or int64
PERM_WIDE = 4
TIME = 5  # int64
WEIGHT = 6  # float64
ALIAS = 7  # uint64: alias tables of the weights, threshold * 2^32 + alias
POSITIVE = 8  # int64: entries of positive weight per column
SRC = 9  # index of the node type
DST = 10
NUM_EDGES = 11
CODE = 12  # uint16 codes of the times, and int64 bounds: see graph._time_codes; 0 where times do not matter
BOUND = 13
EDGE_COLUMNS = 14

# nodes[node_type, ...]: the nodes of the batch
NODE = 0  # uint64 global ids
TREE = 1  # uint64 tree of each node; 0 if not disjoint
COPY = 2  # uint32: c for the c-th further copy of a seed; [num_seeds]
COUNT = 3  # nodes so far
NUM_SEEDS = 4
ANY_COPY = 5  # whether there are copies
BEGIN = 6  # frontier of this hop: local ids [begin, end)
END = 7
SLOTS = 8  # see kernels.relabel
MASK = 9  # number of slots - 1 of a hash table; -1 for a table of all nodes
STAMP = 10
NUM_NODES = 11  # of the graph
ROOM = 12  # nodes of the batch for which there is memory
NUM_RUNS = 13  # the following: see kernels.relabel_tree; 0 where there is no table of a tree
TABLE_TREE = 14
TABLE_BITS = 15
TABLE_ROOM = 16  # the nodes of the batch may become as many
MOST_RUNS = 16
CURSOR = 17  # [MOST_RUNS] where the nodes of the table's tree begin in each run
RUN = CURSOR + MOST_RUNS  # [MOST_RUNS + 1] where each begins, and where the last ends
NODE_COLUMNS = RUN + MOST_RUNS + 1

# found[edge_type, ...]: the sampled edges
START = 0  # uint64 [frontier] stored position where the range of each node begins
DEGREE = 1  # uint32 [frontier] its length
TAKE = 2  # uint32 [frontier] how many of it are taken
TOTAL = 3  # sum of take
MOST = 4  # maximum of take
OUT_ROW = 5  # int64; where this hop's edges go
OUT_COL = 6
OUT_ID = 7
KEPT_ROW = 8  # int64; where edges of the hops before the last are kept, as long as their number is unknown
KEPT_COL = 9
KEPT_ID = 10
KEPT_ROOM = 11
NUM_DONE = 12  # edges of the hops that are done
FRONTIER_ROOM = 13
EXCLUDE = 14  # int64 ids of edges that the batch must not have; see kernels.exclude
NUM_EXCLUDED = 15
EXCLUDED = 16  # the same as a hash set: int64, EXCLUDED_MASK + 1 slots
EXCLUDED_MASK = 17
PICKED = 18  # uint64 stored positions of all hops, where they are picked ahead of a hop: see kernels.labor
PICKED_WEIGHT = 19  # float32, as many
PICKED_ROOM = 20
FOUND_COLUMNS = 21

# mode[...]: how to sample, and scratch memory of one chunk
REPLACE = 0
WEIGHTED = 1
TEMPORAL = 2  # 0: no, 1: uniform, 2: last
DISJOINT = 3
EXPAND_ALL = 4
TIME_MIN = 5  # int64 [num_trees]; 0: no limit
TIME_MAX = 6
POSITION = 7  # uint64 stored positions
NEIGHBOR = 8  # uint64 global ids
ASKER = 9  # uint32 local ids
PICK = 10  # uint32 [PICK_STRIDE * VECTOR_FANOUT], slot by slot
KEY = 11  # uint64 [BLOCK]
HASH = 12  # uint64, as many as positions
SET = 13  # uint64 hash set of picked entries, for large fan-outs
SET_MASK = 14
SET_STAMP = 15
DRAW = 16  # uint64 [DRAWS] draws of a chunk for weighted sampling, node by node
FOUND = 17  # uint64 [2 * VECTOR_FANOUT] what one node picks
CHUNK_ROOM = 18
HOP = 19  # -1 before the seeds are entered
STEP = 20  # what is done of this hop; see kernels.hop
KEEP_ALL = 21  # whether the edges of the last hop are kept like those of the hops before
LIMIT = 22  # of stamp + local id
PICKED_AHEAD = 23  # whether another kernel picks for a hop
MODE_COLUMNS = 24

# labor[...]: how LABOR picks, where it stands in a hop, and its scratch memory; see kernels.labor
EXACT = 0  # else Poisson
LABOR_REPLACE = 1
LABOR_WEIGHTED = 2
IMPORTANCE = 3
SAME_IN_HOPS = 4  # whether the random numbers are
DEPENDENCY = 5  # of batches
SHIFT = 6  # the batch's number among those that depend on each other
AT_TYPE = 7  # edge type and frontier node to go on with
AT_NODE = 8
VARIATE = 9  # uint64 [longest column]
SHARE = 10  # float64, as many
CHANCE = 11  # float64, as many
SCRATCH = 12  # uint64 [largest fan-out]
ENTRY_BEGIN = 13  # int64 [frontier] where the entries of each column begin
SCALE = 14  # float64 [frontier] of the edge type in work: c_s
ENTRY = 15  # uint32 [entries of all columns of the edge type]: number of the neighbour
ENTRY_SHARE = 16  # float64, as many
CHANCES = 17  # float64 [distinct neighbours]: pi_t
FACTOR = 18  # float64, as many
NUMBERS = 19  # uint64 [2 * (NUMBERS_MASK + 1)] hash table: node + 1, number
NUMBERS_MASK = 20
LABOR_COLUMNS = 21

BLOCK = 512
"""Frontier nodes per chunk, at most."""

PICK_STRIDE = BLOCK + 16
"""Not a power of two, lest the slots of a node compete for the same sets of the cache."""

CHUNK = 2048
"""Sampled edges per chunk, unless a single node has more: what lies between the passes stays in the L1 cache."""

VECTOR_FANOUT = 32
"""Fan-outs up to this are picked for a block of nodes at once, by vector instructions; larger ones node by node."""

DRAWS = CHUNK + 9 * BLOCK
"""Draws of a chunk for weighted sampling: for each node, two to nine more than it picks."""

AHEAD = 32
"""How many entries ahead memory is asked for. Scratch arrays have as many spare entries."""

SUM_BLOCK = 1024
"""Numbers that are added as a tree; part of the contract."""

ROUNDS = 32
"""Steps in which the scale of a column's probabilities is found; part of the contract."""

REPEATS = 16
"""Draws that a slot of weighted sampling makes before it scans; part of the contract."""

DONE, NEEDS_FRONTIER, NEEDS_ROOM, NEEDS_OUTPUT, BAD_SEEDS, NEEDS_PICKS = range(6)
"""What a kernel that samples a batch stops for."""
