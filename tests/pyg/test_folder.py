"""``manyhop_pyg.save`` and ``manyhop_pyg.open``."""

import json
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import manyhop_pyg
from manyhop import files
from manyhop.errors import CapacityError, GraphError, InputError
from manyhop_pyg import NeighborLoader
from manyhop_pyg.data.topologies import recall

PLACEMENTS = ["auto", "process", "shared", "mapped"]


def homogeneous():
    n, e = 200, 1500
    return Data(
        x=torch.randn(n, 5),
        y=torch.randint(0, 4, (n,)),
        train_mask=torch.arange(n) < 100,
        edge_index=torch.randint(0, n, (2, e)),
        edge_attr=torch.arange(e * 2.0).view(e, 2).bfloat16(),
        weight=torch.rand(e),
        time=torch.randint(0, 100, (e,)),
        classes=torch.arange(4),
        name="small",
        sizes=[1, 2.5, None],
    )


def heterogeneous():
    data = HeteroData()
    data["paper"].x = torch.randn(80, 5)
    data["paper"].year = torch.arange(80)
    data["author"].num_nodes = 30
    data["author"].label_names = ["a", "b"]
    data["author", "writes", "paper"].edge_index = torch.stack(
        [torch.randint(0, 30, (300,)), torch.randint(0, 80, (300,))]
    )
    data["author", "writes", "paper"].w = torch.rand(300)
    data["author", "writes", "paper"].edge_label_index = torch.zeros(2, 7, dtype=torch.int64)
    data["paper", "cites", "paper"].edge_index = torch.randint(0, 80, (2, 0))
    data["paper", "rev_writes", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)
    data.source = "made up"
    return data


def sorted_by_destination(data):
    """What is expected: edges and what belongs to them in order of destination, all else the same."""
    data = data.clone()
    for store in data.edge_stores:
        order = store.edge_index[1].sort(stable=True).indices
        for name in [name for name in store if store.is_edge_attr(name)]:
            store[name] = store[name].index_select(data.__cat_dim__(name, store[name], store), order)
    return data


def assert_same(a, b):
    assert type(a) is type(b)
    for ours, theirs in zip(a.stores, b.stores, strict=True):
        assert set(ours.keys()) - {"num_nodes"} == set(theirs.keys()) - {"num_nodes"}
        for name, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert ours[name].dtype == value.dtype
                assert ours[name].equal(value), name
            else:
                assert ours[name] == value
    assert a.num_nodes == b.num_nodes


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_round_trip(tmp_path, make, placement):
    data = make()
    manyhop_pyg.save(data, tmp_path / "g", crc32=True)
    opened = manyhop_pyg.open(tmp_path / "g", placement=placement)
    assert_same(opened, sorted_by_destination(data))
    files.open_graph(tmp_path / "g").verify()
    manyhop_pyg.save(opened, tmp_path / "again")
    assert_same(manyhop_pyg.open(tmp_path / "again"), opened)


def batches(loader_class, data, **options):
    loader = loader_class(data, [4, 3], batch_size=16, shuffle=True, num_workers=0, **options)
    loader.seed = 7
    return list(loader)


@pytest.mark.parametrize(
    "options", [{}, {"weight_attr": "weight"}, {"time_attr": "time", "input_time": torch.full((200,), 60)}]
)
def test_loaders_give_the_batches_of_the_source(tmp_path, options):
    """Of the source as it is: the order of edges does not change a sample."""
    data = homogeneous()
    manyhop_pyg.save(data, tmp_path / "g")
    opened = manyhop_pyg.open(tmp_path / "g", placement="mapped")
    order = data.edge_index[1].sort(stable=True).indices
    ours, theirs = (batches(NeighborLoader, d, seed=7, **options) for d in (opened, data))
    assert len(ours) == len(theirs) == 13
    for a, b in zip(ours, theirs, strict=True):
        assert a.n_id.equal(b.n_id)
        assert a.edge_index.equal(b.edge_index)
        assert a.edge_index.dtype == torch.int64
        assert order[a.e_id].equal(b.e_id)
        assert a.x.equal(b.x)
        assert a.edge_attr.equal(b.edge_attr)


def test_heterogeneous_loaders(tmp_path):
    data = heterogeneous()
    manyhop_pyg.save(data, tmp_path / "g")
    opened = manyhop_pyg.open(tmp_path / "g")
    for a, b in zip(*(batches(NeighborLoader, d, seed=7, input_nodes="paper") for d in (opened, data)), strict=True):
        for node_type in data.node_types:
            assert a[node_type].n_id.equal(b[node_type].n_id)
        for edge_type in data.edge_types:
            assert a[edge_type].edge_index.equal(b[edge_type].edge_index)
        assert a["author", "writes", "paper"].w.equal(b["author", "writes", "paper"].w)


def test_the_topology_is_not_copied(tmp_path):
    """The loader's tables are the files, whatever they come to hold."""
    data = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 1, 2], [0, 1, 2]]))
    manyhop_pyg.save(data, tmp_path / "g")
    loader = NeighborLoader(manyhop_pyg.open(tmp_path / "g", placement="mapped"), [1], batch_size=3)
    with (tmp_path / "g" / "edges.row.npy").open("r+b") as file:
        file.seek(-4, 2)
        file.write((1).to_bytes(4, "little"))
    (batch,) = loader
    assert batch.edge_index.tolist() == [[0, 1, 1], [0, 1, 2]]


def test_edges_that_are_changed_count(tmp_path):
    data = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 1, 2], [0, 1, 2]]))
    manyhop_pyg.save(data, tmp_path / "g")
    opened = manyhop_pyg.open(tmp_path / "g", placement="mapped")
    assert recall(opened.edge_index) is not None
    opened.edge_index[0, 0] = 2
    assert recall(opened.edge_index) is None
    (batch,) = NeighborLoader(opened, [1], batch_size=3)
    assert batch.edge_index.tolist() == [[2, 1, 2], [0, 1, 2]]
    again = manyhop_pyg.open(tmp_path / "g", placement="mapped")
    again.edge_index = again.edge_index[:, 1:]
    (batch,) = NeighborLoader(again, [1], batch_size=3)
    assert batch.edge_index.tolist() == [[1, 2], [1, 2]]


def test_auto_goes_by_free_memory(tmp_path, monkeypatch, host_memory):
    data = Data(x=torch.zeros(1000, 100), y=torch.zeros(1000), edge_index=torch.zeros(2, 5000, dtype=torch.int64))
    manyhop_pyg.save(data, tmp_path / "g")
    rows_read = []
    read = files.Rows.read

    def spy(self, *args, **kwargs):
        rows_read.append(self.paths[0].name)
        return read(self, *args, **kwargs)

    monkeypatch.setattr(files.Rows, "read", spy)
    for memory, expected in [
        (1 << 30, {"edges.colptr.npy", "edges.row.npy", "_N.x.npy", "_N.y.npy"}),
        (100_000, {"edges.colptr.npy", "edges.row.npy", "_N.y.npy"}),
        (6_000, {"_N.y.npy"}),
        (1_000, set()),
    ]:
        host_memory(memory)
        rows_read.clear()
        if memory == 6_000:  # features leave memory before the topology does
            expected = set()
        manyhop_pyg.open(tmp_path / "g")
        assert set(rows_read) == expected


def test_auto_names_what_would_help(tmp_path, host_memory):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    manyhop_pyg.save(Data(x=torch.zeros(1000), edge_index=torch.zeros(2, 1, dtype=torch.int64)), tmp_path / "g")
    parquet.write_table(arrow.table({"x": [0.0] * 1000}), tmp_path / "g" / "x.parquet")
    manifest = (
        (tmp_path / "g" / "manyhop.json").read_text().replace("_N.x.npy", "x.parquet").replace("float32", "float64")
    )
    (tmp_path / "g" / "manyhop.json").write_text(manifest)
    assert manyhop_pyg.open(tmp_path / "g").x.shape == (1000,)
    with pytest.raises(InputError, match="Parquet files cannot be mapped"):
        manyhop_pyg.open(tmp_path / "g", placement="mapped")
    host_memory(5000)
    with pytest.raises(CapacityError, match="convert what cannot be mapped"):
        manyhop_pyg.open(tmp_path / "g")


def test_what_is_refused(tmp_path):
    with pytest.raises(InputError, match="got a folder without"):
        manyhop_pyg.open(tmp_path)
    with pytest.raises(InputError, match="placement"):
        manyhop_pyg.open(tmp_path, placement="disk")
    for value, message in [
        (object(), "nothing is ever pickled"),
        (json.loads("[" * 40 + "]" * 40), "at most 32 levels"),
        (torch.tensor(1.0), "to have rows, got a single number"),
        (torch.eye(3).to_sparse(), "dense tensor in memory"),
    ]:
        data = Data(x=torch.zeros(3), edge_index=torch.zeros(2, 1, dtype=torch.int64), odd=value)
        with pytest.raises(InputError, match=f"'odd'.*{message}"):
            manyhop_pyg.save(data, tmp_path / "g")
        assert not (tmp_path / "g").exists()
    with pytest.raises(InputError, match="Data, HeteroData"):
        manyhop_pyg.save([1], tmp_path / "g")


def test_adjacency_matrices(tmp_path):
    sparse = pytest.importorskip("torch_sparse")
    data = homogeneous()
    row, col = data.edge_index
    plain = Data(x=data.x, adj_t=sparse.SparseTensor(row=col, col=row, sparse_sizes=(200, 200)))
    manyhop_pyg.save(plain, tmp_path / "g")
    opened = manyhop_pyg.open(tmp_path / "g")
    expected = plain.adj_t.coo()
    assert opened.edge_index.equal(torch.stack([expected[1], expected[0]]))
    plain.adj_t = plain.adj_t.set_value(torch.ones(1500), layout="coo")
    with pytest.raises(InputError, match="without values"):
        manyhop_pyg.save(plain, tmp_path / "h")


def test_files_that_are_truncated_while_in_use(tmp_path):
    manyhop_pyg.save(homogeneous(), tmp_path / "g")
    data = manyhop_pyg.open(tmp_path / "g", placement="mapped")
    loader = NeighborLoader(data, [3], batch_size=50)
    assert len(list(loader)) == 4
    path = tmp_path / "g" / "_N.x.npy"
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(whole) - 8)
    with pytest.raises(InputError, match=rf"_N\.x\.npy: expected {len(whole)} bytes, .* got {len(whole) - 8}"):
        iter(loader)
    path.write_bytes(whole)
    assert len(list(loader)) == 4
    other = tmp_path / "other"
    other.write_bytes(whole[:200])
    other.replace(path)  # the file that is mapped is still there, without a name
    assert len(list(loader)) == 4


def hostile(folder: Path, colptr, row, **changes) -> Path:
    """A homogeneous graph of three nodes, without edge_index."""
    folder.mkdir(exist_ok=True)
    files.write(folder / "colptr.npy", torch.tensor(colptr))
    files.write(folder / "row.npy", torch.tensor(row))
    edges = {"type": ["_N", "_E", "_N"], "count": len(row), "colptr": "colptr.npy", "row": "row.npy", "tensors": {}}
    manifest = {
        "format": "manyhop graph", "version": 1, "homogeneous": True,
        "nodes": [{"type": "_N", "count": 3, "tensors": {}}], "edges": [edges], **changes,
    }  # fmt: skip
    (folder / "manyhop.json").write_text(json.dumps(manifest))
    return folder


WRAPS = [0, 1 << 62, -(1 << 63), 2]  # each step is positive in 64 bits


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(
    ("colptr", "row", "message"),
    [
        ([0, 1, 2, 3 * 10**9], [0, 1], r"colptr\.npy .*from 0 to the number of edges \(2\), got 0 to 3000000000"),
        ([0, 2, 1, 2], [0, 1], r"colptr\.npy .* falls after entry 1"),
        ([0, -5, 1, 2], [0, 1], r"colptr\.npy .* falls after entry 0"),
        (WRAPS, [0, 1], r"colptr\.npy .* falls after entry 1"),
        ([1, 1, 2, 2], [0, 1], r"colptr\.npy .* got 1 to 2"),
        ([0, 1, 2, 2], [0, 3], r"row\.npy .*in \[0, 3\), got 3"),
        ([0, 1, 2, 2], [0, -1], r"row\.npy .*in \[0, 3\), got -1"),
    ],
)
def test_hostile_columns_are_found_before_anything_is_made_of_them(tmp_path, placement, colptr, row, message):
    with pytest.raises(GraphError, match=message):
        manyhop_pyg.open(hostile(tmp_path, colptr, row), placement=placement)


def test_edge_index_is_made_only_where_it_fits(tmp_path, host_memory):
    folder = hostile(tmp_path, [0, 1, 2, 2], [0, 2])
    assert manyhop_pyg.open(folder, placement="mapped").edge_index.tolist() == [[0, 2], [0, 1]]
    host_memory(79)
    with pytest.raises(CapacityError, match="edge_index, which the folder does not have"):
        manyhop_pyg.open(folder, placement="mapped")


@pytest.mark.parametrize("name", ["edge_index", "num_nodes", "adj_t", "w"])
def test_values_do_not_replace_the_graph(tmp_path, name):
    hostile(tmp_path, [0, 1, 2, 2], [0, 2])
    nodes = [{"type": "_N", "count": 3, "tensors": {"w": "w.npy"}}]
    files.write(tmp_path / "w.npy", torch.zeros(3))
    folder = hostile(tmp_path, [0, 1, 2, 2], [0, 2], nodes=nodes, others={"values": {name: 10**6}})
    with pytest.raises(InputError, match=f"got '{name}', which is that of other data"):
        manyhop_pyg.open(folder)
