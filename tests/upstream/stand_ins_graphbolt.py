"""Folders with small random graphs, where GraphBolt's ``BuiltinDataset`` looks for them before it would download."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import yaml

NODES, EDGES, FEATURES, CLASSES = 600, 5000, 16, 5
NODE_CLASSIFICATION = ("ogbn-products", "ogbn-arxiv", "ogbn-arxiv-seeds", "ogbn-products-seeds", "ogbn-papers100M")
LINK_PREDICTION = ("ogbl-citation2", "ogbl-citation2-seeds")
BOTH = ("cora", "cora-seeds")
TYPED = ("ogbn-mag", "ogbn-mag-seeds", "ogb-lsc-mag240m", "ogb-lsc-mag240m-seeds")
PARTS = {"train": range(0, 360), "validation": range(360, 480), "test": range(480, 600)}


class Folder:
    """One dataset on its way to disk."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        path.mkdir(parents=True)

    def array(self, values: np.ndarray, **entry: Any) -> dict[str, Any]:
        """Write an array; return its entry in the description."""
        name = f"{self._count}.npy"
        self._count += 1
        np.save(self._path / name, values)
        return {"format": "numpy", "path": name, **entry}

    def describe(self, **contents: Any) -> None:
        (self._path / "metadata.yaml").write_text(yaml.safe_dump({"dataset_name": self._path.name, **contents}))


def _edges(random: np.random.Generator, sources: int, targets: int, count: int = EDGES) -> np.ndarray:
    """Every node is a source and a target: some scripts take the targets for the first sources, some layers refuse
    nodes without edges into them."""
    return np.stack([random.permutation(count) % nodes for nodes in (sources, targets)])


def _nodes_task(folder: Folder, **kind: Any) -> dict[str, Any]:
    task: dict[str, Any] = {"name": "node_classification", "num_classes": CLASSES}
    for part, ids in PARTS.items():
        seeds = np.array(ids)
        data = [folder.array(seeds, name="seeds"), folder.array(seeds % CLASSES, name="labels")]
        task[f"{part}_set"] = [{**kind, "data": data}]
    return task


def _links_task(folder: Folder, edges: np.ndarray, random: np.random.Generator) -> dict[str, Any]:
    """Pairs to train on; to test, each pair with 4 negatives, a label, and the number of its query."""
    task: dict[str, Any] = {"name": "link_prediction"}
    for part, ids in PARTS.items():
        seeds = edges.T[list(ids)]
        data = [folder.array(seeds, name="seeds")]
        if part != "train":
            negatives = np.stack([np.repeat(seeds[:, 0], 4), random.integers(0, NODES, 4 * len(seeds))], axis=1)
            labels = np.concatenate([np.ones(len(seeds)), np.zeros(len(negatives))]).astype(np.float32)
            queries = np.concatenate([np.arange(len(seeds)), np.repeat(np.arange(len(seeds)), 4)])
            data = [folder.array(np.concatenate([seeds, negatives]), name="seeds")]
            data += [folder.array(labels, name="labels"), folder.array(queries, name="indexes")]
        task[f"{part}_set"] = [{"data": data}]
    return task


def _one_type(path: Path, nodes: bool, links: bool) -> None:
    random, folder = np.random.default_rng(0), Folder(path)
    edges = _edges(random, NODES, NODES)
    tasks = [_nodes_task(folder)] if nodes else []
    tasks += [_links_task(folder, edges, random)] if links else []
    features = random.standard_normal((NODES, FEATURES), dtype=np.float32)
    folder.describe(
        graph={"nodes": [{"num": NODES}], "edges": [folder.array(edges)]},
        feature_data=[folder.array(features, domain="node", name="feat", type=None)],
        tasks=tasks,
    )


def _typed(path: Path) -> None:
    random, folder = np.random.default_rng(0), Folder(path)
    counts = {"paper": NODES, "author": 300, "institution": 40, "field_of_study": 50}
    types = ["author:affiliated_with:institution", "author:writes:paper", "paper:cites:paper"]
    types += ["paper:has_topic:field_of_study", "institution:rev_affiliated_with:author", "paper:rev_writes:author"]
    types += ["field_of_study:rev_has_topic:paper"]
    if "mag240m" in path.name:
        counts.pop("field_of_study")
        types = [name for name in types if "field_of_study" not in name]
    edges = []
    for name in types:
        source, _, target = name.split(":")
        edges.append(folder.array(_edges(random, counts[source], counts[target]), type=name))
    features = []
    for kind, count in counts.items():
        rows = random.standard_normal((count, FEATURES), dtype=np.float32)
        features.append(folder.array(rows, domain="node", type=kind, name="feat"))
    folder.describe(
        graph={"nodes": [{"type": kind, "num": count} for kind, count in counts.items()], "edges": edges},
        feature_data=features,
        tasks=[_nodes_task(folder, type="paper")],
    )


def write(root: Path, names: Collection[str] = (*NODE_CLASSIFICATION, *LINK_PREDICTION, *BOTH, *TYPED)) -> None:
    """Write all of them, or some, into ``root``, a script's folder ``datasets``."""
    for name in names:
        if name in TYPED:
            _typed(root / name)
        else:
            _one_type(root / name, nodes=name not in LINK_PREDICTION, links=name in LINK_PREDICTION + BOTH)
