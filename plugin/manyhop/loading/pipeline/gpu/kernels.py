"""Kernels of `Padder`, for multiple batches per launch."""

import triton
import triton.language as tl

# Columns of a job: the nodes, or edges, of one type of one sample.
SIZE = tl.constexpr(0)  # entries, with padding
SOURCE = tl.constexpr(1)  # for edges: distance to the job of their source nodes; for nodes 0
TARGET = tl.constexpr(2)  # for edges: distance to the job of their destination nodes
IN = tl.constexpr(3)  # addresses of node and tree, or of row, col and edge id
OUT = tl.constexpr(6)  # addresses, in the same order; 0 for missing tensors
MASK = tl.constexpr(9)  # address of bools: False for padding
BEGINS = tl.constexpr(10)  # [blocks + 1]: where blocks begin in the sample, and where the last one ends
# Then [blocks + 1] begins with padding. For edges also [blocks] first source nodes of the padding edges of each block,
# and [blocks] first destination nodes.

FIELDS = tl.constexpr(4)
# Fields of a tensor whose rows of padding are cleared: its address, bytes of a row, address of the job of its nodes or
# edges, and their block (-1: all).


@triton.jit
def pad_samples(table, blocks, programs, num_trees, SPARE: tl.constexpr, TILE: tl.constexpr):
    """Write the padded tensors of jobs, each by ``programs`` programs.

    table: address of ``[num_jobs, BEGINS + 4 * blocks + 2] int64``. blocks: the largest number per job; the others are
    empty blocks at its end. num_trees: the tree of padding nodes.
    """
    program = tl.program_id(0).to(tl.int64)
    job = program // programs
    width = BEGINS + 4 * blocks + 2
    row = table.to(tl.pointer_type(tl.int64)) + job * width
    size = tl.load(row + SIZE)
    source, target = tl.load(row + SOURCE), tl.load(row + TARGET)
    mask = tl.load(row + MASK).to(tl.pointer_type(tl.int8))
    first, padded = row + BEGINS, row + BEGINS + blocks + 1
    spare = padded + blocks + 1
    for at in range((program - job * programs) * TILE, size, programs * TILE):
        i = at + tl.arange(0, TILE).to(tl.int64)
        act = i < size
        block = _block_of(i, padded, blocks)
        j = i - tl.load(padded + block)
        begin = tl.load(first + block)
        known = act & (j < tl.load(first + block + 1) - begin)
        tl.store(mask + i, known.to(tl.int8), mask=act)
        if source == 0:
            _copy(row, 0, begin + j, i, 0, known, act)
            _copy(row, 1, begin + j, i, num_trees, known, act)
        else:
            step = j * SPARE // tl.maximum(tl.load(padded + block + 1) - tl.load(padded + block), 1)
            _renumber(row, 0, begin + j, i, row - source * width, blocks, tl.load(spare + block) + step, known, act)
            _renumber(
                row, 1, begin + j, i, row - target * width, blocks, tl.load(spare + blocks + block) + step, known, act
            )
            _copy(row, 2, begin + j, i, 0, known, act)


@triton.jit
def _block_of(i, begins, blocks):
    """Return the block of position ``i``."""
    block = (i * 0).to(tl.int32)
    for b in range(1, blocks):
        block += (i >= tl.load(begins + b)).to(tl.int32)
    return block


@triton.jit
def _copy(row, k: tl.constexpr, at, i, fill, known, act):
    """Copy the entries of a tensor, if there is one; ``fill`` is padding."""
    target = tl.load(row + OUT + k)
    if target != 0:
        source = tl.load(row + IN + k).to(tl.pointer_type(tl.int64))
        value = tl.load(source + at, mask=known, other=0)
        tl.store(target.to(tl.pointer_type(tl.int64)) + i, tl.where(known, value, fill), mask=act)


@triton.jit
def _renumber(row, k: tl.constexpr, at, i, nodes, blocks, spare, known, act):
    """Write the ends of edges as node numbers with padding; ``nodes``: the job of these nodes."""
    node = tl.load(tl.load(row + IN + k).to(tl.pointer_type(tl.int64)) + at, mask=known, other=0)
    begins = nodes + BEGINS
    block = _block_of(node, begins, blocks)
    node += tl.load(begins + blocks + 1 + block) - tl.load(begins + block)
    tl.store(tl.load(row + OUT + k).to(tl.pointer_type(tl.int64)) + i, tl.where(known, node, spare), mask=act)


@triton.jit
def clear_rows(calls, blocks, programs, NUM: tl.constexpr, TILE: tl.constexpr):
    """Write zeros over the rows of padding of tensors, each by ``programs`` programs.

    calls: ``NUM * FIELDS`` integers.
    """
    program = tl.program_id(0).to(tl.int64)
    tensor, number = program // programs, program % programs
    address, nbytes, job, block = calls[0], calls[1], calls[2], calls[3]
    for k in tl.static_range(1, NUM):
        here = tensor == k
        address = tl.where(here, calls[FIELDS * k], address)
        nbytes = tl.where(here, calls[FIELDS * k + 1], nbytes)
        job = tl.where(here, calls[FIELDS * k + 2], job)
        block = tl.where(here, calls[FIELDS * k + 3], block)
    row = job.to(tl.pointer_type(tl.int64))
    known, padded = row + BEGINS, row + BEGINS + blocks + 1
    if block >= 0:
        _clear_block(address, nbytes, known + block, padded + block, number, programs, TILE)
    else:
        for b in range(0, blocks):
            _clear_block(address + tl.load(padded + b) * nbytes, nbytes, known + b, padded + b, number, programs, TILE)


@triton.jit
def _clear_block(address, nbytes, known, padded, number, programs, TILE: tl.constexpr):
    """Write zeros over the rows of padding of a block, which begins at ``address``; its bounds are read at ``known``
    (without padding) and ``padded`` (with padding)."""
    there = tl.load(known + 1) - tl.load(known)
    begin, count = address + there * nbytes, (tl.load(padded + 1) - tl.load(padded) - there) * nbytes
    if (address | nbytes) & 7 == 0:
        _clear(begin, count // 8, number, programs, tl.int64, TILE)
    elif (address | nbytes) & 3 == 0:
        _clear(begin, count // 4, number, programs, tl.int32, TILE)
    else:
        _clear(begin, count, number, programs, tl.int8, TILE)


@triton.jit
def _clear(address, count, number, programs, WORD: tl.constexpr, TILE: tl.constexpr):
    for at in range(number * TILE, count, programs * TILE):
        i = at + tl.arange(0, TILE).to(tl.int64)
        tl.store(address.to(tl.pointer_type(WORD)) + i, tl.zeros([TILE], WORD), mask=i < count)
