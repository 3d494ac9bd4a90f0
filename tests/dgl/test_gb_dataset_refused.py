"""Descriptions and files of datasets that are refused, and what they say."""

import os

import numpy as np
import pytest
import torch
from gb_dataset_folders import write_hetero, write_homogeneous

import manyhop_dgl.graphbolt as gb
from manyhop.errors import GraphError, InputError
from manyhop_graphbolt.features import on_disk

yaml = pytest.importorskip("yaml")


def test_files_of_edges(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    assert on_disk.read_edges(tmp_path / "empty.csv", "csv").shape == (2, 0)
    (tmp_path / "blanks.csv").write_text("1, 2\n 3,4\n")
    assert on_disk.read_edges(tmp_path / "blanks.csv", "csv").tolist() == [[1, 3], [2, 4]]
    for text in ("1\n2\n", "1,x\n", "1,2.5\n", "src,dst\n1,2\n"):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(InputError, match=r"bad\.csv: Expected two columns"):
            on_disk.read_edges(tmp_path / "bad.csv", "csv")
    np.save(tmp_path / "flat.npy", np.arange(4))
    with pytest.raises(InputError, match=r"should be \(2, N\)"):
        on_disk.read_edges(tmp_path / "flat.npy", "numpy")
    with pytest.raises(InputError, match="`numpy` or `csv` is expected"):
        on_disk.read_edges(tmp_path / "flat.npy", "torch")


def sets_of(dataset):
    return [(task.train_set, task.validation_set, task.test_set) for task in dataset.tasks]


def test_descriptions_that_are_refused_by_their_content(tmp_path):
    _, good = write_homogeneous(tmp_path)

    def check(error, message, **changes):
        (tmp_path / "metadata.yaml").write_text(yaml.safe_dump({**good, **changes}))
        with pytest.raises(error, match=message):
            sets_of(gb.OnDiskDataset(tmp_path, include_original_edge_id=True).load())

    graph, feature = good["graph"], good["feature_data"][0]
    nodes, lines = graph["nodes"], graph["edges"]
    check(InputError, "does not contain graph field", graph=None)
    check(InputError, "'nodes' and 'edges'", graph={"nodes": nodes})
    check(InputError, "types for all nodes", graph={"nodes": [{"num": 1, "type": "a"}], "edges": lines})
    check(InputError, "number of nodes", graph={"nodes": [{"num": "many"}], "edges": lines})
    check(InputError, "Expected 'num'", graph={"nodes": [{}], "edges": lines})
    check(InputError, "Expected 'path'", graph={"nodes": nodes, "edges": [{"format": "csv"}]})
    check(GraphError, r"source nodes of .*all.csv in \[0, 3\)", graph={"nodes": [{"num": 3}], "edges": lines})
    check(
        InputError,
        "missing.csv: Expected this file",
        graph={**graph, "edges": [{"format": "csv", "path": "missing.csv"}]},
    )
    check(InputError, "lead into its folder", graph={**graph, "edges": [{"format": "csv", "path": "../x.csv"}]})
    check(InputError, "lead into its folder", feature_data=[{**feature, "path": "/etc/passwd"}])
    check(InputError, "Expected this file of the dataset", feature_data=[{**feature, "path": "data/none.npy"}])
    check(InputError, "the format of feature 'x'", feature_data=[{**feature, "format": "csv"}])
    check(InputError, "to be of no type, got 'user'", feature_data=[{**feature, "type": "user"}])
    check(
        InputError, r"Expected 40 rows of node feature 'x'.*got 200", feature_data=[{**feature, "path": "data/p.npy"}]
    )
    check(InputError, "feature_data in metadata.yaml", feature_data=[{"domain": "node"}])
    check(InputError, "to be a mapping", feature_data=["x"])
    wrong = [{"domain": "edge", "name": "p", "format": "numpy", "path": "data/t.npy"}]
    check(GraphError, "Expected 200 rows, one per edge, got 40", graph={**graph, "feature_data": wrong})
    check(InputError, r"only \['num', 'type'\] in nodes", graph={"nodes": [{"num": 40, "typ": 1}], "edges": lines})
    check(InputError, r"only .* in edges", graph={"nodes": nodes, "edges": [{**lines[0], "sorted": True}]})
    check(InputError, "a mapping for each entry", graph={"nodes": [40], "edges": lines})
    check(InputError, r"only \['data', 'type'\]", tasks=[{"train_set": [{"type_name": "a", "data": []}]}])
    with pytest.warns(gb.GBWarning, match=r"unknown entries are not used: \['tsks'\]"):
        check(InputError, "Only one TVT set", tsks=[], tasks=[{"train_set": [{"data": []}, {"data": []}]}])
    both = [{"data": [{"format": "numpy", "path": "set/test_ids.npy"}]}] * 2
    check(InputError, "Only one TVT set", tasks=[{"train_set": both}])
    check(InputError, "at least one entry", tasks=[{"train_set": [{"data": []}]}])
    entry = {"format": "numpy", "path": "set/test_ids.npy"}
    check(InputError, "list of the entries of a set in metadata.yaml, got {'format'", tasks=[{"train_set": entry}])
    check(InputError, "each entry of tasks in metadata.yaml to be a mapping, got 'x'", tasks=["x"])
    for kinds in (["a", "a"], ["a", None]):
        entries = [{"type": kind, "data": both[0]["data"]} for kind in kinds]
        check(InputError, "a different type for each entry", tasks=[{"train_set": entries}])
    check(InputError, "once, got .* twice", feature_data=[feature, feature])
    twice = graph["feature_data"][:1] * 2
    check(InputError, "once, got 'p' twice", graph={**graph, "feature_data": twice})
    check(InputError, "in_memory of data/x.npy as true or false", feature_data=[{**feature, "in_memory": "false"}])
    mapped = [{**both[0]["data"][0], "in_memory": "no"}]
    check(InputError, "in_memory of .* as true or false", tasks=[{"train_set": [{"data": mapped}]}])
    with pytest.warns(gb.GBWarning, match=r"entries of graph are not used: \['features'\]"):
        check(InputError, "Expected 'path'", graph={"nodes": nodes, "edges": [{"format": "csv"}], "features": []})
    (tmp_path / "metadata.yaml").write_text("a: [")
    with pytest.raises(InputError, match="Expected YAML"):
        gb.OnDiskDataset(tmp_path)
    (tmp_path / "metadata.yaml").write_text("- a")
    with pytest.raises(InputError, match="Expected a mapping"):
        gb.OnDiskDataset(tmp_path)
    os.remove(tmp_path / "metadata.yaml")
    with pytest.raises(InputError, match=r"found no metadata\.yaml"):
        gb.OnDiskDataset(tmp_path)
    with pytest.raises(InputError, match="Invalid dataset path"):
        gb.OnDiskDataset(tmp_path / "none")
    with pytest.raises(InputError, match="must be a directory"):
        gb.OnDiskDataset(tmp_path / "edges" / "all.csv")


def test_features_of_a_typed_graph_cover_all_types(tmp_path):
    write_hetero(tmp_path)
    config = yaml.safe_load((tmp_path / "metadata.yaml").read_text())
    config["graph"]["feature_data"].pop()
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(GraphError, match=r"Edge feature p does not cover all edge types"):
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
    with pytest.raises(InputError, match=r"/cora-seeds or .*/cora, .* Download cora-seeds.zip .* unpack it into"):
        gb.BuiltinDataset("cora", root=tmp_path)
    with pytest.raises(InputError, match=r"Available datasets are \['cora'"):
        gb.BuiltinDataset("nothing", root=tmp_path)
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
        ({"path": "../x.pt"}, r"metadata.yaml: Expected paths that lead into its folder, got '../x.pt'"),
        ({"in_memory": 3}, "in_memory of set/test_labels.pt as true or false, got 3"),
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
