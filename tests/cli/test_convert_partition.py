"""``manyhop convert --partition``: nodes numbered by part."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import manyhop_pyg
from manyhop import files
from manyhop.errors import InputError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_all_of_a_graph_is_numbered_anew(convert):
    g = torch.Generator().manual_seed(0)
    data = HeteroData(classes=3, pairs=torch.tensor([[0, 1]]))
    data["a"].x = torch.rand(30, 2, generator=g).bfloat16()
    data["a"].train_mask = torch.arange(30) < 9
    data["b"].y, data["b"].num_nodes = torch.arange(20), 20
    data["b"].best_index = torch.tensor([3, -1])
    ends = torch.stack([torch.randint(n, (200,), generator=g) for n in (30, 20)])
    data["a", "to", "b"].edge_index = ends
    data["a", "to", "b"].time = torch.arange(200)
    data["a", "to", "b"].edge_label_index = torch.tensor([[1, 29], [19, 0]])
    data["b", "to", "b"].edge_index = ends[1].view(2, 100)
    torch.save(data, "d.pt")
    parts = {"a": torch.randint(4, (30,), generator=g), "b": torch.randint(3, (20,), generator=g).int()}
    options = []
    for name, part in parts.items():
        files.write(f"{name}.npy", part)
        options += ["--partition", f"{name}={name}.npy"]
    error = convert("d.pt", "g", "--crc32", *options).err
    assert "'pairs' may hold node ids" in error
    assert "equal slices" in error
    graph, opened = files.open_graph("g"), manyhop_pyg.open("g")
    graph.verify()
    source = {name: torch.from_numpy(np.load(nodes.ids)) for name, nodes in graph.nodes.items()}
    for name, part in parts.items():
        assert source[name].equal(part.sort(stable=True).indices)
    assert opened["a"].x.equal(data["a"].x[source["a"]])
    assert opened["a"].train_mask.equal(source["a"] < 9)
    assert opened["b"].y.equal(source["b"])
    index = opened["b"].best_index
    assert (source["b"][index[0]], index[1]) == (3, -1)
    edges = opened["a", "to", "b"]
    for key, which in (("edge_index", edges.time), ("edge_label_index", slice(None))):
        found = torch.stack([source["a"][edges[key][0]], source["b"][edges[key][1]]])
        assert found.equal(data["a", "to", "b"][key][:, which])
    found = source["b"][opened["b", "to", "b"].edge_index]
    assert sorted(found.T.tolist()) == sorted(ends[1].view(2, 100).T.tolist())
    assert (opened.classes, opened.pairs.tolist()) == (3, [[0, 1]])

    # Once more: ids stay those of the first source, types without a partition keep their order.
    files.write("again.npy", torch.arange(29, -1, -1))
    convert("g", "g2", "--partition", "a=again.npy")
    again = files.open_graph("g2")
    assert np.load(again.nodes["a"].ids).tolist() == source["a"].flip(0).tolist()
    assert np.load(again.nodes["b"].ids).tolist() == source["b"].tolist()
    edges = manyhop_pyg.open("g2")["a", "to", "b"]
    found = torch.stack([source["a"].flip(0)[edges.edge_label_index[0]], source["b"][edges.edge_label_index[1]]])
    assert found.equal(data["a", "to", "b"].edge_label_index)


def test_ids_that_are_texts_follow(convert):
    Path("e.csv").write_text("a,b\nann,cy\nbob,ann\n")
    files.write("p.npy", torch.tensor([1, 1, 0]))
    convert("e.csv", "g", "--partition", "p.npy")
    graph = files.open_graph("g")
    names = parquet.read_table(graph.nodes["_N"].ids)["id"].to_pylist()
    assert names == ["cy", "ann", "bob"]
    (edges,) = graph.edges.values()
    assert sorted([names[i] for i in edge] for edge in edges.edge_index.read().T.tolist()) == [
        ["ann", "cy"],
        ["bob", "ann"],
    ]


def test_a_folder_of_columns_alone(convert):
    """As somebody may write it by hand: no edge_index; ids of nodes that do not fit."""
    torch.save(Data(num_nodes=3, edge_index=torch.tensor([[2, 0], [0, 1]])), "d.pt")
    files.write("p.npy", torch.tensor([1, 1, 0]))
    convert("d.pt", "g")
    path = Path("g") / "manyhop.json"
    manifest = json.loads(path.read_text())
    del manifest["edges"][0]["edge_index"]
    path.write_text(json.dumps(manifest))
    convert("g", "g2", "--partition", "p.npy")
    assert manyhop_pyg.open("g2").edge_index.tolist() == [[0, 1], [1, 2]]
    files.write(Path("g") / "few.npy", torch.arange(2))
    manifest["nodes"][0]["ids"] = "few.npy"
    path.write_text(json.dumps(manifest))
    convert("g", "g3", "--partition", "p.npy", fails="expected an id for each of 3 nodes, got 2")


def test_metis(convert):
    pytest.importorskip("pymetis")
    g = np.random.default_rng(0)
    group = g.permutation(np.arange(601) % 6)
    members = [np.flatnonzero(group == k) for k in range(6)]
    src = g.integers(0, 601, 6000)
    dst = np.array([g.choice(members[group[s]]) for s in src])
    data = Data(num_nodes=601, group=torch.from_numpy(group), edge_index=torch.from_numpy(np.stack([src, dst])))
    torch.save(data, "d.pt")
    assert "METIS: 3 parts; " in convert("d.pt", "g", "--partition", "3").err
    opened = manyhop_pyg.open("g")
    slices = [601 * k // 3 for k in range(1, 3)]
    there = np.searchsorted(slices, opened.edge_index.numpy(), side="right")
    assert (there[0] != there[1]).mean() < 0.05  # two groups make a slice; by chance it is two thirds
    source = np.load(Path("g") / "_N.ids.npy")
    assert sorted(source) == list(range(601))
    assert opened.group.tolist() == group[source].tolist()
    torch.save(Data(x=torch.zeros(4, 1), edge_index=torch.tensor([[1], [1]])), "loop.pt")
    for argv, message in [
        (("d.pt", "602"), "Expected 2 to 601 parts"),
        (("loop.pt", "2"), "Expected edges between different nodes"),
    ]:
        convert(argv[0], "bad", "--partition", argv[1], fails=message)
    assert not Path("bad").exists()


def test_partitions_that_are_refused(convert):
    torch.save(Data(x=torch.zeros(4, 1), edge_index=torch.tensor([[0], [1]])), "d.pt")
    Path("e.csv").write_text("a,b\n1,0\n")
    for name, values in [("short", [0, 1]), ("whole", [0] * 4), ("negative", [0, -1, 0, 0]), ("floats", [0.0] * 4)]:
        files.write(f"{name}.npy", torch.tensor(values))
    for source, options, message in [
        ("d.pt", ["short.npy"], "integers of shape [4], got torch.int64 of shape [2]"),
        ("d.pt", ["negative.npy"], "expected parts 0, 1, 2, ..., got -1"),
        ("d.pt", ["floats.npy"], "got torch.float32"),
        ("d.pt", ["none.npy"], "no such file"),
        ("d.pt", [2, 3], "--partition N, once"),
        ("d.pt", ["whole.npy"] * 2, "once per node type"),
        ("d.pt", ["x=short.npy"], "or --partition FILE"),
        ("u,to,v=e.csv", ["short.npy"], "or --partition TYPE=FILE"),
        ("u,to,v=e.csv", ["w=short.npy"], "node type of ['u', 'v'], got 'w'"),
    ]:
        argv = [str(option) for value in options for option in ("--partition", value)]
        convert(source, "g", *argv, fails=message)
        assert not Path("g").exists()
    convert("d.pt", "g")
    convert("g", "g2", fails="or pass --partition to renumber its nodes")


def test_a_manifest_with_damaged_node_ids(convert):
    torch.save(Data(num_nodes=2, edge_index=torch.tensor([[0], [1]]), my_index=torch.tensor([1, 0, 1])), "d.pt")
    convert("d.pt", "g")
    path = Path("g") / "manyhop.json"
    manifest = json.loads(path.read_text())
    assert manifest["others"]["node_ids"] == {"my_index": ["_N"]}
    for damaged in (
        {"my_index": ["_N", "_N"]},
        {"my_index": [1]},
        {"other": ["_N"]},
        {"my_index": 3},
    ):
        manifest["others"]["node_ids"] = damaged
        path.write_text(json.dumps(manifest))
        with pytest.raises(InputError, match="node_ids"):
            files.open_graph("g")
