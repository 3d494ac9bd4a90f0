"""A graph on disk."""

import errno
import itertools
import json
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop import files
from manyhop.errors import CapacityError, GraphError, InputError
from manyhop.files.graph_writer import GraphWriter
from manyhop.files.sort import EdgeSorter
from manyhop.files.tensor_file import TensorFile
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph

NODE, EDGE = HOMOGENEOUS_NODE, HOMOGENEOUS_EDGE
WRITES = ("author", "writes", "paper")


@settings(deadline=None, max_examples=40)
@given(
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 300),
    pieces=st.integers(1, 5),
    piece=st.sampled_from([1, 7, 60, 1000]),
    ordered=st.booleans(),
    hub=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_sorting_in_pieces_is_a_stable_sort(tmp_path_factory, num_nodes, num_edges, pieces, piece, ordered, hub, seed):
    """In memory or in buckets, whatever the size of a bucket, also where one destination has more edges than that."""
    folder = tmp_path_factory.mktemp("sort")
    g = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, num_nodes, (2, num_edges), generator=g)
    if hub:
        dst[num_edges // 3 :] = num_nodes // 2
    if ordered:
        dst = dst.sort().values
    w = torch.rand(num_edges, 2, generator=g).bfloat16()
    parts = torch.arange(num_edges).tensor_split(pieces)
    names = {name: folder / f"{name}.safetensors" for name in ("colptr", "row", "edge_index", "w", "i")}
    with torch.device("meta"):  # as if torch's default device were a GPU
        sorter = EdgeSorter(folder, {"w": (torch.bfloat16, (2,)), "i": (torch.int64, ())}, memory=1 << 20)
        sorter.piece = piece
        for k in parts:
            sorter.add(src[k], dst[k], {"w": w[k], "i": k})
        sorter.write(names, num_nodes, num_nodes + 2)
    got = {name: files.open(path).read() for name, path in names.items()}
    order = dst.sort(stable=True).indices
    assert got["i"].equal(order)
    assert got["row"].equal(src[order].int())
    assert got["edge_index"].equal(torch.stack([src, dst])[:, order])
    assert got["w"].equal(w[order])
    expected = torch.bincount(dst, minlength=num_nodes + 2).cumsum(0)
    assert got["colptr"].equal(torch.cat([torch.zeros(1, dtype=torch.int64), expected]))
    assert sorted(folder.iterdir()) == sorted(names.values())  # no temporary file is left


def graph(seed=0):
    g = torch.Generator().manual_seed(seed)
    num_nodes = {"paper": 50, "author": 20}
    edges = {
        WRITES: (torch.randint(0, 20, (100,), generator=g), torch.randint(0, 50, (100,), generator=g)),
        ("paper", "cites", "paper"): tuple(torch.randint(0, 50, (2, 200), generator=g)),
        ("paper", "by", "author"): (torch.zeros(0, dtype=torch.int64),) * 2,
    }
    tensors = {"paper": {"x": torch.rand(50, 4, generator=g).bfloat16(), "y": torch.arange(50)}}
    return num_nodes, edges, tensors


def test_round_trip(tmp_path):
    num_nodes, edges, node_tensors = graph()
    edge_tensors = {WRITES: {"w": torch.arange(100.0), "mask": torch.arange(100) % 2 == 0}}
    saved = files.save_graph(
        tmp_path / "g", num_nodes, edges, node_tensors=node_tensors, edge_tensors=edge_tensors, crc32=True
    )
    opened = files.open_graph(tmp_path / "g")
    for g in (saved, opened):
        assert not g.is_homogeneous
        assert {t: n.count for t, n in g.nodes.items()} == num_nodes
        assert list(g.edges) == list(edges)
        assert g.nodes["paper"].tensors["x"].mapped().equal(node_tensors["paper"]["x"])
        for edge_type, (src, dst) in edges.items():
            order = dst.sort(stable=True).indices
            assert g.edges[edge_type].edge_index.read().equal(torch.stack([src, dst])[:, order])
        order = edges[WRITES][1].sort(stable=True).indices
        assert g.edges[WRITES].tensors["w"].read().equal(order.float())
        assert g.edges[WRITES].tensors["mask"].read().equal(order % 2 == 0)
        g.verify()
    built = opened.build()
    whole = build_graph(num_nodes, {t: EdgeInput(row=src, col=dst) for t, (src, dst) in edges.items()})
    for edge_type, csc in whole.csc.items():
        assert built.csc[edge_type].colptr.equal(csc.colptr)
        assert built.csc[edge_type].row.equal(csc.row)
        assert built.csc[edge_type].perm is None
    assert dict(opened.topology())["author.writes.paper.row"].shape == (100,)
    assert dict(opened.features())["paper.x"].shape == (50, 4)


def test_build_maps_compressed_columns(tmp_path):
    """No copy: what the file holds is what samplers read."""
    num_nodes, edges, _ = graph()
    opened = files.save_graph(tmp_path / "g", num_nodes, edges)
    csc = opened.build().csc[WRITES]
    path = opened.edges[WRITES].row.paths[0]
    with path.open("r+b") as file:
        file.seek(-4, 2)
        file.write((7).to_bytes(4, "little"))
    assert int(csc.row[-1]) == 7


def test_hand_written_manifests(tmp_path):
    """Edge lists, names instead of entries, several files for one tensor."""
    edge_index = torch.tensor([[0, 1, 2], [2, 1, 0]])
    files.write(tmp_path / "e.npy", edge_index)
    files.write(tmp_path / "a.npy", torch.zeros(2, 3))
    files.write(tmp_path / "b.npy", torch.ones(1, 3))
    manifest = {
        "format": "manyhop graph", "version": 1, "homogeneous": True,
        "nodes": [{"type": NODE, "count": 3, "tensors": {"x": {"files": ["a.npy", "b.npy"]}}}],
        "edges": [{"type": list(EDGE), "count": 3, "edge_index": "e.npy", "tensors": {}}],
        "others": {"values": {"name": "mine"}},
    }  # fmt: skip
    (tmp_path / "manyhop.json").write_text(json.dumps(manifest))
    opened = files.open_graph(tmp_path)
    assert opened.nodes[NODE].tensors["x"].read()[:, 0].tolist() == [0, 0, 1]
    assert opened.build().csc[EDGE].row.tolist() == [2, 1, 0]
    assert [name for name, _ in opened.topology()] == ["edge_index"]
    assert opened.others.values == {"name": "mine"}


def damaged(tmp_path, change):
    if not (tmp_path / "g").exists():
        num_nodes, edges, tensors = graph()
        files.save_graph(tmp_path / "g", num_nodes, edges, node_tensors=tensors, crc32=True)
    manifest = json.loads((tmp_path / "g" / "manyhop.json").read_text())
    change(manifest)
    (tmp_path / "g" / "manyhop.json").write_text(json.dumps(manifest))
    return tmp_path / "g"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m.update(version=2), InputError, "another version"),
        (lambda m: m.update(format="x"), InputError, "another version"),
        (lambda m: m.pop("nodes"), InputError, "'nodes' to be a list"),
        (lambda m: m["nodes"][0].update(count=-1), InputError, "'count' to be a int"),
        (lambda m: m["nodes"][0].update(count=51), GraphError, "expected 51 rows, got 50"),
        (lambda m: m["nodes"][1].update(count=21), GraphError, "expected 22 rows, got 21"),
        (lambda m: m["edges"][0].update(count=99), GraphError, "expected 99 rows, got 100"),
        (lambda m: m["edges"][0].update(type=["author", "writes", "book"]), GraphError, "edge types of"),
        (lambda m: m["edges"][0].pop("row"), InputError, "'colptr' and 'row'"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(dtype="float32"), InputError, "expected dtype float32"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(shape=[50, 5]), InputError, "expected shape"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(files=["../x.npy"]), InputError, "inside"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(files=[1]), InputError, "names of files"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(crc32=[]), InputError, "one crc32 per part"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(crc32=[7]), InputError, "8 hexadecimal digits, got 7"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(name={}), InputError, "name of a tensor or column"),
        (lambda m: m["nodes"][0].update(count=1 << 62), InputError, "'count' to be a int"),
        (lambda m: m["nodes"].append(m["nodes"][0]), InputError, "each node type once, got 'paper' twice"),
        (lambda m: m["edges"].append(m["edges"][0]), InputError, "each edge type once, got .*'writes'.* twice"),
        (lambda m: m["edges"][0].update(type=["author", ["writes"], "paper"]), InputError, "list of three texts"),
        (lambda m: m["edges"][0].update(type=[{}, "writes", "paper"]), InputError, "list of three texts"),
        (lambda m: m["edges"][0].update(transposed=["w"]), InputError, "names of tensors of .* as 'transposed'"),
        (lambda m: m["edges"][0].update(transposed=[{}]), InputError, "names of tensors of .* as 'transposed'"),
        (lambda m: m["edges"][0].update(row=m["nodes"][0]["tensors"]["x"]), GraphError, "expected 100 rows, got 50"),
        (lambda m: m["edges"][1].update(colptr="w.npy"), GraphError, r"w\.npy: expected integers, got torch.float32"),
        (lambda m: m.update(homogeneous=True), GraphError, "expected one node type, '_N'"),
        (lambda m: m.update(num_nodes=7), InputError, r"expected only .*, got \['num_nodes'\] too"),
        (lambda m: m["nodes"][0].update(x=7), InputError, r"got \['x'\] too"),
        (lambda m: m["edges"][0].update(x=7), InputError, r"got \['x'\] too"),
        (lambda m: m["nodes"][0]["tensors"]["x"].update(rows=7), InputError, r"got \['rows'\] too"),
        (lambda m: m["nodes"][0].update(others={"value": {}}), InputError, r"got \['value'\] too"),
        (lambda m: m["nodes"][0].update(others={"values": {"x": 7}}), InputError, "name of a tensor .* once, got 'x'"),
        (lambda m: m.update(others={"values": {"a": 7}, "tensors": {"a": "w.npy"}}), InputError, "once, got 'a' twice"),
    ],
)
def test_manifests_that_do_not_fit(tmp_path, change, error, message):
    folder = damaged(tmp_path, change)
    files.write(folder / "w.npy", torch.zeros(51))
    with pytest.raises(error, match=message):
        files.open_graph(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested too deeply"),
        ('{"nodes": [], "nodes": []}', "the key 'nodes' occurs twice"),
        ("[1]", "'format' to be a str"),
        ("9" * 5000, "expected a JSON text"),
        ("", "expected a JSON text"),
        ("\xff", "expected a JSON text"),
    ],
)
def test_manifests_that_are_none(tmp_path, text, message):
    (tmp_path / "manyhop.json").write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=rf"manyhop\.json: .*{message}"):
        files.open_graph(tmp_path)


def test_manifests_that_are_not_read(tmp_path, monkeypatch):
    """Pipes, of which reading would never end, and files that are far too large."""
    os.mkfifo(tmp_path / "manyhop.json")
    with pytest.raises(InputError, match=r"manyhop\.json: expected a file"):
        files.open_graph(tmp_path)
    (tmp_path / "manyhop.json").unlink()
    with (tmp_path / "manyhop.json").open("w") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"manyhop\.json: expected at most .* bytes"):
        files.open_graph(tmp_path)


def test_damaged_files_are_found(tmp_path):
    folder = damaged(tmp_path, lambda m: None)
    files.open_graph(folder).verify()
    path = folder / "paper.cites.paper.row.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"paper\.cites\.paper\.row\.npy: its crc32"):
        files.open_graph(folder).verify()
    path.write_bytes(data[:-1])
    with pytest.raises(InputError, match="truncated"):
        files.open_graph(folder)


def test_what_cannot_be_written(tmp_path):
    num_nodes, edges, tensors = graph()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(InputError, match="empty folder"):
        files.save_graph(tmp_path / "full", num_nodes, edges)
    assert (tmp_path / "full" / "x").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be created"):
        files.save_graph(tmp_path / "file", num_nodes, edges)
    cases = [
        (dict(num_nodes={**num_nodes, "author": 5}), r"expected source ids of author.writes.paper in \[0, 5\)"),
        (dict(edges={WRITES: (torch.tensor([-1]), torch.tensor([0]))}), "at least 0"),
        (dict(edges={WRITES: (torch.tensor([1]), torch.tensor([0, 1]))}), "'dst' to have 1 rows"),
        (dict(node_tensors={"paper": {"x": torch.zeros(49)}}), "50 rows, one per node"),
        (dict(edge_tensors={WRITES: {"w": torch.zeros(99)}}), "100 rows, one per edge"),
    ]
    for change, message in cases:
        arguments = {"num_nodes": num_nodes, "edges": edges, "node_tensors": tensors, **change}
        with pytest.raises(GraphError, match=f"(?i){message}"):
            files.save_graph(tmp_path / "g", **arguments)
        assert not (tmp_path / "g").exists()  # nothing half-written is left
    with pytest.raises(InputError, match="other names"):
        files.save_graph(tmp_path / "g", num_nodes, edges, edge_tensors={WRITES: {"row": torch.zeros(100)}})
    with pytest.raises(InputError, match="no such folder"):
        files.open_graph(tmp_path / "g")


def test_of_two_writers_one_succeeds(tmp_path):
    """The other one fails, and takes nothing from it."""
    num_nodes, edges, tensors = graph()
    folder = tmp_path / "a" / "g"

    def write() -> None:
        with GraphWriter(folder, homogeneous=False) as late:
            late.add_nodes("paper", 50, {"x": torch.ones(50, 4)})
            late.scratch()
            files.save_graph(folder, num_nodes, edges, node_tensors=tensors)
            late.finish()

    with pytest.raises(InputError, match="empty folder"):
        write()
    opened = files.open_graph(folder)
    assert torch.equal(opened.nodes["paper"].tensors["x"].read(), tensors["paper"]["x"])
    assert list(folder.parent.iterdir()) == [folder]


def test_of_two_writers_of_a_file_each_writes_its_own(tmp_path):
    path = tmp_path / "x.npy"
    with TensorFile(path, (2,), torch.int64) as first, TensorFile(path, (3,), torch.int64) as second:
        second.write(0, torch.tensor([1, 2, 3]))
        first.write(0, torch.tensor([8, 9]))
    assert files.open(path).read().tolist() == [8, 9]
    with pytest.raises(ZeroDivisionError), TensorFile(path, (1,), torch.int64):
        raise ZeroDivisionError
    assert files.open(path).read().tolist() == [8, 9]
    assert list(tmp_path.iterdir()) == [path]


NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("fails_at", [0, 1, 4, 9])
def test_a_full_disk(tmp_path, monkeypatch, fails_at, existed):
    """The file and its size are named, and nothing is left."""
    num_nodes, edges, tensors = graph()
    calls, pwrite = itertools.count(), os.pwrite

    def until_full(*args):
        if next(calls) >= fails_at:
            raise NO_ROOM
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", until_full)
    folder = tmp_path / "a" / "g"
    if existed:
        folder.mkdir(parents=True)
    message = r"/g\.\w+\.partial/.*\.(npy|safetensors): .* \(\d+ bytes\), got No space left.* free"
    with pytest.raises(CapacityError, match=message):
        files.save_graph(folder, num_nodes, edges, node_tensors=tensors)
    assert not existed or list(folder.iterdir()) == []
    assert (tmp_path / "a").exists() == existed


def test_a_disk_that_is_full_of_temporary_files(tmp_path):
    sorter = EdgeSorter(tmp_path, {}, memory=1 << 20)
    (tmp_path / "all.1").symlink_to("/dev/full")
    with pytest.raises(CapacityError, match=r"all\.1: expected room for 800 B"):
        sorter.add(torch.zeros(100, dtype=torch.int64), torch.zeros(100, dtype=torch.int64), {})


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"x\.npy: cannot be written: No such file"):
        files.write(tmp_path / "nothing" / "x.npy", torch.zeros(3))


@pytest.mark.parametrize(("src", "dst"), [(1 << 50, 0), (0, 1 << 50)])
def test_ids_that_no_memory_has_room_for(tmp_path, src, dst):
    ends = torch.tensor([src]), torch.tensor([dst])
    with pytest.raises(CapacityError, match=r"ids up to 1125899906842624\) needs about .* --ids map"):
        files.save_graph(tmp_path / "g", {NODE: (1 << 50) + 1}, {EDGE: ends}, homogeneous=True)
    assert not (tmp_path / "g").exists()


def test_names_that_are_no_file_names(tmp_path):
    node = {"a/b": torch.zeros(3), "a_b": torch.ones(3), "A_B": torch.full((3,), 2.0), "..": torch.full((3,), 3.0)}
    opened = files.save_graph(
        tmp_path / "g", {"x/../y": 3}, {("x/../y", "to", "x/../y"): tuple(torch.zeros(2, 1).long())},
        node_tensors={"x/../y": node},
    )  # fmt: skip
    got = files.open_graph(tmp_path / "g").nodes["x/../y"].tensors
    assert {name: int(rows.read()[0]) for name, rows in got.items()} == {"a/b": 0, "a_b": 1, "A_B": 2, "..": 3}
    assert all(path.parent == tmp_path / "g" for rows in got.values() for path in rows.paths)
    assert opened.edges


def test_compressed_columns_need_no_memory(tmp_path, host_memory):
    opened = files.save_graph(
        tmp_path / "g", {NODE: 10}, {EDGE: tuple(torch.randint(0, 10, (2, 5000)))}, homogeneous=True
    )
    host_memory(1000)
    assert opened.build().csc[EDGE].row.shape == (5000,)


@pytest.mark.parametrize("num_edges", [200, 20_000])
def test_tensors_that_are_not_contiguous(tmp_path, num_edges):
    """Edges as pairs, transposed, and columns of tables: what is written is read again in their order."""
    src, dst = torch.randint(0, 50, (num_edges, 2)).t()
    table = torch.rand(num_edges, 4)
    tensors = {"w": table[:, 1], "pairs": table[:, ::2], "turned": torch.rand(3, num_edges).t()}
    order = dst.sort(stable=True).indices
    for k in range(3):
        stored = files.save_graph(
            tmp_path / str(k), {NODE: 50}, {EDGE: (src, dst)}, edge_tensors={EDGE: tensors}, homogeneous=True
        )
        edges = stored.edges[EDGE]
        assert edges.edge_index.read().equal(torch.stack([src, dst])[:, order])
        for name, values in tensors.items():
            assert edges.tensors[name].read().equal(values[order]), name
