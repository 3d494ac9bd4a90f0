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
from manyhop_tools.cli import main

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def convert(*argv):
    return main(["convert", *map(str, argv)])


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


def test_csv_with_texts(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("from,to,w,note\nzoë,ann,1.5,x\nann,bob,2.5,y\nbob,ann,0.5,z\n", encoding="utf-8")
    assert convert(tmp_path / "e.csv", tmp_path / "g", "--edge-columns", "w", "--crc32") == 0
    printed = capsys.readouterr()
    assert "columns that are left out: note" in printed.err
    assert "Ids are mapped to 0 ... 2" in printed.err
    assert "3 nodes, 3 edges" in printed.out
    assert printed.out.splitlines()[-1].startswith(f"Open it with manyhop_pyg.open('{tmp_path / 'g'}')")
    assert edges_of(tmp_path / "g") == [("ann", "bob", 2.5), ("bob", "ann", 0.5), ("zoë", "ann", 1.5)]
    files.open_graph(tmp_path / "g").verify()
    data = manyhop_pyg.open(tmp_path / "g")
    assert data.num_nodes == 3
    assert data.edge_index.tolist() == [[2, 1, 0], [0, 0, 1]]
    assert data.w.tolist() == [1.5, 0.5, 2.5]


@pytest.mark.parametrize(
    "form",
    ["csv", "csv.gz", "tsv", "no header", "semicolon", "parquet", "npy", "npy of a transpose", "bin", "safetensors"],
)
def test_forms_of_the_same_edges(tmp_path, form):
    src, dst = torch.randint(0, 50, (2, 400))
    options = []
    if form in ("npy", "bin", "safetensors"):
        path = tmp_path / f"e.{form}"
        files.write(path, torch.stack([src, dst]))
    elif form == "npy of a transpose":
        path = tmp_path / "e.npy"
        np.save(path, torch.stack([src, dst], 1).numpy().T)
    elif form == "parquet":
        path = tmp_path / "e.parquet"
        parquet.write_table(arrow.table({"s": src.numpy(), "d": dst.int().numpy()}), path, row_group_size=70)
    else:
        mark = {"tsv": "\t", "semicolon": ";"}.get(form, ",")
        text = "" if form == "no header" else f"s{mark}d\n"
        text += "".join(f"{s}{mark}{d}\n" for s, d in zip(src.tolist(), dst.tolist(), strict=True))
        path = tmp_path / ("e." + (form if form in ("csv.gz", "tsv") else "csv"))
        path.write_bytes(gzip.compress(text.encode()) if form == "csv.gz" else text.encode())
        options = {"no header": ["--no-header"], "semicolon": ["--delimiter", ";"]}.get(form, [])
    assert convert(path, tmp_path / "g", *options, "--num-nodes", "60") == 0
    graph = files.open_graph(tmp_path / "g")
    order = dst.sort(stable=True).indices
    (edges,) = graph.edges.values()
    assert edges.edge_index.read().equal(torch.stack([src, dst])[:, order])
    assert graph.nodes["_N"].count == 60
    assert graph.nodes["_N"].ids is None


def test_columns_by_name_both_ways_and_tensors(tmp_path):
    table = arrow.table(
        {"w": [1.0, 2.0], "b": [0, 2], "a": [1, 0], "e": arrow.FixedSizeListArray.from_arrays([1, 2, 3, 4], 2)}
    )
    parquet.write_table(table, tmp_path / "e.parquet")
    x = torch.rand(4, 2)
    files.write(tmp_path / "x.npy", x)
    parquet.write_table(arrow.table({"y": [1, 2, 3, 4], "z": [0.0] * 4}), tmp_path / "n.parquet")
    options = ["--src", "a", "--dst", "b", "--edge-columns", "w,e", "--both-ways"]
    options += ["--node-tensor", f"x={tmp_path / 'x.npy'}", "--node-tensor", f"y={tmp_path / 'n.parquet'}:y"]
    assert convert(tmp_path / "e.parquet", tmp_path / "g", *options) == 0
    data = manyhop_pyg.open(tmp_path / "g")
    assert data.x.equal(x)
    assert data.y.tolist() == [1, 2, 3, 4]
    assert data.edge_index.tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]]
    assert data.w.tolist() == [1, 2, 1, 2]
    assert data.e.tolist() == [[1, 2], [3, 4], [1, 2], [3, 4]]


def test_heterogeneous_edges(tmp_path):
    (tmp_path / "w1.csv").write_text("a,p\nann,7\nbob,9\n")
    (tmp_path / "w2.csv").write_text("a,p\ncy,9\n")
    (tmp_path / "c.csv").write_text("p,q\n7,9\n-5,7\n")
    sources = [f"author,writes,paper={tmp_path / f'{name}.csv'}" for name in ("w1", "w2")]
    assert convert(*sources, f"paper,cites,paper={tmp_path / 'c.csv'}", tmp_path / "g") == 0
    graph = files.open_graph(tmp_path / "g")
    assert source_ids(graph.nodes["author"].ids) == ["ann", "bob", "cy"]
    assert source_ids(graph.nodes["paper"].ids) == [-5, 7, 9]
    assert list(graph.edges) == [("author", "writes", "paper"), ("paper", "cites", "paper")]
    data = manyhop_pyg.open(tmp_path / "g")
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
def test_sparse_integers_are_mapped(tmp_path, highest, options, mapped):
    (tmp_path / "e.csv").write_text(f"a,b\n5,{highest}\n")
    assert convert(tmp_path / "e.csv", tmp_path / "g", *options) == 0
    (nodes,) = files.open_graph(tmp_path / "g").nodes.values()
    assert nodes.count == (2 if mapped else highest + 1)
    assert (nodes.ids is not None) == mapped
    assert edges_of(tmp_path / "g") == [(5, highest)]


def test_many_ids(tmp_path):
    """More than are kept between merges, in several pieces, both as texts and as numbers."""
    g = np.random.default_rng(0)
    ids = g.integers(-(2**62), 2**62, 40_000)
    src, dst = g.choice(ids, (2, 100_000))
    for k, convert_id in enumerate([int, lambda i: f"n{i}"]):
        ends = [[convert_id(i) for i in end] for end in (src, dst)]
        parquet.write_table(arrow.table({"a": ends[0], "b": ends[1]}), tmp_path / "e.parquet", row_group_size=9000)
        assert convert(tmp_path / "e.parquet", tmp_path / f"g{k}") == 0
        assert edges_of(tmp_path / f"g{k}") == sorted(zip(*ends, strict=True))


def test_texts_as_dictionaries(tmp_path):
    table = arrow.table(
        {"a": arrow.array(["u", "v", "u"]).dictionary_encode(), "b": arrow.array(["v", "u", "u"], "large_string")}
    )
    parquet.write_table(table, tmp_path / "e.parquet")
    assert convert(tmp_path / "e.parquet", tmp_path / "g") == 0
    assert edges_of(tmp_path / "g") == [("u", "u"), ("u", "v"), ("v", "u")]


# PyG's files


def test_saved_data(tmp_path):
    data = Data(x=torch.randn(5, 2), edge_index=torch.tensor([[0, 1], [4, 3]]), name="n")
    torch.save(data, tmp_path / "d.pt")
    torch.save((data.to_dict(), None, Data), tmp_path / "processed.pt")
    torch.save(data, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("d", "processed", "old"):
        assert convert(tmp_path / f"{name}.pt", tmp_path / name) == 0
        opened = manyhop_pyg.open(tmp_path / name)
        assert opened.x.equal(data.x)
        assert opened.edge_index.tolist() == [[1, 0], [3, 4]]
        assert opened.name == "n"
    hetero = HeteroData()
    hetero["a"].x = torch.randn(3, 2)
    hetero["a", "to", "a"].edge_index = torch.tensor([[0], [2]])
    torch.save(hetero, tmp_path / "h.pt")
    assert convert(tmp_path / "h.pt", tmp_path / "h") == 0
    assert manyhop_pyg.open(tmp_path / "h")["a"].x.equal(hetero["a"].x)


class Evil:
    def __reduce__(self):
        return Path.touch, (Path(EVIL_TRACE),)


EVIL_TRACE = ""


@pytest.mark.parametrize("how", ["whole", "attribute", "plain pickle"])
def test_nothing_is_unpickled(tmp_path, monkeypatch, capsys, how):
    monkeypatch.setattr(sys.modules[__name__], "EVIL_TRACE", str(tmp_path / "trace"))
    data = Data(x=torch.zeros(1), edge_index=torch.zeros(2, 0, dtype=torch.int64), evil=Evil())
    if how == "plain pickle":
        (tmp_path / "d.pt").write_bytes(pickle.dumps(Evil()))
    else:
        torch.save(Evil() if how == "whole" else data, tmp_path / "d.pt")
    assert convert(tmp_path / "d.pt", tmp_path / "g") == 1
    assert "without unpickling" in capsys.readouterr().err
    assert not (tmp_path / "trace").exists()
    array = np.empty(1, dtype=object)
    array[0] = Evil()
    np.save(tmp_path / "e.npy", array, allow_pickle=True)
    assert convert(tmp_path / "e.npy", tmp_path / "g") == 1
    assert "never unpickled" in capsys.readouterr().err
    assert not (tmp_path / "trace").exists()


def test_other_pt_files(tmp_path, capsys):
    torch.save({"a": torch.zeros(1)}, tmp_path / "d.pt")
    assert convert(tmp_path / "d.pt", tmp_path / "g") == 1
    assert "expected one Data or HeteroData, got dict" in capsys.readouterr().err
    (tmp_path / "d.pt").write_bytes(b"")
    assert convert(tmp_path / "d.pt", tmp_path / "g") == 1
    assert "d.pt: cannot be read" in capsys.readouterr().err
    assert convert(tmp_path / "nope.pt", tmp_path / "g") == 1
    assert "no such file" in capsys.readouterr().err


# OGB's folders


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
def test_tables_that_are_refused(tmp_path, capsys, text, options, message):
    (tmp_path / "e.csv").write_text(text)
    assert convert(tmp_path / "e.csv", tmp_path / "g", *options) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "g").exists()


def test_arguments_that_are_refused(tmp_path, capsys):
    torch.save(Data(edge_index=torch.zeros(2, 1, dtype=torch.int64)), tmp_path / "d.pt")
    files.write(tmp_path / "e.npy", torch.zeros(3, 2, dtype=torch.int64))
    (tmp_path / "e.csv").write_text("a,b\n1,2\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "e.what").touch()
    for argv, message in [
        ([tmp_path / "d.pt", "--src", "a"], "--src has no meaning"),
        ([tmp_path / "d.pt", "--both-ways"], "--both-ways has no meaning"),
        ([tmp_path / "e.npy"], "integers of shape [2, num_edges] in one file, got torch.int64 of shape [3, 2]"),
        ([tmp_path / "e.npy", "--src", "a"], "no columns with names"),
        ([tmp_path / "folder"], "Name its files: manyhop convert "),
        ([tmp_path / "nope.csv"], "no such file"),
        ([tmp_path / "e.what"], "expected one of .npy"),
        ([tmp_path / "e.csv", f"a,b,c={tmp_path / 'e.csv'}"], "for all files or for none"),
        ([f"a,b,c={tmp_path / 'e.csv'}", "--both-ways"], "same node type"),
        ([f"a,b,c={tmp_path / 'e.csv'}", "--num-nodes", "7"], "--num-nodes TYPE=N"),
        ([f"a,b,c={tmp_path / 'e.csv'}", "--num-nodes", "d=7"], "expected the node types ['a', 'c'], got 'd'"),
    ]:
        assert convert(*argv, tmp_path / "g") == 1
        assert message.lower() in capsys.readouterr().err.lower()
    assert convert(tmp_path / "e.csv", tmp_path) == 1
    assert "an empty folder" in capsys.readouterr().err


# Larger than memory


@pytest.mark.slow
@pytest.mark.parametrize("form", ["npy", "parquet", "csv"])
def test_files_larger_than_memory(tmp_path, form):
    """The process may allocate less than the edges take."""
    g = np.random.default_rng(0)
    n, num_edges, allowed = 50_000, 5_000_000 if form == "csv" else 3_500_000, (120 if form == "csv" else 92) << 20
    ends = g.integers(0, n, (2, num_edges)) + (10**10 if form == "csv" else 0)  # sparse: these are mapped
    if form == "npy":
        np.save(tmp_path / "e.npy", ends)
        np.save(tmp_path / "small.npy", ends[:, :9])
    else:
        import pyarrow.csv

        for name, count in (("small", 9), ("e", num_edges)):
            table = arrow.table({"a": ends[0, :count], "b": ends[1, :count]})
            if form == "csv":
                pyarrow.csv.write_csv(table, tmp_path / f"{name}.csv")
            else:
                parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1 << 19)
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
    paths = [tmp_path / f"small.{form}", tmp_path / f"e.{form}", tmp_path / "g"]
    command = [sys.executable, "-c", script, *paths, "--memory", "24MiB"]
    # Allocators reserve more than they use, each thread for itself.
    env = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    assert run.returncode == 0, run.stderr
    (edges,) = files.open_graph(tmp_path / "g").edges.values()
    order = np.argsort(ends[1], kind="stable")
    expected = ends[:, order] - (10**10 if form == "csv" else 0)
    assert edges.edge_index.read().equal(torch.from_numpy(expected))  # all ids occur
