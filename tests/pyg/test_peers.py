"""With all neighbours taken, batches have the nodes and edges that brute force finds, and that PyG's own loaders give.

PyG's own loaders need torch-sparse (or pyg-lib), which is not everywhere; brute force is.
"""

import warnings

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from torch_geometric.utils import k_hop_subgraph

import manyhop_pyg

PEER = torch_geometric.typing.WITH_TORCH_SPARSE or torch_geometric.typing.WITH_PYG_LIB
needs_peer = pytest.mark.skipif(not PEER, reason="PyG's own loaders need torch-sparse or pyg-lib")
needs_sparse = pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="torch-sparse is not installed")

SKIPPED = {"edge_index", "adj_t", "n_id", "e_id", "input_id", "batch_size", "num_sampled_nodes", "num_sampled_edges",
           "num_nodes", "name", "edge_label_index", "edge_label"}  # fmt: skip


def facts(batch):
    """What a batch says, whatever the order of its nodes and edges: node -> its rows, edge id -> its ends and rows."""
    nodes, edges = {}, {}
    for store in batch.node_stores:
        n_id = store.n_id.tolist()
        rows = {k: v for k, v in store.items() if k not in SKIPPED and torch.is_tensor(v) and len(v) == len(n_id)}
        assert len(set(n_id)) == len(n_id)
        for i, node in enumerate(n_id):
            nodes[store._key, node] = {k: v[i].tolist() for k, v in rows.items() if "edge" not in k}
    for store in batch.edge_stores:
        if "adj_t" in store:
            col, row, _ = store.adj_t.coo()
            ids = [None] * row.numel()
        else:
            row, col = store.edge_index
            ids = store.e_id.tolist()
        key = store._key or (None, None, None)
        of = (lambda kind: batch[kind]) if store._key else (lambda kind: batch)
        src, dst = of(key[0]).n_id[row].tolist(), of(key[2]).n_id[col].tolist()
        rows = {k: v for k, v in store.items() if k.startswith("edge") and k not in SKIPPED}
        for i, (edge, *ends) in enumerate(zip(ids, src, dst, strict=True)):
            key = (store._key, edge) if edge is not None else (store._key, *ends)
            assert edge is None or key not in edges
            edges[key] = (*ends, {k: v[i].tolist() for k, v in rows.items()} if edge is not None else {})
    return nodes, edges


def brute_force(data, seeds, hops, *, induced=False):
    """The in-neighbourhood of ``seeds`` (type -> ids), as ``facts`` of it without any rows."""
    whole = {store._key: store.edge_index.tolist() for store in data.edge_stores}
    known = {(kind, i) for kind, ids in seeds.items() for i in ids.tolist()}
    new, edges = set(known), set()
    for _ in range(hops):
        found = set()
        for kind, (src, dst) in whole.items():
            for e, (a, b) in enumerate(zip(src, dst, strict=True)):
                if (kind and kind[2], b) in new:
                    edges.add((kind, e))
                    found.add((kind and kind[0], a))
        new = found - known
        known |= found
    if induced:
        for kind, (src, dst) in whole.items():
            for e, (a, b) in enumerate(zip(src, dst, strict=True)):
                if (kind and kind[2], b) in known and (kind and kind[0], a) in known:
                    edges.add((kind, e))
    return known, edges


def check_expected(batch, data, seeds, hops, **kwargs):
    nodes, edges = facts(batch)
    assert (set(nodes), set(edges)) == brute_force(data, seeds, hops, **kwargs)
    for (kind, i), rows in nodes.items():
        store = data if kind is None else data[kind]
        assert rows
        assert all(store[k][i].tolist() == row for k, row in rows.items())
    for (kind, e), (a, b, rows) in edges.items():
        store = data if kind is None else data[kind]
        assert store.edge_index[:, e].tolist() == [a, b]
        assert all(store[k][e].tolist() == row for k, row in rows.items())


def pairs(name, *args, **kwargs):
    """Batches of our loader, and of PyG's with the same arguments."""
    ours = getattr(manyhop_pyg, name)(*args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        theirs = list(getattr(torch_geometric.loader, name)(*args, **kwargs))
    return zip(ours, theirs, strict=True)


def check_pairs(name, *args, **kwargs):
    edges = 0
    for ours, theirs in pairs(name, *args, **kwargs):
        assert facts(ours) == facts(theirs)
        edges += len(facts(ours)[1])
        yield ours, theirs
    assert edges


@pytest.fixture
def typed(hetero):
    """The fixture with a row for every node, and without the type that no edge touches."""
    hetero["field"].x = torch.arange(6.0).view(6, 1)
    del hetero["venue"]
    return hetero


KINDS = [[-1], [-1, -1], [-1, -1, -1], [400, 400]]


@pytest.mark.parametrize("fanout", KINDS)
def test_nodes_by_brute_force(data, fanout):
    for batch in manyhop_pyg.NeighborLoader(data, fanout, batch_size=7):
        seeds = batch.n_id[: batch.batch_size]
        check_expected(batch, data, {None: seeds}, len(fanout))
        subset, _, mapping, _ = k_hop_subgraph(seeds, len(fanout), data.edge_index, num_nodes=60)
        assert torch.equal(batch.n_id.sort().values, subset)
        assert torch.equal(subset[mapping], seeds)


@needs_peer
@pytest.mark.parametrize("fanout", KINDS)
def test_nodes_as_in_pyg(data, fanout):
    for ours, theirs in check_pairs("NeighborLoader", data, fanout, batch_size=7):
        assert torch.equal(ours.input_id, theirs.input_id)
        assert ours.batch_size == theirs.batch_size
        assert torch.equal(ours.n_id[:7], theirs.n_id[:7])
        assert ours.num_nodes == theirs.num_nodes
        names = set(ours.keys()) - {"num_sampled_nodes", "num_sampled_edges"}  # torch-sparse does not tell these
        assert names <= set(theirs.keys()) | {"edge_index"}


def test_induced_by_brute_force(data):
    for batch in manyhop_pyg.NeighborLoader(data, [-1, -1], batch_size=3, subgraph_type="induced"):
        check_expected(batch, data, {None: batch.n_id[: batch.batch_size]}, 2, induced=True)


@pytest.mark.parametrize("induced", [False, True])
def test_types_by_brute_force(typed, induced):
    for kind in ("paper", "field", "author"):
        for batch in manyhop_pyg.NeighborLoader(
            typed, [-1, -1], (kind, None), batch_size=3, subgraph_type="induced" if induced else "directional"
        ):
            seeds = batch[kind].n_id[: batch[kind].batch_size]
            check_expected(batch, typed, {kind: seeds}, 2, induced=induced)


@needs_peer
@pytest.mark.parametrize("fanout", [[-1, -1], "some"])
def test_types_as_in_pyg(typed, fanout):
    if fanout == "some":
        fanout = {t: [-1, -1] if "writes" in t[1] else [0, -1] for t in typed.edge_types}
    for ours, theirs in check_pairs("NeighborLoader", typed, fanout, ("paper", None), batch_size=6):
        assert torch.equal(ours["paper"].input_id, theirs["paper"].input_id)
        assert ours["paper"].batch_size == theirs["paper"].batch_size
        assert ours.metadata() == theirs.metadata()


def test_links_by_brute_force(data):
    for batch in manyhop_pyg.LinkNeighborLoader(data, [-1, -1], data.edge_index[:, :40], batch_size=8):
        ends = batch.n_id[batch.edge_label_index]
        assert torch.equal(ends, data.edge_index[:, batch.input_id])
        check_expected(batch, data, {None: ends.unique()}, 2)


def test_hgt_by_brute_force(typed):
    for batch in manyhop_pyg.HGTLoader(typed, [500, 500], ("paper", None), batch_size=3):
        seeds = batch["paper"].n_id[: batch["paper"].batch_size]
        check_expected(batch, typed, {"paper": seeds}, 2, induced=True)


@needs_sparse
def test_hgt_as_in_pyg(typed):
    assert list(check_pairs("HGTLoader", typed, [500, 500], ("paper", None), batch_size=3))
