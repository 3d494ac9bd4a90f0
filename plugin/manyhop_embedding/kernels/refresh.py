"""Rows of a batch that were updated after they had been gathered are read again."""

import triton
import triton.language as tl

from manyhop.features.kernels.hot import hot_slot


@triton.jit(do_not_specialize=["ids", "count", "stamps", "latest", "table", "num_rows", "rows", "groups", "hot"])
def refresh_rows(
    ids,
    count,
    stamps,
    latest,
    table,
    num_rows,
    rows,
    groups,
    hot,
    WIDE_IDS: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    HOT: tl.constexpr,
):
    """Copy the rows whose stamp is above ``latest`` from the table to their places among the gathered ones.

    ids: address of ``[count]`` int64 (WIDE_IDS) or int32; those out of range are left alone. stamps: of an int32 per
    row of the table. table, rows: of ``[num_rows, WORDS]`` and ``[count, WORDS]`` words of 2 bytes. groups: with HOT,
    of ``manyhop.features.HotRows``, which reside at hot instead. ROWS: that a program looks at.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = i < count
    if WIDE_IDS:
        row = tl.load(ids.to(tl.pointer_type(tl.int64)) + i, mask=inside, other=0)
    else:
        row = tl.load(ids.to(tl.pointer_type(tl.int32)) + i, mask=inside, other=0).to(tl.int64)
    inside = inside & (row >= 0) & (row < num_rows)
    outdated = inside & (tl.load(stamps.to(tl.pointer_type(tl.int32)) + row, mask=inside, other=0) > latest)
    if tl.max(outdated.to(tl.int32), 0) > 0:
        target = rows.to(tl.pointer_type(tl.int16))
        if HOT:
            slot = hot_slot(groups, row, outdated)
            row = tl.where(slot >= 0, slot, row)
            source = tl.where(slot >= 0, hot, table)[:, None].to(tl.pointer_type(tl.int16))
        else:
            source = table.to(tl.pointer_type(tl.int16))
        for begin in range(0, WORDS, 64):
            word = begin + tl.arange(0, 64)
            mask = outdated[:, None] & (word < WORDS)[None, :]
            words = tl.load(source + row[:, None] * WORDS + word[None, :], mask=mask, other=0)
            tl.store(target + i[:, None] * WORDS + word[None, :], words, mask=mask)
