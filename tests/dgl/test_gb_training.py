"""Training on a dataset on disk: what is learned, and that it is the same whoever makes the batches."""

import os
import socket
import subprocess
from pathlib import Path

import forks
import pytest
import torch
import torch.nn.functional as F

import manyhop_dgl  # noqa: F401  # makes dgl importable

pytest.importorskip("yaml")
dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

import gb_training  # noqa: E402

import manyhop_dgl.graphbolt as gb  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "communities"
    gb_training.write_homogeneous(path)
    return path


@pytest.fixture(scope="module")
def dataset(folder):
    return gb.OnDiskDataset(folder, include_original_edge_id=True).load()


@pytest.mark.parametrize("method", ["sample_neighbor", "sample_layer_neighbor"])
def test_node_classification_with_features_in_a_mapped_file(dataset, method):
    assert gb_training.train_nodes(dataset, method=method) > 0.75  # without neighbours: below 0.65, see below


def test_what_is_learned_without_neighbours(dataset):
    x = dataset.feature.read("node", None, "feat")
    (train, labels), (test, right) = dataset.tasks[0].train_set[:], dataset.tasks[0].test_set[:]
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x[train.long()]), labels).backward()
        optimizer.step()
    assert (model(x[test.long()]).argmax(1) == right).float().mean() < 0.65


def test_threads_change_nothing(dataset):
    found = []
    for num_workers in (0, 2):
        torch.manual_seed(5)
        found.append(gb_training.train_nodes(dataset, epochs=2, num_workers=num_workers))
    assert found[0] == found[1]


def test_inference_layer_by_layer_is_that_of_the_whole_graph(dataset):
    torch.manual_seed(0)
    model = gb_training.SAGE(3, 4, 2)
    x = dataset.feature.read("node", None, "feat")
    for i, layer in enumerate(model.layers):
        features = gb.BasicFeatureStore({("node", None, "h"): gb.TorchBasedFeature(x)})
        pipe = gb.ItemSampler(dataset.all_nodes_set, batch_size=100)
        pipe = pipe.sample_neighbor(dataset.graph, [-1]).fetch_feature(features, node_feature_keys=["h"])
        out = torch.empty(600, 4 if i == 0 else 2)
        with torch.no_grad():
            for data in gb.DataLoader(pipe):
                h = layer(data.blocks[0], data.node_features["h"])
                out[data.seeds.long()] = F.relu(h) if i == 0 else h
        x = out
    column = torch.repeat_interleave(dataset.graph.csc_indptr.diff().long())
    whole = dgl.graph((dataset.graph.indices.long(), column), num_nodes=600)
    with torch.no_grad():
        expected = model([whole, whole], dataset.feature.read("node", None, "feat"))
    assert torch.allclose(x, expected, atol=1e-5)


def test_link_prediction_with_edge_features(dataset):
    task = dataset.tasks[1]
    torch.manual_seed(0)

    def loader(items, shuffle):
        pipe = gb.ItemSampler(items, batch_size=64, shuffle=shuffle)
        pipe = pipe.sample_uniform_negative(dataset.graph, 1)
        pipe = pipe.sample_neighbor(dataset.graph, [5, 5])
        pipe = pipe.exclude_seed_edges(include_reverse_edges=True)
        pipe = pipe.fetch_feature(dataset.feature, node_feature_keys=["feat"], edge_feature_keys=["number"])
        return gb.DataLoader(pipe, num_workers=1)

    def scores(model, data):
        h = model(data.blocks, data.node_features["feat"])
        (src, dst), labels = data.node_pairs_with_labels
        return (h[src] * h[dst]).sum(1), labels

    model = gb_training.SAGE(3, 16, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(12):
        for data in loader(task.train_set, True):
            for layer, ids in zip(data.edge_features, map(data.edge_ids, range(2)), strict=True):
                assert torch.equal(layer["number"][:, 0], ids.long())  # an edge's feature is its own number
            found, labels = scores(model, data)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(found, labels.float()).backward()
            optimizer.step()
    positive, negative = [], []
    with torch.no_grad():
        for data in loader(task.test_set, False):
            found, labels = scores(model, data)
            positive.append(found[labels.bool()])
            negative.append(found[~labels.bool()])
    better = torch.cat(positive)[:, None] > torch.cat(negative)[None, :]
    assert better.float().mean() > 0.62  # area under the ROC curve


@pytest.mark.slow
def test_two_ranks_share_the_batches_of_one(folder, dataset, tmp_path):
    command, out = [forks.python(), "-W", "error", str(Path(gb_training.__file__))], tmp_path / "rank"
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with socket.socket() as reserved:  # as long as it is bound, nobody is given its port who asks for any
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        arguments = ["2", str(reserved.getsockname()[1]), str(folder), str(out)]
        ranks = [
            subprocess.Popen([*command, str(rank), *arguments], stderr=subprocess.PIPE, text=True, env=env)
            for rank in range(2)
        ]
        for rank in ranks:
            _, error = rank.communicate(timeout=300)
            assert rank.returncode == 0, error
    first, second = (torch.load(f"{out}.{rank}") for rank in range(2))
    assert all(torch.equal(x, second["weights"][name]) for name, x in first["weights"].items())
    assert len(first["seen"]) == len(second["seen"]) == 2 * 3  # 7 batches of 200 nodes, dealt out to two ranks
    together = {key: rest for key, *rest in first["seen"] + second["seen"]}
    assert sorted((epoch, batch) for _, epoch, batch in together) == [(e, b) for e in range(2) for b in range(6)]
    seed = first["seen"][0][0][0]
    alone = gb.ItemSampler(dataset.tasks[0].train_set, 32, shuffle=True, seed=seed)
    loader = gb.DataLoader(alone.sample_neighbor(dataset.graph, [5, 5]))
    for _ in range(2):
        for data in loader:
            if tuple(data.key) in together:
                assert together[tuple(data.key)] == [data.seeds.tolist(), data.input_nodes.tolist()]
