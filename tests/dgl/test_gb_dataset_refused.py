"""Descriptions and files of datasets that are refused, and what they say."""

import os

import numpy as np
import pytest
import torch
from gb_dataset_folders import write_hetero, write_homogeneous

import manyhop_dgl.graphbolt as gb
from manyhop.errors import GraphError, InputError
from manyhop_graphbolt.features import disk

yaml = pytest.importorskip("yaml")


def test_files_of_edges(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    assert disk.read_edges(tmp_path / "empty.csv", "csv").shape == (2, 0)
    (tmp_path / "blanks.csv").write_text("1, 2\n 3,4\n")
    assert disk.read_edges(tmp_path / "blanks.csv", "csv").tolist() == [[1, 3], [2, 4]]
    for text in ("1\n2\n", "1,x\n", "1,2.5\n", "src,dst\n1,2\n"):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(InputError, match=r"bad\.csv: Expected two columns"):
            disk.read_edges(tmp_path / "bad.csv", "csv")
    np.save(tmp_path / "flat.npy", np.arange(4))
    with pytest.raises(InputError, match=r"should be \(2, N\)"):
        disk.read_edges(tmp_path / "flat.npy", "numpy")
    with pytest.raises(InputError, match="`numpy` or `csv` is expected"):
        disk.read_edges(tmp_path / "flat.npy", "torch")


NODES, LINES = [{"num": 40}], [{"format": "csv", "path": "edges/all.csv"}]
X = {"domain": "node", "name": "x", "format": "numpy", "path": "data/x.npy"}
P = {"domain": "edge", "name": "p", "format": "numpy", "path": "data/p.npy"}
IDS = {"format": "numpy", "path": "set/test_ids.npy"}


def graph(nodes=NODES, edges=LINES, **more):
    return {"graph": {"nodes": nodes, "edges": edges, **more}}


def features(**changes):
    return {"feature_data": [{**X, **changes}]}


def sets(*entries):
    return {"tasks": [{"train_set": list(entries)}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": None}, "does not contain graph field"),
        ({"graph": {"nodes": NODES}}, "'nodes' and 'edges'"),
        (graph([{"num": 1, "type": "a"}]), "types for all nodes"),
        (graph([{"num": "many"}]), "number of nodes"),
        (graph([{}]), "Expected 'num'"),
        (graph([40]), "entry of nodes .* to be a mapping"),
        (graph([{"num": 40, "typ": 1}]), r"only \['num', 'type'\] in nodes"),
        (graph([{"num": 3}]), r"source nodes of .*all.csv in \[0, 3\)"),
        (graph([{"num": 40, "type": "a"}] * 2, [{**LINES[0], "type": "a:x:a"}]), "each type .* once"),
        (graph(edges=[{"format": "csv"}]), "Expected 'path'"),
        (graph(edges=[{**LINES[0], "sorted": True}]), "only .* in edges"),
        (graph(edges=[{"format": "csv", "path": "missing.csv"}]), "missing.csv: Expected this file"),
        (graph(edges=[{"format": "csv", "path": "../x.csv"}]), "lead into its folder"),
        (graph(feature_data=[{**P, "path": "data/t.npy"}]), "Expected 200 rows, one per edge, got 40"),
        (graph(feature_data=[P, P]), "once, got 'p' twice"),
        (features(path="/etc/passwd"), "lead into its folder"),
        (features(path="data/none.npy"), "Expected this file of the dataset"),
        (features(path="data/p.npy"), "Expected 40 rows of node feature 'x'.*got 200"),
        (features(format="csv"), r"the format of .*x.npy to be one of \['torch', 'numpy'\], got 'csv'"),
        (features(type="user"), "to be of no type, got 'user'"),
        (features(in_memory="false"), "in_memory of .*x.npy as true or false"),
        ({"feature_data": [{"domain": "node"}]}, "Expected 'name' in each entry of feature_data"),
        ({"feature_data": ["x"]}, "to be a mapping"),
        ({"feature_data": [X, X]}, "once, got .* twice"),
        ({"tasks": ["x"]}, "each entry of tasks in metadata.yaml to be a mapping, got 'x'"),
        ({"tasks": [{"train_set": IDS}]}, "list of the entries of a set in metadata.yaml, got {'format'"),
        (sets({"type_name": "a", "data": []}), r"only \['data', 'type'\]"),
        (sets({"data": []}), "at least one entry"),
        *((sets(*({"type": t, "data": [IDS]} for t in types)), "a different type") for types in ("aa", ["a", None])),
        (sets({"data": [{**IDS, "in_memory": "no"}]}), "in_memory of .* as true or false"),
    ],
    ids=str,
)
def test_descriptions_that_are_refused(tmp_path, changes, message):
    _, good = write_homogeneous(tmp_path)
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump({**good, **changes}))
    with pytest.raises((InputError, GraphError), match=message):
        gb.OnDiskDataset(tmp_path, include_original_edge_id=True).load()


def test_unknown_entries_are_named(tmp_path):
    _, good = write_homogeneous(tmp_path)
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump({**good, "tsks": [], "graph": {**good["graph"], "x": 1}}))
    with pytest.warns(gb.GBWarning, match=r"unknown entries of graph are not used: \['x'\]"):
        dataset = gb.OnDiskDataset(tmp_path, include_original_edge_id=True)
    with pytest.warns(gb.GBWarning, match=r"unknown entries are not used: \['tsks'\]"):
        dataset.load()


def test_what_is_no_description(tmp_path):
    write_homogeneous(tmp_path)
    for text, message in (("a: [", "Expected YAML"), ("- a", "Expected a mapping")):
        (tmp_path / "metadata.yaml").write_text(text)
        with pytest.raises(InputError, match=message):
            gb.OnDiskDataset(tmp_path)
    os.remove(tmp_path / "metadata.yaml")
    with pytest.raises(InputError, match=r"found no metadata\.yaml"):
        gb.OnDiskDataset(tmp_path)
    for path in (tmp_path / "none", tmp_path / "edges" / "all.csv"):
        with pytest.raises(InputError, match="Invalid dataset path"):
            gb.OnDiskDataset(path)


def test_features_of_a_typed_graph_cover_all_types(tmp_path):
    write_hetero(tmp_path)
    config = yaml.safe_load((tmp_path / "metadata.yaml").read_text())
    config["graph"]["feature_data"].pop()
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(GraphError, match="edge data 'p' for all edge types"):
        gb.OnDiskDataset(tmp_path)
    config["graph"]["feature_data"] = [
        {"domain": "node", "name": "x", "type": "no", "format": "numpy", "path": "x.npy"}
    ]
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match="got node 'no'"):
        gb.OnDiskDataset(tmp_path)


def test_a_damaged_graph_file(tmp_path):
    write_homogeneous(tmp_path)
    dataset = gb.OnDiskDataset(tmp_path, include_original_edge_id=True)
    path = tmp_path / "preprocessed" / "manyhop" / "fused_csc_sampling_graph.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"fused_csc_sampling_graph.pt.*force_preprocess=True"):
        dataset.load()
    torch.save({"a": 1}, path)
    with pytest.raises(InputError, match="got a dict"):
        dataset.load()


def test_builtin_datasets_are_not_downloaded(tmp_path):
    with pytest.raises(InputError, match=r"/cora-seeds or .*/cora, .*/cora-seeds.zip .* unpack it into"):
        gb.BuiltinDataset("cora", root=tmp_path)
    write_homogeneous(tmp_path / "cora", feature_data=None)
    assert gb.BuiltinDataset("cora", root=tmp_path).load().graph.num_nodes == 40
    with pytest.raises(InputError, match=r"in .*/cora-seeds, found none"):
        gb.BuiltinDataset("cora-seeds", root=tmp_path)
    write_homogeneous(tmp_path / "cora-seeds", num_nodes=50, feature_data=None)
    for name in ("cora", "cora-seeds"):
        assert gb.BuiltinDataset(name, root=tmp_path).load().graph.num_nodes == 50


def damaged(folder, **changes):
    """A dataset whose labels for training have another number of rows than its seeds, and other changes of that set."""
    _, config = write_homogeneous(folder)
    task = config["tasks"][0]
    task["train_set"][0]["data"][1] |= {"path": "set/test_labels.pt", **changes}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(config))
    return gb.OnDiskDataset(folder, include_original_edge_id=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {},
            r"same number of rows in all files of the items, got {'set/train_ids.npy': 20, 'set/test_labels.pt': 10}",
        ),
        ({"path": "set/none.pt"}, r"/set/none\.pt: Expected this file"),
        ({"path": "edges/all.csv"}, r"/edges/all\.csv: Expected a tensor, written by torch.save"),
        ({"format": "text"}, r"the format of set/test_labels.pt to be one of \['torch', 'numpy'\], got 'text'"),
    ],
)
def test_a_set_that_cannot_be_read(tmp_path, changes, message):
    with pytest.raises(InputError, match=r"^task 'node_classification', train_set: .*" + message):
        damaged(tmp_path, **changes).load()


def test_a_set_of_a_type_without_rows(tmp_path):
    _, config = write_homogeneous(tmp_path)
    torch.save(torch.tensor(3), tmp_path / "set" / "one.pt")
    data = [{"name": "seeds", "format": "torch", "path": "set/one.pt"}]
    config["tasks"] = [{"test_set": [{"data": data}]}]
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match=r"^task 0, test_set: .*one.pt: Expected a row per item"):
        gb.OnDiskDataset(tmp_path, include_original_edge_id=True).load()
