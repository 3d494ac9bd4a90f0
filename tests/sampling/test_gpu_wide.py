"""Fanouts of -1 and those too large for registers, against the functions of the numpy reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gpu_picks import U64, expected, signed, weighted_columns

from manyhop.sampling import random as reference
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.wide import pick_wide, spread
from manyhop.sampling.gpu.launch.memory import Edges, Frontier, Nodes, Seeds, Tables
from manyhop.sampling.reference import picks as reference_picks
from manyhop.sampling.reference.picks import alias_table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def picks(key, columns, fanout, *, replace=False, last=False, tables=None, tile=16):
    """What every column ``0, 1, ...`` of an edge type picks in hop 0, as positions in it.

    Columns are lengths or, together with their alias tables, lists of weights.
    """
    d = np.array([c if tables is None else len(c) for c in columns])
    colptr = np.append(0, np.cumsum(d))
    p = d if tables is None else np.array([np.count_nonzero(c) for c in columns])
    size = d if fanout < 0 else np.minimum(d, fanout)
    if tables is not None:
        size = p if fanout < 0 else np.where(p > 0, fanout, 0) if replace else np.minimum(p, fanout)
    elif replace and fanout > 0:
        size = np.where(d > 0, fanout, 0)
    n, total = len(d), int(size.sum())

    def ints(*values):
        return torch.tensor(values, dtype=torch.int64, device=DEVICE)

    row = np.zeros(t.SEGMENT_COLUMNS.value, np.int64)
    kept = []
    if tables is not None:
        for column, array in (
            (t.ALIAS, np.concatenate([*tables, np.zeros(1, np.int64)])),
            (t.WEIGHT, np.concatenate([*columns, np.zeros(1)])),
            (t.POSITIVE, p),
        ):
            kept.append(torch.from_numpy(array).to(DEVICE))
            row[column.value] = kept[-1].data_ptr()
    rows = torch.from_numpy(row).to(DEVICE)
    nodes, off = ints(*range(n)), ints(*np.cumsum(size) - size)
    start, length = ints(*colptr[:-1]), ints(*d)
    position, column = torch.full((total + 1,), -1, device=DEVICE), torch.full((total + 1,), -1, device=DEVICE).int()
    none, counts = ints(0), ints(0, total)
    static = Tables(rows, none, ints(fanout), none, none, bits=ints(1, 1, 1, 1))
    seeds = Seeds(none, none, signed([key]).to(DEVICE), none, none, none, none)
    nodes, frontier = Nodes(nodes, none, counts=ints(n)), Frontier(start, length, off)
    edges = Edges(counts, position, column, slots=none, weight=none)
    spread[(2, 1)](
        static, nodes, frontier, edges, 0, 1, 1,
        REPLACE=replace, WEIGHTED=tables is not None, TIMED=False, LAST=last, EXPAND_ALL=False, T=256,
    )  # fmt: skip
    if not last:
        pick_wide[(3, 1)](
            static, seeds, nodes, frontier, edges, none, 0, 0, 1, 1,
            REPLACE=replace, WEIGHTED=tables is not None, TIMED=False, DISJOINT=False, EXPAND_ALL=False, COPIES=False,
            T=tile,
        )  # fmt: skip
    assert column.tolist() == [*np.repeat(np.arange(n), size).tolist(), -1]
    assert int(position[-1]) == -1
    parts = np.split(position[:-1].cpu().numpy(), np.cumsum(size)[:-1])
    return [(part - begin).tolist() for part, begin in zip(parts, colptr[:-1], strict=True)]


def node_key(key: int, node: int) -> np.uint64:
    return np.uint64(reference.fold(np.uint64(key), node))


@pytest.mark.parametrize("mode", ["uniform", "replace", "last"])
@settings(max_examples=12, deadline=None)
@given(
    key=U64,
    lengths=st.lists(st.one_of(st.integers(0, 150), st.just(1500)), min_size=1, max_size=6),
    fanout=st.sampled_from([-1, 65, 70, 130]),
)
def test_unweighted_picks(mode: str, key: int, lengths: list[int], fanout: int) -> None:
    got = picks(key, lengths, fanout, replace=mode == "replace", last=mode == "last")
    for v, d in enumerate(lengths):
        want = list(range(d)) if fanout < 0 else expected(mode, int(node_key(key, v)), d, fanout)
        assert got[v] == want


@pytest.mark.parametrize("replace", [False, True])
@settings(max_examples=8, deadline=None)
@given(key=U64, columns=st.lists(weighted_columns(), min_size=1, max_size=4), fanout=st.sampled_from([-1, 65, 80]))
def test_weighted_picks(replace: bool, key: int, columns: list[list[float]], fanout: int) -> None:
    columns = [column * (1 + 90 // max(len(column), 1)) for column in columns]
    tables = [alias_table(column) for column in columns]
    got = picks(key, columns, fanout, replace=replace, tables=tables)
    for v, column in enumerate(columns):
        find = reference_picks.by_alias(tables[v])
        want = reference_picks.weighted(node_key(key, v), np.array(column), find, fanout, replace=replace)
        assert got[v] == want.tolist()
