"""How the sampler describes graph and workspace to the kernels: records of int64, most of them addresses.

Tables have a record per edge type or node type, so that one call serves any number of types. The classes name the
fields for readers and for mypy; numpy's dtypes, and numba's types in `kernels`, are derived from them. This module
does not import numba.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from manyhop.graph import Graph
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.placement import RESERVE
from manyhop.system.memory import available_memory

Ints = npt.NDArray[np.int64]

MOST_RUNS = 16
"""Runs of trees in the nodes of a batch, up to which tables of trees are used; see kernels.relabel."""


class StoredEdges(Protocol):
    """An edge type of the graph. Addresses are 0 where something is absent."""

    colptr: int  # int64
    row: int  # int32 or int64
    row_wide: int  # whether row is int64
    perm: int  # int32 or int64
    perm_wide: int
    time: int  # int64
    weight: int  # float64
    alias: int  # uint64: alias tables of the weights, threshold * 2^32 + alias
    positive: int  # int64: entries of positive weight per column
    src: int  # index of the node type
    dst: int
    num_edges: int
    code: int  # uint16 codes of the times, and int64 bounds: see graph.csc.TimeCodes; 0 without times
    bound: int
    pages: int  # whether colptr and row are in files that do not fit in memory


class BatchNodes(Protocol):
    """The nodes of a type in the batch."""

    node: int  # uint64 global ids
    tree: int  # uint64 tree of each node; 0 if not disjoint
    copy: int  # uint32: c for the c-th further copy of a seed; [num_seeds]
    count: int  # nodes so far
    num_seeds: int
    any_copy: int  # whether there are copies
    begin: int  # frontier of this hop: local ids [begin, end)
    end: int
    slots: int  # see kernels.relabel
    mask: int  # number of slots - 1 of a hash table; -1 for a table of all nodes
    stamp: int
    num_nodes: int  # of the graph
    capacity: int  # nodes of the batch that fit in memory
    num_runs: int  # the following: see kernels.relabel; 0 without a table of a tree
    table_tree: int
    num_tables: int
    table_bits: int
    table_capacity: int  # the nodes of the batch may become as many
    cursor: Ints  # [MOST_RUNS] where the nodes of the table's tree begin in each run
    run: Ints  # [MOST_RUNS + 1] where each begins, and where the last ends


class FoundEdges(Protocol):
    """The sampled edges of a type."""

    start: int  # uint64 [frontier] stored position where the range of each node begins
    degree: int  # uint32 [frontier] its length
    take: int  # uint32 [frontier] number of picks
    total: int  # sum of take
    most: int  # maximum of take
    out_row: int  # int64; output of this hop's edges
    out_col: int
    out_id: int
    kept_row: int  # int64; edges of the hops before the last, until their number is known
    kept_col: int
    kept_id: int
    kept_capacity: int
    num_done: int  # edges of the hops that are done
    frontier_capacity: int
    exclude: int  # int64 ids of excluded edges; see kernels.picks
    num_excluded: int
    excluded: int  # the same as a hash set: int64, excluded_mask + 1 slots
    excluded_mask: int
    picked: int  # uint64 stored positions of all hops, if another kernel picks them: see kernels.labor
    picked_weight: int  # float32, as many
    picked_capacity: int


class Mode(Protocol):
    """How to sample, and scratch memory of one chunk."""

    replace: int
    weighted: int
    temporal: int  # 0: no, 1: uniform, 2: last
    disjoint: int
    expand_all: int
    time_min: int  # int64 [num_trees]; 0: no limit
    time_max: int
    position: int  # uint64 stored positions
    neighbor: int  # uint64 global ids
    dst_node: int  # uint32 local ids
    pick: int  # uint32 [PICK_STRIDE * VECTOR_FANOUT], slot by slot
    key: int  # uint64 [BLOCK]
    hash: int  # uint64, as many as positions
    set: int  # uint64 hash set of picked entries, for large fanouts
    set_mask: int
    set_stamp: int
    draw: int  # uint64 [DRAWS] draws of a chunk for weighted sampling, node by node
    found: int  # uint64 [2 * VECTOR_FANOUT] picks of one node
    chunk_capacity: int
    hop: int  # -1 before the seeds are entered
    step: int  # progress of this hop; see kernels.hop
    keep_all: int  # whether the last hop also writes to kept_*
    limit: int  # of stamp + local id
    picked_ahead: int  # whether another kernel picks for a hop
    past: int  # whether edges are written past the caches


class Labor(Protocol):
    """How LABOR picks, where it stands in a hop, and its scratch memory; see kernels.labor."""

    exact: int  # else Poisson
    replace: int
    weighted: int
    importance: int
    same_in_hops: int  # whether the random numbers are
    dependency: int  # of batches
    shift: int  # the batch's number in its group of dependent batches
    at_type: int  # next edge type and frontier node
    at_node: int
    variate: int  # uint64 [longest column]
    share: int  # float64, as many
    chance: int  # float64, as many
    scratch: int  # uint64 [largest fanout]
    entry_begin: int  # int64 [frontier] where the entries of each column begin
    scale: int  # float64 [frontier] of the edge type in work: c_s
    entry: int  # uint32 [entries of all columns of the edge type]: number of the neighbour
    entry_share: int  # float64, as many
    chances: int  # float64 [distinct neighbours]: pi_t
    factor: int  # float64, as many
    numbers: int  # uint64 [2 * (numbers_mask + 1)] hash table: node + 1, number
    numbers_mask: int


T_co = TypeVar("T_co", covariant=True)


class Table(Protocol[T_co]):
    """Records of a kind: one per edge type, per node type, or a single one."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> T_co: ...


Edges: TypeAlias = Table[StoredEdges]
Nodes: TypeAlias = Table[BatchNodes]
Found: TypeAlias = Table[FoundEdges]
Modes: TypeAlias = Table[Mode]
Labors: TypeAlias = Table[Labor]
Records: TypeAlias = npt.NDArray[np.void]
"""A table as numpy has it, on the host."""


def fields_of(table: Records) -> dict[str, Ints]:
    """Return the fields of all records by name, as views; numpy takes longer to make one for each use."""
    return {name: table[name] for name in table.dtype.names or ()}


def _dtype(record: type, **lengths: int) -> np.dtype[np.void]:
    """Return the dtype of a record: int64 for each field, as many as ``lengths`` gives for an array."""
    return np.dtype([(name, np.int64, (lengths[name],) if name in lengths else ()) for name in record.__annotations__])


STORED_EDGES = _dtype(StoredEdges)
BATCH_NODES = _dtype(BatchNodes, cursor=MOST_RUNS, run=MOST_RUNS + 1)
FOUND_EDGES = _dtype(FoundEdges)
MODE = _dtype(Mode)
LABOR = _dtype(Labor)

BLOCK = 512
"""Frontier nodes per chunk, at most."""

PICK_STRIDE = BLOCK + 16
"""Not a power of two, lest the slots of a node compete for the same sets of the cache."""

CHUNK = 2048
"""Sampled edges per chunk, unless a single node has more: data between the passes fit in the L1 cache."""

VECTOR_FANOUT = 32
"""Fanouts up to this are picked for a block of nodes at once, by vector instructions; larger ones node by node."""

PAST = 1 << 15
"""From this number on, the edges of a batch are written past the caches."""

DRAWS = CHUNK + 9 * BLOCK
"""Draws of a chunk for weighted sampling: for each node, two to nine more than it picks."""

SPARE = 128
"""Entries of scratch arrays beyond a chunk, which prefetches ahead of its end read."""

SUM_BLOCK = 1024
"""Numbers that are added as a tree; part of the contract."""

ROUNDS = 32
"""Steps in which the scale of a column's probabilities is found; part of the contract."""

REPEATS = 16
"""Draws that a slot of weighted sampling makes before it scans; part of the contract."""

ATTEMPTS = 64
"""Candidates that a step of a biased walk draws before it scans; part of the contract."""

DONE, NEEDS_FRONTIER, NEEDS_ROOM, NEEDS_OUTPUT, BAD_SEEDS, NEEDS_PICKS = range(6)
"""Reasons for a kernel that samples a batch to stop."""


def pages_edges(graph: Graph) -> bool:
    """Return whether edges are in files that do not fit in memory; if so, have the system read single pages of them.

    Otherwise a fault reads megabytes around a neighbour, for which the system drops pages that are read more often.
    """
    tables = [table for csc in graph.csc.values() for table in (csc.colptr, csc.row) if table.numel()]
    free = available_memory()
    if free is None or sum(table.nbytes for table in tables) <= (1 - RESERVE) * free:
        return False
    in_files = reside_in_files([table.data_ptr() for table in tables])
    found = [table for table, in_file in zip(tables, in_files, strict=True) if in_file]
    if sum(table.nbytes for table in found) <= (1 - RESERVE) * free:
        return False
    from manyhop.system.paging import advise_random

    for table in found:
        advise_random(table.data_ptr(), table.nbytes)
    return True
