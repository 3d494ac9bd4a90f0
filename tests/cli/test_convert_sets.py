"""``manyhop convert`` of OGB's sets of links, of MAG240M and of IGB, in folders of their layout."""

import gzip
import pickle

import numpy as np
import pytest
import torch

import manyhop_pyg
from manyhop import files
from manyhop_tools.cli import main

pytest.importorskip("pyarrow")


def convert(*argv):
    return main(["convert", *map(str, argv)])


def csv(path, rows, header=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = header + "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


@pytest.fixture
def links(tmp_path):
    raw, split = tmp_path / "collab" / "raw", tmp_path / "collab" / "split" / "time"
    csv(raw / "edge.csv.gz", [(0, 1), (1, 2), (3, 0)])
    csv(raw / "num-node-list.csv.gz", [(5,)])
    csv(raw / "edge_year.csv.gz", [(2001,), (2002,), (2003,)])
    split.mkdir(parents=True)
    edge = np.array([[0, 1], [3, 4]])
    torch.save({"edge": edge, "year": np.array([2001, 2003]), "weight": np.float64(2)}, split / "train.pt")
    for name in ("valid", "test"):
        torch.save({"edge": torch.tensor([[2, 4]]), "edge_neg": edge.astype(np.int32)}, split / f"{name}.pt")
    return tmp_path / "collab", split


def test_links(tmp_path, links, capsys):
    folder, split = links
    assert convert(folder, tmp_path / "g") == 0
    data = manyhop_pyg.open(tmp_path / "g")
    assert data.edge_year.tolist() == [2003, 2001, 2002]
    assert data.train_edge.tolist() == [[0, 1], [3, 4]]
    assert (data.train_year.tolist(), data.train_weight) == ([2001, 2003], 2.0)
    assert data.val_edge.tolist() == data.test_edge.tolist() == [[2, 4]]
    assert data.val_edge_neg.tolist() == [[0, 1], [3, 4]]
    assert "train_mask" not in data
    files.write(tmp_path / "p.npy", torch.tensor([1, 1, 0, 0, 1]))
    assert convert(folder, tmp_path / "g2", "--partition", tmp_path / "p.npy") == 0
    assert "'train_year' may hold node ids" in capsys.readouterr().err
    source = np.load(tmp_path / "g2" / "_N.ids.npy")
    assert source[manyhop_pyg.open(tmp_path / "g2").train_edge].tolist() == [[0, 1], [3, 4]]

    parts = {name: {"source_node": torch.tensor([k])} for k, name in enumerate(("train", "valid", "test"))}
    torch.save(parts, split / "split_dict.pt")
    assert convert(folder, tmp_path / "g3") == 0
    assert manyhop_pyg.open(tmp_path / "g3").test_source_node.tolist() == [2]
    torch.save(parts | {"test": 3}, split / "split_dict.pt")
    assert convert(folder, tmp_path / "bad") == 1
    assert "expected a dictionary of tensors for 'test', got int" in capsys.readouterr().err
    (split / "split_dict.pt").write_bytes(pickle.dumps(gzip.open))
    assert convert(folder, tmp_path / "bad") == 1
    assert "without unpickling" in capsys.readouterr().err


def test_links_of_several_types(tmp_path, capsys):
    raw, split = tmp_path / "kg" / "raw", tmp_path / "kg" / "split" / "random"
    csv(raw / "num-node-dict.csv.gz", [(3, 2)], header="drug,disease\n")
    csv(raw / "triplet-type-list.csv.gz", [("drug", "treats", "disease")])
    csv(raw / "relations" / "drug___treats___disease" / "edge.csv.gz", [(0, 1), (2, 0)])
    split.mkdir(parents=True)
    part = {"head_type": ["drug"], "head": np.array([2]), "tail_type": ["disease"], "tail": np.array([0])}
    for name in ("train", "valid", "test"):
        torch.save(part | {"relation": np.array([0])}, split / f"{name}.pt")
    assert convert(tmp_path / "kg", tmp_path / "g") == 0
    data = manyhop_pyg.open(tmp_path / "g")
    assert (data.train_head_type.tolist(), data.train_tail_type.tolist()) == ([1], [0])  # alphabetical
    assert (data.train_head.tolist(), data.test_tail.tolist()) == ([2], [0])
    files.write(tmp_path / "p.npy", torch.tensor([1, 1, 0]))
    assert convert(tmp_path / "kg", tmp_path / "g2", "--partition", f"drug={tmp_path / 'p.npy'}") == 1
    assert "holds nodes of multiple types" in capsys.readouterr().err
    torch.save(part | {"head_type": ["gene"]}, split / "test.pt")
    assert convert(tmp_path / "kg", tmp_path / "g3") == 1
    assert "expected node types of ['disease', 'drug'], got 'gene'" in capsys.readouterr().err


def test_mag240m(tmp_path, capsys):
    folder = tmp_path / "mag240m_kddcup2021"
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
    assert convert(folder, tmp_path / "g") == 0
    data = manyhop_pyg.open(tmp_path / "g")
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
    assert convert(folder, tmp_path / "bad") == 1
    assert "'valid': expected nodes in [0, 6), got 6 to 6" in capsys.readouterr().err
    torch.save({"paper": "six"}, folder / "meta.pt")
    assert convert(folder, tmp_path / "bad") == 1
    assert "meta.pt: expected a dictionary of the numbers" in capsys.readouterr().err


def test_igb(tmp_path, capsys):
    folder = tmp_path / "tiny" / "processed"
    cites = np.array([[0, 1], [2, 1], [3, 0]])
    save(folder / "paper__cites__paper" / "edge_index.npy", cites)
    features = np.arange(4 * 1024, dtype=np.float32).reshape(4, 1024)
    (folder / "paper").mkdir()
    features.tofile(folder / "paper" / "node_feat.npy")  # as in the large sizes
    np.arange(4, dtype=np.float32).tofile(folder / "paper" / "node_label_19.npy")
    save(folder / "paper" / "node_label_2K.npy", np.arange(4, 8))
    assert convert(tmp_path / "tiny", tmp_path / "g") == 0
    error = capsys.readouterr().err
    assert "raw float32" in error
    assert "no split" in error
    data = manyhop_pyg.open(tmp_path / "g")
    assert data.x.equal(torch.from_numpy(features))
    assert (data.y.tolist(), data.node_label_2K.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert data.edge_index.tolist() == [[3, 0, 2], [0, 1, 1]]

    save(folder / "paper__written_by__author" / "edge_index.npy", np.array([[3, 7], [0, 1]]))  # two pairs
    assert convert(tmp_path / "tiny", tmp_path / "h") == 0
    assert "'author' has no tensors: 8 nodes" in capsys.readouterr().err
    assert manyhop_pyg.open(tmp_path / "h")["paper", "written_by", "author"].edge_index.tolist() == [[0, 3], [1, 7]]
    (folder / "paper" / "node_feat.npy").write_bytes(bytes(4100))
    assert convert(tmp_path / "tiny", tmp_path / "bad") == 1
    assert "rows of 4096 bytes" in capsys.readouterr().err
    (folder / "paper__cites").mkdir()
    assert convert(tmp_path / "tiny", tmp_path / "bad") == 1
    assert "of three names" in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()
