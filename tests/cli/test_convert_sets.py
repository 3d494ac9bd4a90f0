"""``manyhop convert`` of OGB's sets, of MAG240M and of IGB, in folders of their layout."""

import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import manyhop_pyg
from manyhop import files

pytest.importorskip("pyarrow")
MASKS = {"train_mask": [0, 5], "val_mask": [1], "test_mask": [2, 19]}


def csv(path, rows, header=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    np.savetxt(text, np.atleast_2d(rows), delimiter=",", fmt="%s", header=header, comments="")
    path.write_bytes(gzip.compress(text.getvalue().lstrip("\n").encode()))


def column(values):
    return np.asarray(values).reshape(-1, 1)


def splits(folder, train, valid, test):
    for name, ids in (("train", train), ("valid", valid), ("test", test)):
        csv(folder / f"{name}.csv.gz", column(ids))


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


@pytest.fixture
def arxiv():
    """The folder of raw files, and what they are to contain."""
    g = np.random.default_rng(0)
    found = {"edge": g.integers(0, 20, (100, 2)), "x": g.standard_normal((20, 3)).astype(np.float32)}
    found["y"], found["year"] = g.integers(0, 4, 20), g.integers(2000, 2020, 20)
    found["edge_attr"] = g.standard_normal((100, 2)).astype(np.float32)
    raw = Path("ogb") / "raw"
    splits(raw.parent / "split" / "time", *MASKS.values())
    return raw, found


def write_csv(raw, found):
    csv(raw / "edge.csv.gz", found["edge"])
    csv(raw / "num-node-list.csv.gz", [20])
    csv(raw / "num-edge-list.csv.gz", [100])
    csv(raw / "node-feat.csv.gz", found["x"])
    csv(raw / "edge-feat.csv.gz", found["edge_attr"])
    csv(raw / "node-label.csv.gz", column(found["y"]))
    csv(raw / "node_year.csv.gz", column(found["year"]))


def write_npz(raw, found, save):
    raw.mkdir(parents=True)
    save(
        raw / "data.npz", edge_index=found["edge"].T, node_feat=found["x"], node_year=column(found["year"]),
        edge_feat=found["edge_attr"], num_nodes_list=np.array([20]), num_edges_list=np.array([100]),
    )  # fmt: skip
    found["y"] = np.where(np.arange(20) % 2, np.nan, found["y"]).astype(np.float32)
    save(raw / "node-label.npz", node_label=column(found["y"]))


@pytest.mark.parametrize("save", [None, np.savez, np.savez_compressed], ids=["csv", "npz", "compressed"])
def test_ogb(arxiv, convert, save):
    raw, found = arxiv
    if save is None:
        write_csv(raw, found)
    else:
        write_npz(raw, found, save)
    convert("ogb", "g")
    convert("ogb", "both", "--both-ways")
    doubled = found["edge"].repeat(2, 0)
    doubled[1::2] = doubled[1::2, ::-1]
    for name, edge, attr in (
        ("g", found["edge"], found["edge_attr"]),
        ("both", doubled, found["edge_attr"].repeat(2, 0)),
    ):
        data, order = manyhop_pyg.open(name), np.argsort(edge[:, 1], kind="stable")
        assert np.array_equal(data.edge_index.numpy(), edge[order].T)
        assert np.array_equal(data.edge_attr.numpy(), attr[order])
        assert np.array_equal(data.x.numpy(), found["x"])
        assert data.node_year.view(-1).tolist() == found["year"].tolist()
        assert data.y.dtype == (torch.int64 if save is None else torch.float32)
        assert np.array_equal(data.y.numpy(), found["y"], equal_nan=save is not None)
        assert {name: data[name].nonzero().view(-1).tolist() for name in MASKS} == MASKS


def test_ogb_heterogeneous(convert):
    raw, g = Path("ogb") / "raw", np.random.default_rng(0)
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
    splits(Path("ogb") / "split" / "time" / "paper", [0], [1], [2])
    convert("ogb", "g")
    data = manyhop_pyg.open("g")
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


def test_ogb_damage(arxiv, convert):
    raw, found = arxiv
    write_csv(raw, found)
    splits(raw.parent / "split" / "other", [0], [1], [3])
    convert("ogb", "g", fails="choose with --split, one of ['other', 'time']")
    convert("ogb", "g", "--split", "random", fails="expected a split of ['other', 'time']")
    convert("ogb", "g", "--split", "other")
    assert manyhop_pyg.open("g").test_mask.nonzero().view(-1).tolist() == [3]
    for name, array, message in [
        ("node-feat", found["x"][:19], "20 rows, one per node"),
        ("edge-feat", found["edge_attr"][:99], "row for each edge"),
        ("edge", found["edge"][:99], "99 rows, one per edge"),
        ("edge", found["edge"] + 1, "in [0, 20)"),
        ("num-node-list", column([10, 10]), "expected one graph"),
    ]:
        before = (raw / f"{name}.csv.gz").read_bytes()
        csv(raw / f"{name}.csv.gz", array)
        convert("ogb", "bad", "--split", "time", fails=message)
        (raw / f"{name}.csv.gz").write_bytes(before[:-20])
        convert("ogb", "bad", "--split", "time", fails="manyhop convert: ")
        (raw / f"{name}.csv.gz").write_bytes(before)
        assert not Path("bad").exists()
    splits(raw.parent / "split" / "time", [0], [1], [20])
    convert("ogb", "bad", "--split", "time", fails="expected nodes in [0, 20)")


@pytest.fixture
def links():
    raw, split = Path("collab") / "raw", Path("collab") / "split" / "time"
    csv(raw / "edge.csv.gz", [(0, 1), (1, 2), (3, 0)])
    csv(raw / "num-node-list.csv.gz", [(5,)])
    csv(raw / "edge_year.csv.gz", [(2001,), (2002,), (2003,)])
    split.mkdir(parents=True)
    edge = np.array([[0, 1], [3, 4]])
    torch.save({"edge": edge, "year": np.array([2001, 2003]), "weight": np.float64(2)}, split / "train.pt")
    for name in ("valid", "test"):
        torch.save({"edge": torch.tensor([[2, 4]]), "edge_neg": edge.astype(np.int32)}, split / f"{name}.pt")
    return "collab", split


def test_links(links, convert):
    folder, split = links
    convert(folder, "g")
    data = manyhop_pyg.open("g")
    assert data.edge_year.tolist() == [2003, 2001, 2002]
    assert data.train_edge.tolist() == [[0, 1], [3, 4]]
    assert (data.train_year.tolist(), data.train_weight) == ([2001, 2003], 2.0)
    assert data.val_edge.tolist() == data.test_edge.tolist() == [[2, 4]]
    assert data.val_edge_neg.tolist() == [[0, 1], [3, 4]]
    assert "train_mask" not in data
    files.write("p.npy", torch.tensor([1, 1, 0, 0, 1]))
    assert "'train_year' may hold node ids" in convert(folder, "g2", "--partition", "p.npy").err
    source = np.load(Path("g2") / "_N.ids.npy")
    assert source[manyhop_pyg.open("g2").train_edge].tolist() == [[0, 1], [3, 4]]

    parts = {name: {"source_node": torch.tensor([k])} for k, name in enumerate(("train", "valid", "test"))}
    torch.save(parts, split / "split_dict.pt")
    convert(folder, "g3")
    assert manyhop_pyg.open("g3").test_source_node.tolist() == [2]
    torch.save(parts | {"test": 3}, split / "split_dict.pt")
    convert(folder, "bad", fails="expected a dictionary of tensors for 'test', got int")
    (split / "split_dict.pt").write_bytes(pickle.dumps(gzip.open))
    convert(folder, "bad", fails="without unpickling")


def test_links_of_several_types(convert):
    raw, split = Path("kg") / "raw", Path("kg") / "split" / "random"
    csv(raw / "num-node-dict.csv.gz", [(3, 2)], header="drug,disease")
    csv(raw / "triplet-type-list.csv.gz", [("drug", "treats", "disease")])
    csv(raw / "relations" / "drug___treats___disease" / "edge.csv.gz", [(0, 1), (2, 0)])
    split.mkdir(parents=True)
    part = {"head_type": ["drug"], "head": np.array([2]), "tail_type": ["disease"], "tail": np.array([0])}
    for name in ("train", "valid", "test"):
        torch.save(part | {"relation": np.array([0])}, split / f"{name}.pt")
    convert("kg", "g")
    data = manyhop_pyg.open("g")
    assert (data.train_head_type.tolist(), data.train_tail_type.tolist()) == ([1], [0])  # alphabetical
    assert (data.train_head.tolist(), data.test_tail.tolist()) == ([2], [0])
    files.write("p.npy", torch.tensor([1, 1, 0]))
    convert("kg", "g2", "--partition", "drug=p.npy", fails="holds nodes of multiple types")
    torch.save(part | {"head_type": ["gene"]}, split / "test.pt")
    convert("kg", "g3", fails="expected node types of ['disease', 'drug'], got 'gene'")


def test_mag240m(convert):
    folder = Path("mag240m_kddcup2021")
    g = np.random.default_rng(0)
    features = g.standard_normal((6, 8)).astype(np.float16)
    save(folder / "processed" / "paper" / "node_feat.npy", features)
    save(folder / "processed" / "paper" / "node_label.npy", np.array([0, np.nan, 1, 2, np.nan, 0], np.float32))
    save(folder / "processed" / "paper" / "node_year.npy", np.arange(2000, 2006))
    cites = g.integers(0, 6, (2, 20))
    save(folder / "processed" / "paper___cites___paper" / "edge_index.npy", cites)
    save(folder / "processed" / "author___writes___paper" / "edge_index.npy", np.array([[0, 2], [5, 0]]))
    save(folder / "processed" / "author___affiliated_with___institution" / "edge_index.npy", np.array([[1], [1]]))
    torch.save({"paper": 6, "author": 4, "institution": 3, "num_classes": 153}, folder / "meta.pt")
    split = {
        "train": np.array([0, 2]),
        "valid": np.array([3]),
        "test-dev": np.array([1, 5]),
        "test-whole": np.arange(2),
    }
    torch.save(split, folder / "split_dict.pt")
    convert(folder, "g")
    data = manyhop_pyg.open("g")
    assert [(name, data[name].num_nodes) for name in data.node_types] == [
        ("author", 4),
        ("institution", 3),
        ("paper", 6),
    ]
    assert np.array_equal(data["paper"].x.numpy(), features)
    assert data["paper"].y.isnan().nonzero().view(-1).tolist() == [1, 4]
    assert data["paper"].node_year.tolist() == list(range(2000, 2006))
    assert data["paper"].test_mask.nonzero().view(-1).tolist() == [1, 5]
    assert data.num_classes == 153
    order = np.argsort(cites[1], kind="stable")
    assert np.array_equal(data["paper", "cites", "paper"].edge_index.numpy(), cites[:, order])
    torch.save(split | {"valid": np.array([6])}, folder / "split_dict.pt")
    convert(folder, "bad", fails="'valid': expected nodes in [0, 6), got 6 to 6")
    torch.save({"paper": "six"}, folder / "meta.pt")
    convert(folder, "bad", fails="meta.pt: expected a dictionary of the numbers")


def test_igb(convert):
    folder = Path("tiny") / "processed"
    cites = np.array([[0, 1], [2, 1], [3, 0]])
    save(folder / "paper__cites__paper" / "edge_index.npy", cites)
    features = np.arange(4 * 1024, dtype=np.float32).reshape(4, 1024)
    (folder / "paper").mkdir()
    features.tofile(folder / "paper" / "node_feat.npy")  # as in the large sizes
    np.arange(4, dtype=np.float32).tofile(folder / "paper" / "node_label_19.npy")
    save(folder / "paper" / "node_label_2K.npy", np.arange(4, 8))
    error = convert("tiny", "g").err
    assert "raw float32" in error
    assert "no split" in error
    data = manyhop_pyg.open("g")
    assert data.x.equal(torch.from_numpy(features))
    assert (data.y.tolist(), data.node_label_2K.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert data.edge_index.tolist() == [[3, 0, 2], [0, 1, 1]]

    save(folder / "paper__written_by__author" / "edge_index.npy", np.array([[3, 7], [0, 1]]))  # two pairs
    assert "'author' has no tensors: 8 nodes" in convert("tiny", "h").err
    assert manyhop_pyg.open("h")["paper", "written_by", "author"].edge_index.tolist() == [[0, 3], [1, 7]]
    (folder / "paper" / "node_feat.npy").write_bytes(bytes(4100))
    convert("tiny", "bad", fails="rows of 4096 bytes")
    save(folder / "paper__cites__paper" / "edge_index.npy", -cites)
    (folder / "paper__written_by__author" / "edge_index.npy").unlink()
    convert("tiny", "bad", fails="paper__written_by__author/edge_index.npy: ")  # before any edges are read
    (folder / "paper__cites").mkdir()
    convert("tiny", "bad", fails="of three names")
    assert not Path("bad").exists()
