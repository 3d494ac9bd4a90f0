"""The stage that fetches features."""

import dataclasses

import pytest
import torch
from gb_graphs import random_graph, random_hetero_graph
from test_gb_loader import FEATURES, GRAPH, nodes, sampled

import manyhop_dgl.graphbolt as gb
from manyhop.errors import FeatureError, InputError


def test_features():
    for minibatch in gb.DataLoader(sampled(), num_workers=2):
        assert torch.equal(minibatch.node_features["feat"], torch.arange(180.0).view(60, 3)[minibatch.input_nodes])
        assert torch.equal(minibatch.node_features["more"][:, 0], minibatch.input_nodes)
        for layer, features in zip(minibatch.sampled_subgraphs, minibatch.edge_features, strict=True):
            assert torch.equal(features["weight"][:, 0], layer.original_edge_ids.float())


def test_features_of_another_store():
    class Store:
        def read(self, domain, type_name, feature_name, ids):
            return torch.stack([ids, ids], dim=1)

    (minibatch,) = nodes(batch_size=60).sample_neighbor(GRAPH, [2]).fetch_feature(Store(), node_feature_keys=["any"])
    assert torch.equal(minibatch.node_features["any"][:, 1], minibatch.input_nodes)
    assert minibatch.edge_features == [{}]


def test_wrong_features():
    pipe = nodes().sample_neighbor(GRAPH, [2])
    with pytest.raises(InputError, match="lists of names, got 'feat'"):
        pipe.fetch_feature(FEATURES, node_feature_keys="feat")
    with pytest.raises(InputError, match=r"lists of names, got \{'user': 'feat'\}"):
        pipe.fetch_feature(FEATURES, node_feature_keys={"user": "feat"})
    with pytest.raises(InputError, match="both by type"):
        pipe.fetch_feature(FEATURES, node_feature_keys=["feat"], edge_feature_keys={"a:b:c": ["weight"]})
    with pytest.raises(InputError, match="node_feature_keys without types"):
        list(gb.DataLoader(pipe.fetch_feature(FEATURES, node_feature_keys={"user": ["feat"]})))
    with pytest.raises(FeatureError, match=r"(?s) got 'colour'.*batch 0 of epoch 1"):
        list(gb.DataLoader(pipe.fetch_feature(FEATURES, node_feature_keys=["colour"]), num_workers=2))
    without_ids = nodes().sample_neighbor(random_graph(ids=False), [2])
    with pytest.raises(InputError, match="ORIGINAL_EDGE_ID"):
        next(iter(without_ids.fetch_feature(FEATURES, edge_feature_keys=["weight"])))
    graph = random_graph(ids=False)
    graph.edge_attributes = {gb.ORIGINAL_EDGE_ID: torch.arange(graph.total_num_edges)}  # as the error advises
    (minibatch,) = (
        nodes(batch_size=60).sample_neighbor(graph, [2]).fetch_feature(FEATURES, edge_feature_keys=["weight"])
    )
    (layer,) = minibatch.sampled_subgraphs
    rows = layer.original_row_node_ids[layer.sampled_csc.indices]
    assert torch.equal(graph.indices[minibatch.edge_features[0]["weight"][:, 0].long()], rows)
    with pytest.raises(InputError, match="Sample before fetching"):
        next(iter(nodes().fetch_feature(FEATURES, node_feature_keys=["feat"])))


def test_features_of_types():
    graph, users = random_hetero_graph(), gb.HeteroItemSet({"user": gb.ItemSet(torch.arange(4), names="seeds")})
    pipe = gb.ItemSampler(users, batch_size=4).sample_neighbor(graph, [2])
    name = ("item", "liked", "user")
    store = gb.BasicFeatureStore({("edge", ":".join(name), "age"): gb.TorchBasedFeature(torch.arange(120).view(-1, 1))})
    (minibatch,) = pipe.fetch_feature(store, edge_feature_keys={name: ["age"]})
    ids = minibatch.sampled_subgraphs[0].original_edge_ids[":".join(name)]
    assert torch.equal(minibatch.edge_features[0][":".join(name), "age"], ids.view(-1, 1))
    partly = gb.MiniBatch(sampled_subgraphs=minibatch.sampled_subgraphs * 2)
    partly.sampled_subgraphs[1] = dataclasses.replace(partly.sampled_subgraphs[1], original_edge_ids={})
    (partly,) = gb.FeatureFetcher([partly], store, edge_feature_keys={name: ["age"]})
    assert [len(features) for features in partly.edge_features] == [1, 0]
    with pytest.raises(InputError, match=r"node_feature_keys of the types \['user', 'item'\], got \['usr'\]"):
        next(iter(pipe.fetch_feature(store, node_feature_keys={"usr": ["age"]})))
    with pytest.raises(InputError, match=r"edge_feature_keys of the types .* got \['user:like:item'\]"):
        next(iter(pipe.fetch_feature(store, edge_feature_keys={"user:like:item": ["age"]})))
