"""Writes datasets in GraphBolt's format."""

import os

import numpy as np
import pytest
import torch

yaml = pytest.importorskip("yaml")


def in_edges(graph):
    return torch.repeat_interleave(graph.csc_indptr.diff().long())


def write_homogeneous(folder, fmt="csv", num_nodes=40, num_edges=200, **changes):
    """A dataset with everything in it. Returns the edges ``[2, num_edges]`` and its description."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, num_nodes, (2, num_edges), generator=generator)
    for name in ("edges", "data", "set"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if fmt == "csv":
        np.savetxt(folder / "edges" / "all.csv", edges.T.numpy(), fmt="%d", delimiter=",")
    elif fmt == "fortran":
        np.save(folder / "edges" / "all.csv.npy", np.asfortranarray(edges.numpy()))
        os.replace(folder / "edges" / "all.csv.npy", folder / "edges" / "all.npy")
    else:
        np.save(folder / "edges" / "all.npy", edges.numpy())
    np.save(folder / "data" / "x.npy", torch.randn(num_nodes, 4, generator=generator).numpy())
    torch.save(torch.arange(num_edges), folder / "data" / "w.pt")
    np.save(folder / "data" / "p.npy", np.arange(num_edges, dtype=np.float32))
    np.save(folder / "data" / "t.npy", np.arange(num_nodes))
    for part, ids in (("train", range(20)), ("validation", range(20, 30)), ("test", range(30, 40))):
        np.save(folder / "set" / f"{part}_ids.npy", np.array(ids))
        torch.save(torch.tensor(ids) % 3, folder / "set" / f"{part}_labels.pt")
    config = {
        "dataset_name": "random",
        "graph": {
            "nodes": [{"num": num_nodes}],
            "edges": [
                {"format": "csv" if fmt == "csv" else "numpy", "path": f"edges/all.{'csv' if fmt == 'csv' else 'npy'}"}
            ],
            "feature_data": [
                {"domain": "edge", "name": "p", "format": "numpy", "path": "data/p.npy"},
                {"domain": "node", "name": "t", "format": "numpy", "path": "data/t.npy", "in_memory": True},
            ],
        },
        "feature_data": [
            {"domain": "node", "name": "x", "format": "numpy", "path": "data/x.npy", "in_memory": False, "unit": "m"},
            {"domain": "edge", "name": "w", "format": "torch", "path": "data/w.pt"},
        ],
        "tasks": [
            {
                "name": "node_classification",
                "num_classes": 3,
                **{
                    f"{part}_set": [
                        {
                            "data": [
                                {"name": "seeds", "format": "numpy", "path": f"set/{part}_ids.npy"},
                                {"name": "labels", "format": "torch", "path": f"set/{part}_labels.pt"},
                            ]
                        }
                    ]
                    for part in ("train", "validation", "test")
                },
            },
            {
                "name": "other",
                "train_set": [{"data": [{"format": "numpy", "path": "set/test_ids.npy", "in_memory": False}]}],
            },
        ],
        **changes,
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(config))
    return edges, config


def write_hetero(folder):
    """Two node types, three edge types. Returns the edges by type."""
    (folder / "e").mkdir(parents=True)
    generator = torch.Generator().manual_seed(2)
    counts, edges = {"user": 12, "item": 7}, {}
    entries = []
    for name in ("user:likes:item", "item:liked:user", "user:knows:user"):
        src, _, dst = name.split(":")
        edges[name] = torch.stack([torch.randint(0, counts[t], (30,), generator=generator) for t in (src, dst)])
        path = f"e/{name.replace(':', '-')}.csv"
        np.savetxt(folder / path, edges[name].T.numpy(), fmt="%d", delimiter=",")
        entries.append({"type": name, "format": "csv", "path": path})
    graph_features = []
    for name in edges:
        path = f"e/{name.replace(':', '-')}-p.npy"
        np.save(folder / path, np.arange(30) + 100.0 * len(graph_features))
        graph_features.append({"domain": "edge", "type": name, "name": "p", "format": "numpy", "path": path})
    np.save(folder / "x.npy", np.arange(7))
    np.save(folder / "users.npy", np.arange(5))
    np.save(folder / "pairs.npy", edges["user:likes:item"].T[:6].numpy())
    config = {
        "dataset_name": "typed",
        "graph": {
            "nodes": [{"type": name, "num": n} for name, n in counts.items()],
            "edges": entries,
            "feature_data": graph_features,
        },
        "feature_data": [{"domain": "node", "type": "item", "name": "x", "format": "numpy", "path": "x.npy"}],
        "tasks": [
            {
                "name": "links",
                "train_set": [
                    {
                        "type": "user:likes:item",
                        "data": [{"name": "node_pairs", "format": "numpy", "path": "pairs.npy"}],
                    }
                ],
                "test_set": [{"type": "user", "data": [{"name": "seeds", "format": "numpy", "path": "users.npy"}]}],
            }
        ],
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(config))
    return edges
