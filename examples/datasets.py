"""The graphs that the examples train on, as plain tensors.

    movies       films and their people, from the SQLite file in the PyPI wheel bokeh_sampledata (CC0)
    ogbn-arxiv   papers and their citations, downloaded from the Open Graph Benchmark

``load(name)`` returns a ``Graph`` with

    x            [num_nodes, num_features] float32: features of a node without its edges
    degree       [num_nodes, num_kinds] float32: log(1 + number of edges of each kind that end at a node)
    y            [num_nodes] int64: the class of a node, -1 if it has none
    edge_index   [2, num_edges] int64: from film to person, from paper to cited paper
    target       [num_edges] bool: the edges that link prediction predicts (movies: a part of the cast; else all)
    train_mask, val_mask, test_mask   [num_nodes] bool: disjoint sets of nodes with a class

``graph.to_pyg()`` returns PyG's ``Data``; for DGL: ``dgl.graph(tuple(graph.edge_index), num_nodes=graph.num_nodes)``.
"""

import collections
import contextlib
import importlib.util
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("movies", "ogbn-arxiv")
ROLES = ("Cast", "Director", "Writer")
ARXIV_URL = "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"


class Graph(SimpleNamespace):
    """Tensors by their names."""

    @property
    def num_nodes(self) -> int:
        return self.x.size(0)

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    @property
    def num_features(self) -> int:
        return self.x.size(1)

    def to_pyg(self) -> Any:
        """A ``torch_geometric.data.Data`` with the same tensors."""
        from torch_geometric.data import Data

        return Data(**vars(self))


class Links(NamedTuple):
    """Edges to predict, and how often each node should be an end of a negative."""

    edges: Tensor
    """[2, num_links] int64."""

    src_weight: Tensor
    """[num_nodes] float32: how many of these edges start at a node."""

    dst_weight: Tensor
    """[num_nodes] float32: how many of them end there."""

    def to_pyg(self) -> dict[str, Any]:
        """Arguments of a PyG loader."""
        from torch_geometric.sampler import NegativeSampling

        negatives = NegativeSampling("binary", src_weight=self.src_weight, dst_weight=self.dst_weight)
        return {"edge_label_index": self.edges, "neg_sampling": negatives}


def load(name: str) -> Graph:
    """The dataset called ``name``. Raises SystemExit, saying what to do, where it cannot be had."""
    return {"movies": movies, "ogbn-arxiv": ogbn_arxiv}[name]()


def movies(min_films: int = 1000, min_roles: int = 5) -> Graph:
    """17,472 films, 63,815 people, 234,371 edges. The class of a film is the genre named first, of those that are named
    first by at least ``min_films`` films (7 genres, 13,732 films). Link prediction asks for the cast of a film, as far
    as they play in at least ``min_roles`` films. Features, of films only: year (as 16 bumps), running time, first
    country and first language."""
    spec = importlib.util.find_spec("bokeh_sampledata")
    if spec is None or spec.origin is None:
        raise SystemExit("The movies dataset is a file of a PyPI package. Run: pip install bokeh_sampledata==2026.1")
    with contextlib.closing(sqlite3.connect(Path(spec.origin).parent / "_data" / "movies.db")) as database:
        columns = "Genre, Year, Runtime, Country, Language, " + ", ".join(f'"{role}"' for role in ROLES)
        genre, year, runtime, country, language, *roles = zip(
            *database.execute(f"SELECT {columns} FROM omdb"), strict=True
        )
    num_films = len(year)
    people: dict[str, int] = {}
    edges = []
    for kind, column in enumerate(roles):
        for film, names in enumerate(column):
            for name in dict.fromkeys(filter(None, (names or "").split(", "))):
                edges.append((film, num_films + people.setdefault(name, len(people)), kind))
    src, dst, kind = torch.tensor(edges).t()
    num_nodes = num_films + len(people)

    bumps = torch.exp(-(((torch.tensor(year)[:, None] - torch.arange(1940, 2016, 5)) / 5) ** 2))
    minutes = torch.tensor([minutes or 0 for minutes in runtime])[:, None]
    features = [torch.ones(num_films, 1), bumps, minutes / 100, minutes == 0, one_hot(country), one_hot(language)]
    x = F.pad(torch.cat(features, dim=1).float(), (0, 0, 0, len(people)))
    degree = sum_by_kind(src, kind, len(ROLES), num_nodes) + sum_by_kind(dst, kind, len(ROLES), num_nodes)
    y = F.pad(class_ids([first(names) for names in genre], min_films), (0, len(people)), value=-1)
    cast = kind == ROLES.index("Cast")
    target = cast & (torch.bincount(dst[cast], minlength=num_nodes) >= min_roles)[dst]
    return with_split(Graph(x=x, degree=degree.log1p(), y=y, edge_index=torch.stack([src, dst]), target=target))


def ogbn_arxiv(root: Path = Path(__file__).parent / "data") -> Graph:
    """169,343 papers, 1,166,243 citations, 40 subjects; split by year of publication. Cached below ``root``."""
    folder, cache = root / "arxiv", root / "arxiv.pt"
    if cache.exists():
        return Graph(**torch.load(cache))
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(ARXIV_URL, str(root / "arxiv.zip"))
        except OSError as error:
            raise SystemExit(f"ogbn-arxiv cannot be downloaded from {ARXIV_URL}: {error}") from error
        shutil.unpack_archive(root / "arxiv.zip", root)
    y = read_csv(folder / "raw" / "node-label.csv.gz", np.int64).flatten()
    edge_index = read_csv(folder / "raw" / "edge.csv.gz", np.int64).t().contiguous()
    data = Graph(x=read_csv(folder / "raw" / "node-feat.csv.gz", np.float32), y=y, edge_index=edge_index)
    data.target = torch.ones(edge_index.size(1), dtype=torch.bool)
    data.degree = torch.stack([torch.bincount(end, minlength=y.numel()) for end in edge_index], dim=1).log1p()
    for mask, file in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        setattr(data, mask, torch.zeros(y.numel(), dtype=torch.bool))
        getattr(data, mask)[read_csv(folder / "split" / "time" / f"{file}.csv.gz", np.int64).flatten()] = True
    torch.save(vars(data), cache)
    return data


def show_classes(data: Graph) -> Graph:
    """The graph with both directions of each edge, and in ``x`` also the degree and, last, the class of each training
    node ([num_nodes, num_classes]: 1 where it is the class, else 0)."""
    classes = F.one_hot(data.y.clamp(min=0)) * data.train_mask[:, None]
    x = torch.cat([data.x, data.degree, classes], dim=1)
    pairs = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
    keys = torch.unique(pairs[0] * data.num_nodes + pairs[1])  # sorted, each once
    edge_index = torch.stack([keys // data.num_nodes, keys % data.num_nodes])
    return Graph(**{**vars(data), "x": x, "edge_index": edge_index})


def split_links(data: Graph, seed: int = 0) -> tuple[Graph, dict[str, Links]]:
    """Splits the target edges: 80 % to train on, 10 % to validate, 10 % to test.

    Returns the graph without the edges to validate and to test, and the links of "train", "val" and "test". The graph
    has the training edges
    first, then what is no target, then all of these the other way round: the training edge i is the graph's edge i, and
    edge i + num_edges / 2 is its reverse.

    A negative joins the ends of two edges of its own split. Ends drawn from all target edges would let a model tell
    negatives by what it has been trained on: nodes that training edges never show would be seen as negatives alone."""
    target = data.edge_index[:, data.target]
    order = torch.randperm(target.size(1), generator=torch.Generator().manual_seed(seed))
    val, test, train = order.tensor_split([int(target.size(1) * share) for share in (0.1, 0.2)])
    graph = torch.cat([target[:, train], data.edge_index[:, ~data.target]], dim=1)
    links = {}
    for split, edges in {"train": target[:, train], "val": target[:, val], "test": target[:, test]}.items():
        src_weight, dst_weight = (torch.bincount(end, minlength=data.num_nodes).float() for end in edges)
        links[split] = Links(edges, src_weight, dst_weight)
    return Graph(x=data.x, edge_index=torch.cat([graph, graph.flip(0)], dim=1)), links


def class_ids(names: Sequence[str | None], min_count: int) -> Tensor:
    """[len(names)] int64: classes from 0, the largest first; -1 for None and for classes of less than ``min_count``."""
    counts = collections.Counter(name for name in names if name is not None)
    ids = {name: i for i, (name, count) in enumerate(counts.most_common()) if count >= min_count}
    return torch.tensor([ids.get(name, -1) for name in names])


def first(names: str | None) -> str | None:
    """The first of several names in one string."""
    return (names or "").split(", ")[0] or None


def one_hot(names: Sequence[str | None], min_count: int = 20) -> Tensor:
    """[len(names), num_classes] int64: the first name in each string; zeros where it is rare or missing."""
    ids = class_ids([first(name) for name in names], min_count)
    return F.one_hot(ids + 1)[:, 1:]


def sum_by_kind(node: Tensor, kind: Tensor, num_kinds: int, num_nodes: int) -> Tensor:
    """[num_nodes, num_kinds] float32: how many edges of each kind end at each node."""
    return torch.bincount(node * num_kinds + kind, minlength=num_nodes * num_kinds).view(num_nodes, num_kinds).float()


def with_split(data: Graph) -> Graph:
    """Adds masks of 60, 20 and 20 % of the nodes with a class, always the same."""
    place = torch.rand(data.num_nodes, generator=torch.Generator().manual_seed(0))
    for mask, low, high in (("train_mask", 0.0, 0.6), ("val_mask", 0.6, 0.8), ("test_mask", 0.8, 1.0)):
        setattr(data, mask, (data.y >= 0) & (place >= low) & (place < high))
    return data


def read_csv(path: Path, dtype: type) -> Tensor:
    """A compressed table of numbers without a header."""
    return torch.from_numpy(np.loadtxt(path, dtype=dtype, delimiter=",", ndmin=2))
