"""How the examples read their data."""

import gzip
import importlib.util
import os
import shutil
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("datasets", Path(__file__).parents[2] / "examples" / "datasets.py")
datasets = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(datasets)


def test_movies():
    data = datasets.load("movies")
    assert data.num_nodes == 17_472 + 63_815
    assert data.edge_index.shape == (2, 234_371)
    src, dst = data.edge_index
    assert src.max() < 17_472 <= dst.min()
    assert data.y.unique().tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]
    assert int((data.y >= 0).sum()) == 13_732
    assert (data.y[17_472:] == -1).all()
    assert torch.isfinite(data.x).all()
    torch.testing.assert_close(data.degree.expm1().sum(), torch.tensor(2.0 * 234_371))
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert torch.equal(masks.sum(dim=0) == 1, data.y >= 0)
    assert masks.sum(dim=1).tolist() == [8188, 2770, 2774]


def test_movies_asks_for_people_of_several_films():
    data = datasets.load("movies")
    cast = torch.zeros(data.num_edges, dtype=torch.bool)
    cast[:194_343] = True  # of the three kinds the first
    films = data.edge_index[1, cast].bincount(minlength=data.num_nodes)
    assert torch.equal(data.target, cast & (films >= 5)[data.edge_index[1]])
    assert 0 < int(data.target.sum()) < 194_343


def test_split_links_puts_the_training_edges_first_and_leaves_the_others_out():
    data = datasets.load("movies")
    graph, links = datasets.split_links(data)
    n, num_edges = data.num_nodes, graph.num_edges // 2
    forth = graph.edge_index[:, :num_edges]
    assert torch.equal(graph.edge_index[:, num_edges:], forth.flip(0))
    train, val, test = (links[split].edges for split in ("train", "val", "test"))
    assert torch.equal(forth[:, : train.size(1)], train)

    def keys(*edges):
        return torch.cat([src * n + dst for src, dst in edges]).sort().values

    assert torch.equal(keys(train, val, test), keys(data.edge_index[:, data.target]))
    assert torch.equal(keys(forth, val, test), keys(data.edge_index))
    shares = [edges.size(1) / int(data.target.sum()) for edges in (train, val, test)]
    torch.testing.assert_close(shares, [0.8, 0.1, 0.1], rtol=0, atol=1e-4)
    assert not hasattr(graph, "degree")
    assert torch.equal(links["val"].src_weight, val[0].bincount(minlength=n).float())
    assert torch.equal(links["val"].dst_weight, val[1].bincount(minlength=n).float())


def test_show_classes_shows_those_of_training_nodes_only():
    data = datasets.load("movies")
    shown = datasets.show_classes(data)
    classes = shown.x[:, -7:]
    assert torch.equal(classes.sum(dim=1) == 1, data.train_mask)
    assert torch.equal(classes[data.train_mask].argmax(dim=1), data.y[data.train_mask])
    assert torch.equal(shown.x[:, : data.x.size(1)], data.x)
    assert shown.to_pyg().is_undirected()
    assert not data.to_pyg().is_undirected()


def test_ogbn_arxiv(tmp_path):
    tables = {
        "raw/edge": "0,1\n2,1\n3,0\n",
        "raw/node-feat": "0.5,1.0\n-1,0\n0,0\n2,2\n",
        "raw/node-label": "3\n0\n1\n0\n",
        "split/time/train": "0\n1\n",
        "split/time/valid": "3\n",
        "split/time/test": "2\n",
    }
    for name, text in tables.items():
        path = tmp_path / "arxiv" / f"{name}.csv.gz"
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    for _ in range(2):  # the second time from the cache
        data = datasets.ogbn_arxiv(tmp_path)
        assert data.edge_index.tolist() == [[0, 2, 3], [1, 1, 0]]
        assert data.x.dtype == torch.float32
        assert data.y.tolist() == [3, 0, 1, 0]
        assert data.train_mask.tolist() == [True, True, False, False]
        assert data.val_mask.tolist() == [False, False, False, True]
        assert data.test_mask.tolist() == [False, False, True, False]
        assert data.target.all()
        shutil.rmtree(tmp_path / "arxiv", ignore_errors=True)
