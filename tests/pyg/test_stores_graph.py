"""The GraphStore by itself."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import EdgeAttr
from torch_geometric.data.graph_store import EdgeLayout

from manyhop.errors import GraphError, InputError
from manyhop_pyg import GraphStore

TO = ("a", "to", "b")
BACK = ("b", "back", "a")
ROW, COL = torch.tensor([2, 0, 1, 0, 2]), torch.tensor([1, 3, 0, 1, 3])
BY_COL = torch.tensor([2, 0, 3, 1, 4])
COLPTR = torch.tensor([0, 1, 3, 3, 5])
BY_ROW = torch.tensor([1, 3, 2, 0, 4])
ROWPTR = torch.tensor([0, 2, 3, 5])


@pytest.fixture
def store():
    store = GraphStore()
    store[TO, "coo", False, (3, 4)] = (ROW, COL)
    return store


def same(a, b):
    return all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_get(store):
    attr = EdgeAttr(TO, "coo")
    for got in (
        store[TO, "coo"],
        store[attr],
        store.get_edge_index(attr),
        store.get_edge_index(TO, EdgeLayout.COO, size=(3, 4)),
        store.get_edge_index(edge_type=TO, layout="coo"),
    ):
        assert same(got, (ROW, COL))
    for missing in (EdgeAttr(TO, "csc"), EdgeAttr(BACK, "coo"), EdgeAttr(TO, "coo", size=(4, 4)),
                    EdgeAttr(TO, "coo", is_sorted=True)):  # fmt: skip
        with pytest.raises(KeyError, match="not found"):
            store[missing]
    attrs = store.get_all_edge_attrs()
    assert attrs == [EdgeAttr(TO, "coo", False, (3, 4))]
    attrs[0].layout = "changed"
    assert store.get_all_edge_attrs()[0].layout is EdgeLayout.COO
    attr.size = (3, 4)
    store[attr] = (ROW, COL)
    attr.size = None
    assert store.get_all_edge_attrs()[0].size == (3, 4)
    assert repr(store) == "GraphStore()"


@pytest.mark.parametrize("layout", ["coo", "csc", "csr"])
@pytest.mark.parametrize("edge_type", [TO, None])
def test_conversions(layout, edge_type):
    store = GraphStore()
    edges = {"coo": (ROW, COL), "csc": (ROW[BY_COL], COLPTR), "csr": (ROWPTR, COL[BY_ROW])}
    store[edge_type, layout, False, (3, 4)] = edges[layout]

    def get(name, **kwargs):
        out = getattr(store, name)(**kwargs)
        return out if edge_type is None else tuple(x[edge_type] for x in out)

    pairs = set(zip(ROW.tolist(), COL.tolist(), strict=True))
    for again in (False, True, True):
        row, col, perm = get("coo", store=again)
        assert perm is None
        assert set(zip(row.tolist(), col.tolist(), strict=True)) == pairs
        row_csc, colptr, perm = get("csc", store=again)
        assert torch.equal(colptr, COLPTR)
        assert (perm is None) == (layout == "csc")
        if perm is not None:
            assert torch.equal(row[perm], row_csc)
        rowptr, col_csr, perm = get("csr", store=again)
        assert torch.equal(rowptr, ROWPTR)
        assert (perm is None) == (layout == "csr")
        if perm is not None:
            assert torch.equal(col[perm], col_csr)
        assert [a.layout.value for a in store.get_all_edge_attrs()] == [layout]  # edge ids have not changed


def test_stored_conversions_are_forgotten(store):
    first = store.csc(store=True)
    assert store.csc()[0][TO] is first[0][TO]
    store[TO, "coo", False, (3, 4)] = (ROW.roll(1), COL)
    assert not torch.equal(store.csc()[0][TO], first[0][TO])
    store.csc(store=True)
    assert store.remove_edge_index(TO, "coo")
    assert not store.remove_edge_index(TO, "coo")
    assert store.get_all_edge_attrs() == []


def test_several_layouts_and_types(store):
    store[TO, "csc", True, (3, 4)] = (ROW[BY_COL], COLPTR)
    store[BACK, "csr", False, (4, 3)] = (torch.tensor([0, 0, 0, 0, 0]), torch.empty(0, dtype=torch.long))
    assert [(a.edge_type, a.layout.value) for a in store.get_all_edge_attrs()] == [
        (TO, "coo"), (TO, "csc"), (BACK, "csr")
    ]  # fmt: skip
    rows, cols, perms = store.csc()
    assert perms[TO] is None
    assert torch.equal(cols[TO], COLPTR)
    assert rows[BACK].numel() == 0
    assert set(store.coo(edge_types=[BACK])[0]) == {BACK}
    with pytest.raises(ValueError, match="not found in the graph store"):
        store.coo(edge_types=[("a", "x", "b")])
    del store[TO, "csc"]
    assert perms[TO] is None
    assert store.csc()[2][TO] is not None


def test_arrays_and_int32():
    store = GraphStore()
    store[None, "coo", True, (4, 4)] = (ROW[BY_COL].int().numpy(), COL[BY_COL].int().numpy())
    row, col = store[None, "coo"]
    assert row.dtype == col.dtype == torch.int32
    assert store.csc()[2] is None
    shared = np.arange(3)
    store[None, "coo", False, (4, 4)] = (shared, shared)
    assert np.shares_memory(store[None, "coo"][0].numpy(), shared)


@pytest.mark.parametrize(
    ("attr", "edges", "match"),
    [
        ((TO, "coo"), (ROW, COL[:-1]), "as many rows as columns, got 5 and 4"),
        ((TO, "coo"), ROW, "pair of tensors"),
        ((TO, "coo"), (ROW, COL, COL), "pair of tensors"),
        ((TO, "coo"), ("a", "b"), "a tensor or an array of numbers, got a str"),
        ((TO, "coo"), (ROW.float(), COL), "int64 or int32, got torch.float32"),
        ((TO, "coo"), (ROW.view(1, 5), COL.view(1, 5)), r"1-dimensional .*got torch.int64 of shape \[1, 5\]"),
        ((TO, "coo"), (ROW - 1, COL), "ids of at least 0, got -1"),
        ((TO, "coo", False, (2, 4)), (ROW, COL), r"coo edges of \('a', 'to', 'b'\) to have ids in \[0, 2\), got 2"),
        ((TO, "coo", False, (None, 3)), (ROW, COL), r"ids in \[0, 3\), got 3"),
        ((TO, "coo", False, 3), (ROW, COL), r"\(num_src, num_dst\), got 3"),
        ((TO, "coo", False, (3, 4, 5)), (ROW, COL), r"\(num_src, num_dst\)"),
        ((TO, "coo", True), (ROW, COL), "sorted by destination"),
        ((TO, "csc"), (ROW, COL), "rise from 0 to the number of edges, 5, got 1 to 3"),
        ((TO, "csc"), (ROW, torch.tensor([0, 3, 2, 5])), "rise from 0"),
        ((TO, "csc"), (ROW, torch.empty(0, dtype=torch.long)), r"shape \[num_nodes \+ 1\], got \[0\]"),
        ((TO, "csc", True, (3, 5)), (ROW, COLPTR), r"shape \[6\], got \[5\]"),
        ((TO, "csc", True, (2, 4)), (ROW, COLPTR), r"ids in \[0, 2\), got 2"),
        ((TO, "csr", False, (4, 4)), (ROWPTR, COL), r"shape \[5\], got \[4\]"),
        ((TO, "csr", False, (3, 2)), (ROWPTR, COL), r"ids in \[0, 2\), got 3"),
        ((["a", "b"], "coo"), (ROW, COL), r"edge type as \('src', 'rel', 'dst'\)"),
        (("a", "coo"), (ROW, COL), "edge type as"),
    ],
)
def test_bad_edges(attr, edges, match):
    with pytest.raises(GraphError, match=match):
        GraphStore().put_edge_index(edges, *attr)


def test_what_does_not_fit_together(store):
    with pytest.raises(GraphError, match="with an edge type or all without"):
        store[None, "coo"] = (ROW, COL)
    with pytest.raises(GraphError, match="the same edges, got 5 in coo and 4 in csr"):
        store[TO, "csr"] = (torch.tensor([0, 4]), COL[:-1])
    store[TO, "coo"] = (ROW[:-1], COL[:-1])
    store[TO, "csr"] = (torch.tensor([0, 4]), COL[:-1])


def test_copies_and_pickles(store):
    for other in (pickle.loads(pickle.dumps(store)), copy.deepcopy(store)):
        assert same(other[TO, "coo"], (ROW, COL))
        assert other.get_all_edge_attrs() == store.get_all_edge_attrs()


def test_places_of_edges():
    with pytest.raises(InputError, match=r"'distributed'\], got 'mapped'. Edges of a folder stay in its files"):
        GraphStore(placement="mapped")
