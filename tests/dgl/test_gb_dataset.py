"""Datasets on disk, in GraphBolt's format, written by the tests."""

import os
import re
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from gb_dataset_folders import in_edges, write_hetero, write_homogeneous
from gb_graphs import random_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError, MissingExtraError
from manyhop.hints import pip_install
from manyhop_graphbolt.features.disk import DatasetFolder

yaml = pytest.importorskip("yaml")


@pytest.mark.parametrize("fmt", ["csv", "numpy", "fortran"])
def test_a_homogeneous_dataset(tmp_path, fmt):
    edges, config = write_homogeneous(tmp_path, fmt)
    dataset = gb.OnDiskDataset(tmp_path, include_original_edge_id=True).load()
    graph = dataset.graph
    assert (graph.num_nodes, graph.num_edges) == (40, 200)
    assert graph.indices.dtype == graph.csc_indptr.dtype == torch.int32
    ids = graph.edge_attributes[gb.ORIGINAL_EDGE_ID].long()
    assert torch.equal(edges[:, ids], torch.stack([graph.indices.long(), in_edges(graph)]))
    assert torch.equal(graph.edge_attributes["p"].long(), ids)  # in the order of the edges
    assert torch.equal(graph.node_attributes["t"], torch.arange(40))
    assert dataset.dataset_name == "random"
    assert torch.equal(dataset.feature.read("node", None, "x"), torch.from_numpy(np.load(tmp_path / "data" / "x.npy")))
    assert dataset.feature.metadata("node", None, "x") == {"unit": "m"}
    assert dataset.feature.read("edge", None, "w", torch.tensor([7])).tolist() == [[7]]
    first, other = dataset.tasks
    assert first.metadata == {"name": "node_classification", "num_classes": 3}
    seeds, labels = first.train_set[:]
    assert seeds.dtype == torch.int32
    assert torch.equal(labels, seeds.long() % 3)
    assert first.validation_set.names == ("seeds", "labels")
    assert len(first.test_set) == 10
    assert (other.validation_set, other.test_set) == (None, None)
    assert other.train_set.names is None
    assert other.train_set[:].dtype == torch.int64  # mapped: as it is in the file
    assert dataset.all_nodes_set.names == ("seeds",)
    assert torch.equal(dataset.all_nodes_set[:], torch.arange(40, dtype=torch.int32))
    assert "OnDiskTask(" in repr(first)
    torch.save(graph, tmp_path / "graph.pt")
    assert repr(torch.load(tmp_path / "graph.pt")) == repr(graph)
    assert dataset.yaml_data["dataset_name"] == config["dataset_name"]


def test_a_heterogeneous_dataset(tmp_path):
    edges = write_hetero(tmp_path)
    dataset = gb.OnDiskDataset(tmp_path / "metadata.yaml", include_original_edge_id=True).load()
    graph = dataset.graph
    assert graph.node_type_to_id == {"item": 0, "user": 1}  # in the order of their names
    assert graph.edge_type_to_id == {"item:liked:user": 0, "user:knows:user": 1, "user:likes:item": 2}
    assert graph.num_nodes == {"item": 7, "user": 12}
    assert graph.type_per_edge.dtype == torch.uint8
    topology = graph.topology()
    for k, (name, expected) in enumerate(edges.items()):
        csc = topology.graph.csc[tuple(name.split(":"))]
        got = torch.stack([csc.row.long(), torch.repeat_interleave(csc.colptr.diff())])
        assert torch.equal(expected[:, csc.perm.long()], got)
        at = graph.type_per_edge == graph.edge_type_to_id[name]
        own = graph.edge_attributes[gb.ORIGINAL_EDGE_ID][at]
        assert torch.equal(graph.edge_attributes["p"][at], own + 100.0 * k)
    (task,) = dataset.tasks
    assert torch.equal(task.train_set[:]["user:likes:item"].long(), edges["user:likes:item"].T[:6])
    assert len(task.test_set) == 5
    assert {name: n.numel() for name, n in dataset.all_nodes_set[:].items()} == {"item": 7, "user": 12}
    assert dataset.feature.read("node", "item", "x").shape == (7, 1)
    wide = gb.OnDiskDataset(tmp_path, auto_cast_to_optimal_dtype=False).load()
    assert wide.graph.indices.dtype == wide.graph.type_per_edge.dtype == torch.int64
    assert wide.tasks[0].test_set[:]["user"].dtype == torch.int64
    assert gb.ORIGINAL_EDGE_ID not in wide.graph.edge_attributes


def test_it_is_sorted_once(tmp_path, monkeypatch):
    write_homogeneous(tmp_path)
    made = gb.preprocess_ondisk_dataset(tmp_path, include_original_edge_id=True)
    assert made == str(tmp_path / "preprocessed" / "manyhop" / "metadata.yaml")
    graph_file = tmp_path / "preprocessed" / "manyhop" / "fused_csc_sampling_graph.pt"

    def when():
        return graph_file.stat().st_ino  # a new file each time it is written

    before = when()
    gb.OnDiskDataset(tmp_path, include_original_edge_id=True)
    assert when() == before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gb.OnDiskDataset(tmp_path)
    assert [str(w.message)[:12] for w in caught] == ["Edge feature"]
    changed = when()
    assert changed != before
    gb.OnDiskDataset(tmp_path, include_original_edge_id=True, force_preprocess=False)
    assert when() == changed
    gb.OnDiskDataset(tmp_path, include_original_edge_id=True, force_preprocess=True)
    assert when() != changed
    before = when()
    np.savetxt(tmp_path / "edges" / "all.csv", np.zeros((200, 2)), fmt="%d", delimiter=",")
    assert gb.OnDiskDataset(tmp_path, include_original_edge_id=True).load().graph.csc_indptr[1] == 200
    assert when() != before
    before = when()
    _, config = write_homogeneous(tmp_path / "other", dataset_name="another name")
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(config))
    dataset = gb.OnDiskDataset(tmp_path, include_original_edge_id=True)
    assert (dataset.load().dataset_name, when()) == ("another name", before)  # the graph is as before
    assert sorted(path.name for path in graph_file.parent.iterdir()) == [graph_file.name, "metadata.yaml"]


def test_what_dgl_has_preprocessed_stays(tmp_path):
    write_homogeneous(tmp_path)
    (tmp_path / "preprocessed").mkdir()
    (tmp_path / "preprocessed" / "metadata.yaml").write_text("dataset_name: dgl's\n")
    assert gb.OnDiskDataset(tmp_path, include_original_edge_id=True).load().dataset_name == "random"
    assert (tmp_path / "preprocessed" / "metadata.yaml").read_text() == "dataset_name: dgl's\n"


def in_order_of_files(graph):
    """Edge data as DGL keeps them: type after type, each in the order of its file; but for original edge ids."""
    ids = graph.edge_attributes.get(gb.ORIGINAL_EDGE_ID)
    if ids is None:
        return graph.edge_attributes
    kind = torch.zeros_like(ids) if graph.type_per_edge is None else graph.type_per_edge
    order = torch.tensor(sorted(range(len(ids)), key=lambda e: (int(kind[e]), int(ids[e]))))
    return {name: v if name == gb.ORIGINAL_EDGE_ID else v[order] for name, v in graph.edge_attributes.items()}


def write_as_dgl_does(folder, graph, monkeypatch, **config):
    """A folder as DGL's GraphBolt leaves it after preprocessing: its graph is a C++ object in a Python object."""
    tensors = {"version_number": torch.tensor([6199]), "indptr": graph.csc_indptr, "indices": graph.indices}
    state = {"independent_tensors": tensors}
    for name in ("node_type_offset", "type_per_edge"):
        if getattr(graph, name) is not None:
            tensors[name] = getattr(graph, name)
    for name in ("node_type_to_id", "edge_type_to_id"):
        if getattr(graph, name) is not None:
            state[name] = {key: torch.tensor(k) for key, k in getattr(graph, name).items()}
    if graph.node_attributes is not None:
        state["node_attributes"] = graph.node_attributes
    if graph.edge_attributes is not None:
        state["edge_attributes"] = in_order_of_files(graph)

    class ScriptObject:
        def __getstate__(self):
            return state, "__torch__.torch.classes.graphbolt.FusedCSCSamplingGraph"

    class FusedCSCSamplingGraph:
        def __init__(self):
            self._c_csc_graph = ScriptObject()
            self._node_type_offset_cached_list = None

    module = types.ModuleType("dgl.graphbolt.impl.fused_csc_sampling_graph")
    for kind, owner in ((ScriptObject, torch), (FusedCSCSamplingGraph, module)):
        kind.__module__, kind.__qualname__ = owner.__name__, kind.__name__
        monkeypatch.setattr(owner, kind.__name__, kind, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (folder / "preprocessed").mkdir()
    torch.save(FusedCSCSamplingGraph(), folder / "preprocessed" / "fused_csc_sampling_graph.pt")
    monkeypatch.undo()
    path = "preprocessed/fused_csc_sampling_graph.pt"
    described = {"dataset_name": "dgl's", "graph_topology": {"type": "FusedCSCSamplingGraph", "path": path}, **config}
    (folder / "preprocessed" / "metadata.yaml").write_text(yaml.safe_dump(described))


@pytest.mark.parametrize("write", [write_homogeneous, write_hetero])
def test_what_dgl_has_preprocessed_is_used_where_nothing_else_is_there(tmp_path, monkeypatch, write):
    write(tmp_path / "a")
    expected = gb.OnDiskDataset(tmp_path / "a", include_original_edge_id=True).load().graph
    (tmp_path / "b").mkdir()
    write_as_dgl_does(tmp_path / "b", expected, monkeypatch, include_original_edge_id=True)
    for name in ("with a description", "without"):
        if name == "with a description":
            (tmp_path / "b" / "metadata.yaml").write_text((tmp_path / "a" / "metadata.yaml").read_text())
        else:
            os.remove(tmp_path / "b" / "metadata.yaml")
        dataset = gb.OnDiskDataset(tmp_path / "b", include_original_edge_id=True).load()
        assert repr(dataset.graph) == repr(expected)
        assert torch.equal(dataset.graph.edge_attributes["p"], expected.edge_attributes["p"])
        assert dataset.dataset_name == "dgl's"
        assert dataset.graph.topology().graph.num_nodes == expected.topology().graph.num_nodes
    with pytest.raises(InputError, match="Restore"):
        gb.OnDiskDataset(tmp_path / "b", force_preprocess=True)


def test_dgls_graph_without_ids_or_of_another_version(tmp_path, monkeypatch):
    graph = random_graph(10, 30, ids=False)
    write_as_dgl_does(tmp_path, graph, monkeypatch)
    assert gb.OnDiskDataset(tmp_path).load().graph.num_edges == graph.num_edges
    with pytest.raises(InputError, match="made without"):
        gb.OnDiskDataset(tmp_path, include_original_edge_id=True)
    graph.add_edge_attribute("p", torch.arange(graph.num_edges))
    os.remove(tmp_path / "preprocessed" / "metadata.yaml")
    (tmp_path / "preprocessed" / "fused_csc_sampling_graph.pt").unlink()
    (tmp_path / "preprocessed").rmdir()
    write_as_dgl_does(tmp_path, graph, monkeypatch)
    with pytest.warns(gb.GBWarning, match=r"original edge ids beside the edge data \['p'\]"):
        gb.OnDiskDataset(tmp_path).load()
    path = tmp_path / "preprocessed" / "fused_csc_sampling_graph.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be read"):
        gb.OnDiskDataset(tmp_path).load()


def test_paths_in_and_out_of_the_folder(tmp_path):
    folder = tmp_path / "a"
    _, config = write_homogeneous(folder)
    (tmp_path / "link").symlink_to(folder)
    for place in (folder, tmp_path / "link"):
        for name in ("set/x.npy", str(folder / "set" / "x.npy"), "edges/../set/x.npy"):
            assert DatasetFolder(place).file(name) == place / name
    for name in ("../b/x.npy", str(tmp_path / "b" / "x.npy")):
        with pytest.raises(InputError, match=r"lead into its folder, got .* allow_outside_paths=True"):
            DatasetFolder(folder).file(name)
    for entries in (config["graph"]["edges"], config["feature_data"], config["tasks"][1]["train_set"][0]["data"]):
        os.renames(folder / entries[0]["path"], tmp_path / "b" / entries[0]["path"])
        entries[0]["path"] = f"../b/{entries[0]['path']}"
    config["tasks"] = config["tasks"][1:]
    (folder / "metadata.yaml").write_text(yaml.safe_dump(config))
    dataset = gb.OnDiskDataset(folder, include_original_edge_id=True, allow_outside_paths=True).load()
    assert (dataset.graph.num_edges, len(dataset.tasks[0].train_set)) == (200, 10)
    assert dataset.feature.count("node", None, "x") == 40
    (folder / "set" / "x.npy").symlink_to(tmp_path / "b" / "x.npy")  # a choice of the folder's owner
    assert DatasetFolder(folder).file("set/x.npy") == folder / "set" / "x.npy"


def test_tasks_by_name(tmp_path):
    write_homogeneous(tmp_path)
    dataset = gb.OnDiskDataset(tmp_path, include_original_edge_id=True)
    with pytest.raises(InputError, match=r"OnDiskDataset.load\(\)"):
        _ = dataset.graph
    assert [task.metadata["name"] for task in dataset.load(tasks="other").tasks] == ["other"]
    assert len(dataset.load(tasks=["other", "node_classification"]).tasks) == 2
    with pytest.warns(gb.GBWarning, match="not found in YAML: {'nothing'}"):
        assert dataset.load(tasks=["nothing"]).tasks == []
    with pytest.raises(TypeError, match="should be list"):
        dataset.load(tasks=1)


def test_a_set_of_which_only_some_entries_have_a_name(tmp_path):
    data = [{"name": "seeds", "format": "numpy", "path": "set/train_ids.npy"}]
    data.append({"format": "torch", "path": "set/train_labels.pt"})
    write_homogeneous(tmp_path, tasks=[{"name": "some", "train_set": [{"data": data}]}])
    (task,) = gb.OnDiskDataset(tmp_path, include_original_edge_id=True).load().tasks
    assert task.train_set.names == ("seeds", None)
    (minibatch,) = gb.ItemSampler(task.train_set, batch_size=20)
    assert minibatch.seeds.tolist() == list(range(20))
    assert minibatch.labels is None
    (both,) = gb.ItemSampler(
        task.train_set, batch_size=20, minibatcher=lambda items, names: dict(zip(names, items, strict=True))
    )
    assert torch.equal(both[None], both["seeds"].long() % 3)


def test_parts_may_be_missing(tmp_path):
    write_homogeneous(tmp_path, feature_data=None, tasks=None)
    dataset = gb.OnDiskDataset(tmp_path).load()
    assert len(dataset.feature) == 0
    assert dataset.tasks == []
    del dataset.yaml_data["graph_topology"]
    with pytest.warns(gb.GBWarning, match="graph is None"):
        assert dataset.load().graph is None


def test_yaml_is_an_extra(tmp_path, monkeypatch):
    write_homogeneous(tmp_path)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match=re.escape(pip_install("dgl"))):
        gb.OnDiskDataset(tmp_path)
