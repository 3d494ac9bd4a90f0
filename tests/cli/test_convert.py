"""``manyhop convert``."""

import gzip
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import manyhop_pyg
from manyhop import files

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def edges_of(folder):
    """Edges with their tensors, as a sorted list; ids as they were at the source."""
    graph = files.open_graph(folder)
    found = []
    for (src, _, dst), edges in graph.edges.items():
        ends = edges.edge_index.read().tolist()
        for end, name in enumerate((src, dst)):
            if graph.nodes[name].ids is not None:
                ids = source_ids(graph.nodes[name].ids)
                ends[end] = [ids[i] for i in ends[end]]
        found += zip(*ends, *(rows.read().tolist() for rows in edges.tensors.values()), strict=True)
    return sorted(found)


def source_ids(path):
    return np.load(path).tolist() if path.suffix == ".npy" else parquet.read_table(path)["id"].to_pylist()


def test_csv_with_texts(convert):
    Path("e.csv").write_text("from,to,w,note\nzoë,ann,1.5,x\nann,bob,2.5,y\nbob,ann,0.5,z\n", encoding="utf-8")
    printed = convert("e.csv", "g", "--edge-columns", "w", "--crc32")
    assert "columns that are left out: note" in printed.err
    assert "Ids are mapped to 0 ... 2" in printed.err
    assert "3 nodes, 3 edges" in printed.out
    assert printed.out.splitlines()[-1].startswith("Open it with manyhop_pyg.open('g')")
    assert edges_of("g") == [("ann", "bob", 2.5), ("bob", "ann", 0.5), ("zoë", "ann", 1.5)]
    files.open_graph("g").verify()
    data = manyhop_pyg.open("g")
    assert data.num_nodes == 3
    assert data.edge_index.tolist() == [[2, 1, 0], [0, 0, 1]]
    assert data.w.tolist() == [1.5, 0.5, 2.5]


@pytest.mark.parametrize(
    "form",
    ["csv", "csv.gz", "tsv", "no header", "semicolon", "parquet", "npy", "npy of a transpose", "bin", "safetensors"],
)
def test_forms_of_the_same_edges(form, convert):
    src, dst = torch.randint(0, 50, (2, 400))
    options = []
    if form in ("npy", "bin", "safetensors"):
        path = f"e.{form}"
        files.write(path, torch.stack([src, dst]))
    elif form == "npy of a transpose":
        path = "e.npy"
        np.save(path, torch.stack([src, dst], 1).numpy().T)
    elif form == "parquet":
        path = "e.parquet"
        parquet.write_table(arrow.table({"s": src.numpy(), "d": dst.int().numpy()}), path, row_group_size=70)
    else:
        mark = {"tsv": "\t", "semicolon": ";"}.get(form, ",")
        text = "" if form == "no header" else f"s{mark}d\n"
        text += "".join(f"{s}{mark}{d}\n" for s, d in zip(src.tolist(), dst.tolist(), strict=True))
        path = Path("e." + (form if form in ("csv.gz", "tsv") else "csv"))
        path.write_bytes(gzip.compress(text.encode()) if form == "csv.gz" else text.encode())
        options = {"no header": ["--no-header"], "semicolon": ["--delimiter", ";"]}.get(form, [])
    convert(path, "g", *options, "--num-nodes", "60")
    graph = files.open_graph("g")
    order = dst.sort(stable=True).indices
    (edges,) = graph.edges.values()
    assert edges.edge_index.read().equal(torch.stack([src, dst])[:, order])
    assert graph.nodes["_N"].count == 60
    assert graph.nodes["_N"].ids is None


def test_columns_by_name_both_ways_and_tensors(convert):
    table = arrow.table(
        {"w": [1.0, 2.0], "b": [0, 2], "a": [1, 0], "e": arrow.FixedSizeListArray.from_arrays([1, 2, 3, 4], 2)}
    )
    parquet.write_table(table, "e.parquet")
    x = torch.rand(4, 2)
    files.write("x.npy", x)
    parquet.write_table(arrow.table({"y": [1, 2, 3, 4], "z": [0.0] * 4}), "n.parquet")
    options = ["--src", "a", "--dst", "b", "--edge-columns", "w,e", "--both-ways"]
    options += ["--node-tensor", "x=x.npy", "--node-tensor", "y=n.parquet:y"]
    convert("e.parquet", "g", *options)
    data = manyhop_pyg.open("g")
    assert data.x.equal(x)
    assert data.y.tolist() == [1, 2, 3, 4]
    assert data.edge_index.tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]]
    assert data.w.tolist() == [1, 2, 1, 2]
    assert data.e.tolist() == [[1, 2], [3, 4], [1, 2], [3, 4]]


def test_heterogeneous_edges(convert):
    Path("w1.csv").write_text("a,p\nann,7\nbob,9\n")
    Path("w2.csv").write_text("a,p\ncy,9\n")
    Path("c.csv").write_text("p,q\n7,9\n-5,7\n")
    sources = [f"author,writes,paper={name}.csv" for name in ("w1", "w2")]
    convert(*sources, "paper,cites,paper=c.csv", "g")
    graph = files.open_graph("g")
    assert source_ids(graph.nodes["author"].ids) == ["ann", "bob", "cy"]
    assert source_ids(graph.nodes["paper"].ids) == [-5, 7, 9]
    assert list(graph.edges) == [("author", "writes", "paper"), ("paper", "cites", "paper")]
    data = manyhop_pyg.open("g")
    assert data["author", "writes", "paper"].edge_index.tolist() == [[0, 1, 2], [1, 2, 2]]
    assert data["paper", "cites", "paper"].edge_index.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("highest", "options", "mapped"),
    [
        (10, [], False),
        (1_000_008, [], False),
        (1_000_009, [], True),
        (10, ["--ids", "map"], True),
        (1_000_009, ["--ids", "keep"], False),
    ],
)
def test_sparse_integers_are_mapped(highest, options, mapped, convert):
    Path("e.csv").write_text(f"a,b\n5,{highest}\n")
    convert("e.csv", "g", *options)
    (nodes,) = files.open_graph("g").nodes.values()
    assert nodes.count == (2 if mapped else highest + 1)
    assert (nodes.ids is not None) == mapped
    assert edges_of("g") == [(5, highest)]


def test_many_ids(convert):
    """More than are kept between merges, in several pieces, both as texts and as numbers."""
    g = np.random.default_rng(0)
    ids = g.integers(-(2**62), 2**62, 40_000)
    src, dst = g.choice(ids, (2, 100_000))
    for k, convert_id in enumerate([int, lambda i: f"n{i}"]):
        ends = [[convert_id(i) for i in end] for end in (src, dst)]
        parquet.write_table(arrow.table({"a": ends[0], "b": ends[1]}), "e.parquet", row_group_size=9000)
        convert("e.parquet", f"g{k}")
        assert edges_of(f"g{k}") == sorted(zip(*ends, strict=True))


def test_texts_as_dictionaries(convert):
    table = arrow.table(
        {"a": arrow.array(["u", "v", "u"]).dictionary_encode(), "b": arrow.array(["v", "u", "u"], "large_string")}
    )
    parquet.write_table(table, "e.parquet")
    convert("e.parquet", "g")
    assert edges_of("g") == [("u", "u"), ("u", "v"), ("v", "u")]


# PyG's files


def test_saved_data(convert):
    data = Data(x=torch.randn(5, 2), edge_index=torch.tensor([[0, 1], [4, 3]]), name="n")
    torch.save(data, "d.pt")
    torch.save((data.to_dict(), None, Data), "processed.pt")
    torch.save(data, "old.pt", _use_new_zipfile_serialization=False)
    for name in ("d", "processed", "old"):
        convert(f"{name}.pt", name)
        opened = manyhop_pyg.open(name)
        assert opened.x.equal(data.x)
        assert opened.edge_index.tolist() == [[1, 0], [3, 4]]
        assert opened.name == "n"
    hetero = HeteroData()
    hetero["a"].x = torch.randn(3, 2)
    hetero["a", "to", "a"].edge_index = torch.tensor([[0], [2]])
    torch.save(hetero, "h.pt")
    convert("h.pt", "h")
    assert manyhop_pyg.open("h")["a"].x.equal(hetero["a"].x)


class Evil:
    def __reduce__(self):
        return Path.touch, (Path(EVIL_TRACE),)


EVIL_TRACE = ""


@pytest.mark.parametrize("how", ["whole", "attribute", "plain pickle"])
def test_nothing_is_unpickled(monkeypatch, how, convert):
    monkeypatch.setattr(sys.modules[__name__], "EVIL_TRACE", "trace")
    data = Data(x=torch.zeros(1), edge_index=torch.zeros(2, 0, dtype=torch.int64), evil=Evil())
    if how == "plain pickle":
        Path("d.pt").write_bytes(pickle.dumps(Evil()))
    else:
        torch.save(Evil() if how == "whole" else data, "d.pt")
    convert("d.pt", "g", fails="without unpickling")
    assert not Path("trace").exists()
    array = np.empty(1, dtype=object)
    array[0] = Evil()
    np.save("e.npy", array, allow_pickle=True)
    convert("e.npy", "g", fails="never unpickled")
    assert not Path("trace").exists()


def test_other_pt_files(convert):
    torch.save({"a": torch.zeros(1)}, "d.pt")
    convert("d.pt", "g", fails="expected one Data or HeteroData, got dict")
    Path("d.pt").write_bytes(b"")
    convert("d.pt", "g", fails="d.pt: cannot be read")
    convert("nope.pt", "g", fails="no such file")


# What is refused


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,\n", [], "column 'b': row 0 has no value"),
        ("a,b\n1,2\n3\n", [], "cannot be read"),
        ("a\n1\n", [], "at least two columns"),
        ("a,b\n1,2\n", ["--src", "c"], "expected a column of ['a', 'b'], got 'c'"),
        ("a,b\n1.5,2\n", [], "integers or texts"),
        ("a,b\nx,2\n", [], "one kind"),
        ("a,b\n-1,2\n", ["--ids", "keep"], "at least 0"),
        ("a,b\n0,1125899906842624\n", ["--ids", "keep"], "needs about 16777216.00 GiB"),
        ("a,b\n1125899906842624,0\n", ["--ids", "keep"], "Map the ids"),
        ("a,b\n1,7\n", ["--num-nodes", "7"], "below 7"),
        ("a,b,c\n1,7,x\n", ["--edge-columns", "c"], "expected numbers"),
        ("a,b\n1,7\n", ["--num-nodes", "many"], "--num-nodes N"),
        ("a,b\n1,7\n", ["--num-nodes", "paper=7"], "--num-nodes N"),
        ("a,b\n1,7\n", ["--node-tensor", "x"], "--node-tensor NAME=FILE"),
        ("a,b\n1,7\n", ["--node-tensor", "x=nope.npy"], "nope.npy"),
        ("a,b\n1,7\n", ["--memory", "1KiB"], "at least 1 MiB"),
        ("a,b\n1,7\n", ["--split", "time"], "--split has no meaning"),
        ("", [], "cannot be read"),
    ],
)
def test_tables_that_are_refused(text, options, message, convert):
    Path("e.csv").write_text(text)
    convert("e.csv", "g", *options, fails=message)
    assert not Path("g").exists()


def test_arguments_that_are_refused(convert):
    torch.save(Data(edge_index=torch.zeros(2, 1, dtype=torch.int64)), "d.pt")
    files.write("e.npy", torch.zeros(3, 2, dtype=torch.int64))
    Path("e.csv").write_text("a,b\n1,2\n")
    Path("folder").mkdir()
    Path("e.what").touch()
    for argv, message in [
        (["d.pt", "--src", "a"], "--src has no meaning"),
        (["d.pt", "--both-ways"], "--both-ways has no meaning"),
        (["e.npy"], "integers of shape [2, num_edges] in one file, got torch.int64 of shape [3, 2]"),
        (["e.npy", "--src", "a"], "no columns with names"),
        (["folder"], "Name its files: manyhop convert "),
        (["nope.csv"], "no such file"),
        (["e.what"], "expected one of .npy"),
        (["e.csv", "a,b,c=e.csv"], "for all files or for none"),
        (["a,b,c=e.csv", "--both-ways"], "same node type"),
        (["a,b,c=e.csv", "--num-nodes", "7"], "--num-nodes TYPE=N"),
        (["a,b,c=e.csv", "--num-nodes", "d=7"], "Expected the node types ['a', 'c'], got 'd'"),
    ]:
        convert(*argv, "g", fails=message)
    convert("e.csv", ".", fails="an empty folder")


# Tables of nodes, raw files


def test_tables_of_nodes(convert):
    Path("writes.csv").write_text("a,p\nzoë,7\nann,9\n", encoding="utf-8")
    Path("authors.csv").write_text("age,name,town\n30,zoë,X\n40,bob,Y\n50,ann,Z\n", encoding="utf-8")
    vectors = arrow.FixedSizeListArray.from_arrays(np.arange(6, dtype=np.float32), 2)
    parquet.write_table(arrow.table({"name": [9, -3, 7], "x": vectors, "y": [1, 2, 3]}), "papers.parquet")
    tables = ["--nodes", "author=authors.csv", "--nodes", "paper=papers.parquet"]
    source = "author,writes,paper=writes.csv"
    printed = convert(source, "g", *tables, "--node-id", "name")
    assert "columns that are left out, as they hold no numbers: town" in printed.err
    data = manyhop_pyg.open("g")
    ids = files.open_graph("g").nodes
    assert parquet.read_table(ids["author"].ids)["id"].to_pylist() == ["ann", "bob", "zoë"]
    assert data["author"].age.tolist() == [50, 40, 30]
    assert np.load(ids["paper"].ids).tolist() == [-3, 7, 9]
    assert data["paper"].x.tolist() == [[2, 3], [4, 5], [0, 1]]
    assert data["paper"].y.tolist() == [2, 3, 1]
    assert data["author", "writes", "paper"].edge_index.tolist() == [[2, 0], [1, 2]]


def test_a_table_of_nodes_that_are_numbered_already(convert):
    Path("e.csv").write_text("a,b\n1,0\n")
    Path("n.csv").write_text("id,y\n2,5\n0,3\n1,4\n")
    convert("e.csv", "g", "--nodes", "n.csv", "--ids", "keep")
    data = manyhop_pyg.open("g")
    assert data.y.tolist() == [3, 4, 5]
    assert data.num_nodes == 3
    assert files.open_graph("g").nodes["_N"].ids is None


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("id,y\nann,1\nbob,2\n", [], "expected a row for each id that edges have, got none for 'cy'. Add 1 rows"),
        ("id,y\nann,1\ncy,1\nbob,2\nann,2\n", [], "expected each id once, got duplicates in rows 0 and 3"),
        ("id,y\nann,1\n", ["--node-id", "name"], "expected a column of ['id', 'y'], got 'name'. See --node-id"),
        ("id,y\nann,1\ncy,\nbob,2\n", [], "no value"),
        ("id,y\n1,1\n", [], "one kind"),
    ],
)
def test_tables_of_nodes_that_are_refused(table, options, message, convert):
    Path("e.csv").write_text("a,b\nann,cy\nbob,ann\n")
    Path("n.csv").write_text(table)
    convert("e.csv", "g", "--nodes", "n.csv", *options, fails=message)
    assert not Path("g").exists()


def test_arguments_about_nodes_that_are_refused(convert):
    Path("e.csv").write_text("a,b\n1,0\n")
    Path("n.csv").write_text("id,y\n1,5\n3,3\n")
    files.write("y.npy", torch.zeros(2))
    Path("x.bin").write_bytes(bytes(24))
    table = ("--nodes", "n.csv")
    raw = "x.bin="
    for options, message in [
        (("--nodes", "y.npy"), "CSV or Parquet file as a table of nodes. See --node-tensor"),
        (("--nodes", "a=n.csv"), "--nodes FILE"),
        ((*table, *table), "once per node type"),
        (("--node-id", "id"), "only with --nodes"),
        ((*table, "--ids", "keep"), "expected the ids 0 to 1 in 2 rows, got 1 to 3"),
        (("--raw", f"{raw}float32"), "another argument names"),
        (("--raw", f"{raw}float32,0"), "--raw FILE=DTYPE"),
        (("--raw", f"{raw}float99", "--node-tensor", "x=x.bin"), "expected a dtype of"),
        (("--raw", f"{raw}float32,5", "--node-tensor", "x=x.bin"), "rows of 20 bytes"),
        (("--node-tensor", "x=x.bin"), "--raw"),
    ]:
        convert("e.csv", "g", *options, fails=message)
    Path("n.csv").write_text("id,y\n1,5\n0,3\n")
    convert("e.csv", "g", *table, "--node-tensor", "y=y.npy", fails="rename one of them")


def test_raw_files(convert):
    ends = np.array([[0, 2], [1, 2], [3, 0]], np.int32)
    x = np.arange(12, dtype=np.float16).reshape(4, 3)
    ends.tofile("pairs.bin")
    np.ascontiguousarray(ends.T).tofile("flat.bin")
    x.tofile("x.bin")
    np.arange(4, dtype=np.int64).tofile("y.bin")
    for name, width in (("pairs", ",2"), ("flat", "")):
        options = ["--raw", f"{name}.bin=int32{width}"]
        options += ["--raw", "x.bin=float16,3", "--node-tensor", "x=x.bin"]
        options += ["--raw", "y.bin=int64", "--node-tensor", "y=y.bin"]
        convert(f"{name}.bin", name, *options)
        data = manyhop_pyg.open(name)
        assert data.edge_index.tolist() == [[3, 0, 1], [0, 2, 2]]
        assert data.x.equal(torch.from_numpy(x))
        assert data.y.tolist() == [0, 1, 2, 3]


# Larger than memory


@pytest.mark.slow
@pytest.mark.parametrize("form", ["npy", "parquet", "csv"])
def test_files_larger_than_memory(form):
    """The process may allocate less than the edges take."""
    g = np.random.default_rng(0)
    n, num_edges, allowed = 50_000, 5_000_000 if form == "csv" else 3_500_000, (120 if form == "csv" else 92) << 20
    ends = g.integers(0, n, (2, num_edges)) + (10**10 if form == "csv" else 0)  # sparse: these are mapped
    if form == "npy":
        np.save("e.npy", ends)
        np.save("small.npy", ends[:, :9])
    else:
        import pyarrow.csv

        for name, count in (("small", 9), ("e", num_edges)):
            table = arrow.table({"a": ends[0, :count], "b": ends[1, :count]})
            if form == "csv":
                pyarrow.csv.write_csv(table, f"{name}.csv")
            else:
                parquet.write_table(table, f"{name}.parquet", row_group_size=1 << 19)
    assert ends.nbytes + 20 * num_edges > 1.3 * allowed  # of ids, and in the target
    script = """
        import resource, sys
        import numpy, pyarrow.csv, pyarrow.parquet, torch
        from manyhop_tools.cli import main
        assert main(["convert", sys.argv[1], sys.argv[3] + "-first"]) == 0  # starts all threads
        used = int(next(s for s in open("/proc/self/status") if s.startswith("VmData")).split()[1]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (used + ALLOWED,) * 2)
        try:
            numpy.ones(ALLOWED * 5 // 4, numpy.uint8)
        except MemoryError:
            sys.exit(main(["convert", *sys.argv[2:]]))
        sys.exit("the limit has no effect")
    """
    script = textwrap.dedent(script).replace("ALLOWED", str(allowed))
    paths = [f"small.{form}", f"e.{form}", "g"]
    command = [sys.executable, "-c", script, *paths, "--memory", "24MiB"]
    # Allocators reserve more than they use, each thread for itself.
    env = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    assert run.returncode == 0, run.stderr
    (edges,) = files.open_graph("g").edges.values()
    order = np.argsort(ends[1], kind="stable")
    expected = ends[:, order] - (10**10 if form == "csv" else 0)
    assert edges.edge_index.read().equal(torch.from_numpy(expected))  # all ids occur
