"""``manyhop convert`` of folders as OGB lays them out."""

import gzip
import io

import numpy as np
import pytest
import torch

import manyhop_pyg
from manyhop_tools.cli import main

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def convert(*argv):
    return main(["convert", *map(str, argv)])


def csv(path, array, header=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    np.savetxt(text, np.atleast_2d(array), delimiter=",", fmt="%s", header=header or "", comments="")
    path.write_bytes(gzip.compress(text.getvalue().lstrip("\n").encode()))


def column(values):
    return np.asarray(values).reshape(-1, 1)


def splits(folder, train, valid, test):
    for name, ids in (("train", train), ("valid", valid), ("test", test)):
        csv(folder / f"{name}.csv.gz", column(ids))


@pytest.fixture
def arxiv(tmp_path):
    g = np.random.default_rng(0)
    raw, found = tmp_path / "ogb" / "raw", {}
    found["edge"] = g.integers(0, 20, (100, 2))
    found["x"] = g.standard_normal((20, 3)).astype(np.float32)
    found["y"], found["year"] = g.integers(0, 4, 20), g.integers(2000, 2020, 20)
    found["edge_attr"] = g.standard_normal((100, 2)).astype(np.float32)
    return raw, found


MASKS = {"train_mask": [0, 5], "val_mask": [1], "test_mask": [2, 19]}


def check_ogb(folder, found, label=None):
    data = manyhop_pyg.open(folder)
    order = np.argsort(found["edge"][:, 1], kind="stable")
    assert np.array_equal(data.edge_index.numpy(), found["edge"][order].T)
    assert np.array_equal(data.edge_attr.numpy(), found["edge_attr"][order])
    assert np.array_equal(data.x.numpy(), found["x"])
    assert data.node_year.tolist() == found["year"].tolist()
    assert data.y.dtype == (torch.int64 if label is None else torch.float32)
    for name, ids in MASKS.items():
        assert data[name].nonzero().view(-1).tolist() == ids
    return data


def write_csv(raw, found):
    csv(raw / "edge.csv.gz", found["edge"])
    csv(raw / "num-node-list.csv.gz", [20])
    csv(raw / "num-edge-list.csv.gz", [100])
    csv(raw / "node-feat.csv.gz", found["x"])
    csv(raw / "edge-feat.csv.gz", found["edge_attr"])
    csv(raw / "node-label.csv.gz", column(found["y"]))
    csv(raw / "node_year.csv.gz", column(found["year"]))
    splits(raw.parent / "split" / "time", *MASKS.values())


def test_ogb_csv(tmp_path, arxiv):
    raw, found = arxiv
    write_csv(raw, found)
    assert convert(tmp_path / "ogb", tmp_path / "g") == 0
    data = check_ogb(tmp_path / "g", found)
    assert data.y.tolist() == found["y"].tolist()
    assert convert(tmp_path / "ogb", tmp_path / "both", "--both-ways") == 0
    both = manyhop_pyg.open(tmp_path / "both")
    assert both.num_edges == 200
    doubled = found["edge"].repeat(2, 0)
    doubled[1::2] = doubled[1::2, ::-1]
    order = np.argsort(doubled[:, 1], kind="stable")
    assert np.array_equal(both.edge_index.numpy(), doubled[order].T)
    assert np.array_equal(both.edge_attr.numpy(), found["edge_attr"].repeat(2, 0)[order])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_ogb_binary(tmp_path, arxiv, save):
    raw, found = arxiv
    raw.mkdir(parents=True)
    save(
        raw / "data.npz", edge_index=found["edge"].T, node_feat=found["x"], node_year=column(found["year"]),
        edge_feat=found["edge_attr"], num_nodes_list=np.array([20]), num_edges_list=np.array([100]),
    )  # fmt: skip
    label = column(np.where(np.arange(20) % 2, np.nan, found["y"])).astype(np.float32)
    save(raw / "node-label.npz", node_label=label)
    splits(tmp_path / "ogb" / "split" / "time", *MASKS.values())
    assert convert(tmp_path / "ogb", tmp_path / "g") == 0
    data = manyhop_pyg.open(tmp_path / "g")
    data.node_year = data.node_year.view(-1)
    assert np.array_equal(data.y.numpy(), label[:, 0], equal_nan=True)
    assert np.array_equal(data.x.numpy(), found["x"])
    order = np.argsort(found["edge"][:, 1], kind="stable")
    assert np.array_equal(data.edge_attr.numpy(), found["edge_attr"][order])
    for name, ids in MASKS.items():
        assert data[name].nonzero().view(-1).tolist() == ids


def test_ogb_heterogeneous(tmp_path):
    raw, g = tmp_path / "ogb" / "raw", np.random.default_rng(0)
    writes, cites = np.stack([g.integers(0, 5, 30), g.integers(0, 9, 30)], 1), g.integers(0, 9, (40, 2))
    csv(raw / "num-node-dict.csv.gz", [[9, 5]], header="paper,author")
    csv(raw / "triplet-type-list.csv.gz", [["author", "writes", "paper"], ["paper", "cites", "paper"]])
    csv(raw / "relations" / "author___writes___paper" / "edge.csv.gz", writes)
    csv(raw / "relations" / "author___writes___paper" / "num-edge-list.csv.gz", [30])
    csv(raw / "relations" / "paper___cites___paper" / "edge.csv.gz", cites)
    csv(raw / "relations" / "paper___cites___paper" / "edge_reltype.csv.gz", column(np.arange(40)))
    x = g.standard_normal((9, 3)).astype(np.float32)
    csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", x)
    csv(raw / "node-feat" / "paper" / "node_year.csv.gz", column(np.arange(9)))
    csv(raw / "node-label" / "paper" / "node-label.csv.gz", column(np.arange(9) % 3))
    splits(tmp_path / "ogb" / "split" / "time" / "paper", [0], [1], [2])
    assert convert(tmp_path / "ogb", tmp_path / "g") == 0
    data = manyhop_pyg.open(tmp_path / "g")
    assert data.node_types == ["author", "paper"]
    assert data["author"].num_nodes == 5
    assert np.array_equal(data["paper"].x.numpy(), x)
    assert data["paper"].y.tolist() == [0, 1, 2] * 3
    assert data["paper"].node_year.tolist() == list(range(9))
    assert data["paper"].val_mask.nonzero().view(-1).tolist() == [1]
    order = np.argsort(cites[:, 1], kind="stable")
    assert np.array_equal(data["paper", "cites", "paper"].edge_index.numpy(), cites[order].T)
    assert data["paper", "cites", "paper"].edge_reltype.tolist() == order.tolist()
    assert np.array_equal(np.sort(data["author", "writes", "paper"].edge_index[1].numpy()), np.sort(writes[:, 1]))


def test_ogb_damage(tmp_path, arxiv, capsys):
    raw, found = arxiv
    write_csv(raw, found)
    splits(raw.parent / "split" / "other", [0], [1], [3])
    assert convert(tmp_path / "ogb", tmp_path / "g") == 1
    assert "choose with --split, one of ['other', 'time']" in capsys.readouterr().err
    assert convert(tmp_path / "ogb", tmp_path / "g", "--split", "random") == 1
    assert "expected a split of ['other', 'time']" in capsys.readouterr().err
    assert convert(tmp_path / "ogb", tmp_path / "g", "--split", "other") == 0
    assert manyhop_pyg.open(tmp_path / "g").test_mask.nonzero().view(-1).tolist() == [3]
    for name, array, message in [
        ("node-feat", found["x"][:19], "20 rows, one per node"),
        ("edge-feat", found["edge_attr"][:99], "row for each edge"),
        ("edge", found["edge"][:99], "99 rows, one per edge"),
        ("edge", found["edge"] + 1, "in [0, 20)"),
        ("num-node-list", column([10, 10]), "expected one graph"),
    ]:
        before = (raw / f"{name}.csv.gz").read_bytes()
        csv(raw / f"{name}.csv.gz", array)
        assert convert(tmp_path / "ogb", tmp_path / "bad", "--split", "time") == 1
        assert message in capsys.readouterr().err
        (raw / f"{name}.csv.gz").write_bytes(before[:-20])
        assert convert(tmp_path / "ogb", tmp_path / "bad", "--split", "time") == 1
        assert "manyhop convert: " in capsys.readouterr().err
        (raw / f"{name}.csv.gz").write_bytes(before)
        assert not (tmp_path / "bad").exists()
    splits(raw.parent / "split" / "time", [0], [1], [20])
    assert convert(tmp_path / "ogb", tmp_path / "bad", "--split", "time") == 1
    assert "expected nodes in [0, 20)" in capsys.readouterr().err


# What is refused
