"""What does not make sense is refused, with what was expected and what to do."""

import numpy as np
import pytest
import torch
from sampler_graphs import graph, typed_graph

import manyhop_dgl
from manyhop.errors import FeatureError, GraphError, InputError

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
NeighborSampler = manyhop_dgl.NeighborSampler


@pytest.mark.parametrize(
    ("fanouts", "message"),
    [
        (5, "a list with one entry per layer"),
        ([2.5], "integers, got 2.5"),
        ([-2], "0 or more, or -1 for all neighbours, got -2"),
        ([True], "integers, got True"),
        ({"_E": [1]}, "a list with one entry per layer"),
    ],
)
def test_fanouts(fanouts, message):
    with pytest.raises(InputError, match=message):
        NeighborSampler(fanouts)


@pytest.mark.parametrize(
    ("fanouts", "message"),
    [
        ([{"follows": 1, "likes": 1}], "Unknown edge type 'likes' in fanouts"),
        ([{"follows": 1}], "a fanout for every edge type, got none for"),
        ([{("user", "plays", "dev"): 1}], "Unknown edge type"),
        ([{"follows": 1, ("user", "follows", "user"): 2}], "each edge type once"),
    ],
)
def test_fanouts_that_do_not_fit_the_graph(fanouts, message):
    with pytest.raises(InputError, match=message):
        NeighborSampler(fanouts).sample(typed_graph(), {"user": torch.tensor([0])})


def test_edge_types_of_the_same_name():
    pair = torch.tensor([0]), torch.tensor([0])
    g = dgl.heterograph({("a", "to", "b"): pair, ("b", "to", "a"): pair})
    with pytest.raises(InputError, match="Ambiguous edge type 'to'"):
        NeighborSampler([{"to": 1}]).sample(g, {"a": torch.tensor([0])})


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (torch.tensor([0, 60]), r"in \[0, 60\), got 60"),
        (torch.tensor([-1]), r"in \[0, 60\), got -1"),
        (torch.tensor([0.5]), "1-dimensional tensor of integers"),
        (torch.tensor([[1]]), "1-dimensional tensor of integers"),
        (torch.ones(60, dtype=torch.bool), r"mask.nonzero\(\)"),
        (torch.ones(60, dtype=torch.uint8), r"got torch.uint8, a dtype of masks.*mask.nonzero\(\).*ids.long\(\)"),
        (np.ones(60, dtype=np.uint8), "got torch.uint8, a dtype of masks"),
        ([0.5], "as a 1-dimensional tensor of integers"),
        ({"user": torch.tensor([0])}, "Unknown node type 'user'"),
        ({}, "at least one node type"),
        (torch.tensor([0], device="meta"), "in memory, got a tensor torch.int64 .* on meta"),
    ],
)
def test_seeds(seeds, message):
    with pytest.raises(InputError, match=message):
        NeighborSampler([2]).sample(graph(), seeds)


def test_ids_that_do_not_fit_the_dtype_of_the_graph():
    """They must not wrap around to nodes and edges that exist."""
    g = graph(idtype=torch.int32)
    ids = torch.tensor([2**32 + 5])
    with pytest.raises(InputError, match="got 4294967301"):
        NeighborSampler([2]).sample(g, ids)
    with pytest.raises(InputError, match="got 4294967301"):
        manyhop_dgl.as_edge_prediction_sampler(NeighborSampler([2])).sample(g, ids)


def test_seeds_of_typed_graphs_name_their_type():
    with pytest.raises(InputError, match="a dict, node type -> ids"):
        NeighborSampler([2]).sample(typed_graph(), torch.tensor([0]))


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (torch.tensor([0]), "a dict, edge type -> edge ids"),
        ({"likes": torch.tensor([0])}, "Unknown edge type 'likes'"),
        ({"follows": torch.tensor([0.5])}, "1-dimensional tensor of integers"),
        ({"follows": torch.tensor([0], device="meta")}, "in memory, got a tensor"),
    ],
)
def test_excluded_edges(exclude, message):
    with pytest.raises(InputError, match=message):
        NeighborSampler([2]).sample(typed_graph(), {"user": torch.tensor([0])}, exclude)


def test_prob_and_mask():
    with pytest.raises(InputError, match="either prob or mask"):
        NeighborSampler([2], prob="weight", mask="keep")
    with pytest.raises(InputError, match="edge_dir 'in' or 'out', got 'both'"):
        NeighborSampler([2], edge_dir="both")
    seeds = torch.tensor([0])
    g = graph()
    with pytest.raises(GraphError, match="edge data 'nothing'"):
        NeighborSampler([2], prob="nothing").sample(g, seeds)
    with pytest.raises(GraphError, match="as bool"):
        NeighborSampler([2], mask="weight").sample(g, seeds)
    g.edata["pairs"] = torch.rand(g.num_edges(), 2) > 0.5
    with pytest.raises(GraphError, match=r"\[400\] or \[400, 1\]"):
        NeighborSampler([2], mask="pairs").sample(g, seeds)
    for bad in (-1.0, float("nan"), float("inf")):
        g.edata["weight"][7] = bad
        with pytest.raises(GraphError, match="finite and not negative"):
            NeighborSampler([2], prob="weight").sample(g, seeds)
    g.edata["weight"] = torch.ones(g.num_edges(), 2)
    with pytest.raises(GraphError, match="one number per edge"):
        NeighborSampler([2], prob="weight").sample(g, seeds)


def test_arguments_of_another_kind():
    with pytest.raises(InputError, match=r"prob as the name of edge data, got a Tensor\. Store the values in g.edata"):
        NeighborSampler([2], prob=torch.ones(400))
    with pytest.raises(InputError, match="prob as the name of edge data, got a Tensor"):
        manyhop_dgl.LaborSampler([2], prob=torch.ones(400))
    with pytest.raises(InputError, match="mask as the name of edge data, got a Tensor"):
        NeighborSampler([2], mask=torch.ones(400, dtype=torch.bool))
    with pytest.raises(InputError, match="seed to be an integer, got 'one'"):
        NeighborSampler([2], seed="one")
    with pytest.raises(InputError, match=r"num_layers to be an integer, got \[2\]"):
        manyhop_dgl.MultiLayerFullNeighborSampler([2])
    with pytest.raises(InputError, match=r"a sampler with a method sample.* got a list"):
        manyhop_dgl.as_edge_prediction_sampler([2])
    with pytest.raises(InputError, match="prob as the name of edge data, got a Tensor"):
        manyhop_dgl.sample_tensors(graph(), [0], [2], prob=torch.ones(400))
    for key, message in (
        (5, r"key as \(seed, epoch, batch\), got 5"),
        ((1, 2, "3"), "each part of key to be an integer"),
    ):
        with pytest.raises(InputError, match=message):
            manyhop_dgl.sample_tensors(graph(), [0], [2], key=key)
    for device, message in (("cuda:99", "an available device, got 'cuda:99'"), ("mars", "device to be 'cuda'")):
        with pytest.raises(InputError, match=message):
            manyhop_dgl.sample_tensors(graph(), [0], [2], device=device)


def test_names_of_data():
    with pytest.raises(InputError, match="prefetch_labels as a list of names"):
        NeighborSampler([2], prefetch_labels="label")
    with pytest.raises(InputError, match="prefetch_node_feats as a list of names"):
        NeighborSampler([2], prefetch_node_feats={"user": "feat"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"prefetch_node_feats": ["feat"]},
            r"prefetch_node_feats as a dict, node type -> list of names, since the graph has several node types: "
            r"\['dev', 'game', 'user'\], got \['feat'\].*prefetch_node_feats=\{'dev': \['feat'\]\}",
        ),
        ({"prefetch_labels": ["label"]}, "prefetch_labels as a dict, node type -> list of names"),
        ({"prefetch_edge_feats": ["weight"]}, "prefetch_edge_feats as a dict, edge type -> list of names"),
        ({"prefetch_labels": {"nobody": ["label"]}}, "Unknown node type 'nobody' in prefetch_labels"),
        ({"prefetch_edge_feats": {"likes": ["weight"]}}, "Unknown edge type 'likes' in prefetch_edge_feats"),
    ],
)
def test_data_of_typed_graphs_name_their_type(options, message):
    g, seeds = typed_graph(), {"user": torch.tensor([0])}
    sampler = NeighborSampler([2], **options)
    with pytest.raises(InputError, match=message):
        sampler.sample(g, seeds)
    with pytest.raises(InputError, match=message):
        manyhop_dgl.DataLoader(g, seeds, sampler)
    with pytest.raises(InputError, match=message):
        manyhop_dgl.as_edge_prediction_sampler(sampler).sample(g, {"follows": torch.tensor([0])})
    with pytest.raises(InputError, match=message):
        manyhop_dgl.DataLoader(g, {"follows": seeds["user"]}, manyhop_dgl.as_edge_prediction_sampler(sampler))


def test_labels_of_edges_of_typed_graphs_name_their_type():
    g, edges = typed_graph(), {"follows": torch.tensor([0])}
    sampler = manyhop_dgl.as_edge_prediction_sampler(NeighborSampler([2]), prefetch_labels=["weight"])
    with pytest.raises(InputError, match="prefetch_labels as a dict, edge type -> list of names"):
        sampler.sample(g, edges)
    with pytest.raises(InputError, match="prefetch_labels as a dict, edge type -> list of names"):
        manyhop_dgl.DataLoader(g, edges, sampler)


def test_graphs_that_are_none():
    block = NeighborSampler([2]).sample(graph(), torch.tensor([0]))[2][0]
    with pytest.raises(InputError, match="got a block"):
        NeighborSampler([2]).sample(block, torch.tensor([0]))
    with pytest.raises(InputError, match="got list"):
        NeighborSampler([2]).sample([], torch.tensor([0]))


def test_blocks_on_a_gpu_need_the_gpu():
    sampler = NeighborSampler([2], output_device="cuda:99")
    with pytest.raises(InputError, match="Expected an available device, got 'cuda:99'"):
        sampler.sample(graph(), torch.tensor([0]))
    sampler.output_device = "meta"
    with pytest.raises(InputError, match=r"Expected output_device to be 'cuda', .* got 'meta'"):
        sampler.sample(graph(), torch.tensor([0]))


def test_features_that_are_not_there():
    g = typed_graph()
    seeds = {"user": torch.tensor([0])}
    for names, message in (
        (["nothing"], r"'nothing' among the node data of the graph, which has: \['feat', 'label'\]"),
        ({"user": ["label"]}, r"'label' among the data of node type 'user', which has: \['feat'\]"),
    ):
        with pytest.raises(FeatureError, match=message):
            manyhop_dgl.sample_tensors(g, seeds, [2], node_features=names)
    with pytest.raises(InputError, match="Unknown node type 'nobody'"):
        manyhop_dgl.sample_tensors(g, seeds, [2], node_features={"nobody": ["feat"]})
    with pytest.raises(InputError, match="Unknown edge type 'likes' in edge_features"):
        manyhop_dgl.sample_tensors(g, seeds, [2], edge_features={"likes": ["weight"]})
    with pytest.raises(InputError, match="node_features as a list of names"):
        manyhop_dgl.sample_tensors(g, seeds, [2], node_features="feat")
