"""Arguments that make no sense, of samplers, negatives, tensors and the loader: errors name what was expected."""

import numpy as np
import pytest
import torch
from sampler_graphs import graph, typed_graph

import manyhop_dgl
from manyhop.errors import FeatureError, GraphError, InputError
from manyhop_dgl import DataLoader, GlobalUniform, Graph, LaborSampler, MultiLayerFullNeighborSampler, NeighborSampler
from manyhop_dgl import as_edge_prediction_sampler as around_edges
from manyhop_dgl import sample_tensors as tensors

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

FOLLOWS, PLAYS = ("user", "follows", "user"), ("user", "plays", "game")
ONE, USER = torch.tensor([1]), {"user": torch.tensor([0])}
META = torch.tensor([0], device="meta")
IDS, IN_MEMORY = "1-dimensional tensor of integers", "in memory, got a tensor"


def sample(sampler, seeds=ONE, *exclude, **data):
    g = graph()
    g.edata.update(data)
    return sampler.sample(g, seeds, *exclude)


def typed(sampler, seeds=USER, *exclude):
    return sampler.sample(typed_graph(), seeds, *exclude)


def neighbors(fanouts=(2,), **options):
    return NeighborSampler(list(fanouts), **options)


def edges(**options):
    return around_edges(neighbors(), **options)


def drawing(pairs):
    """Seed edges with negatives of the user."""
    return edges(negative_sampler=lambda g, ids: pairs)


def reverse(ids):
    return edges(exclude="reverse_id", reverse_eids=ids)


def ambiguous():
    pair = torch.tensor([0]), torch.tensor([0])
    return dgl.heterograph({("a", "to", "b"): pair, ("b", "to", "a"): pair})


def weights(bad):
    return torch.cat([torch.ones(399), torch.tensor([bad])])


CASES = [
    # fanouts
    (lambda: NeighborSampler(5), "a list with one entry per layer"),
    (lambda: NeighborSampler({"_E": [1]}), "a list with one entry per layer"),
    (lambda: LaborSampler(5), "a list with one entry per layer"),
    (lambda: neighbors([2.5]), "integers, got 2.5"),
    (lambda: neighbors([True]), "integers, got True"),
    (lambda: neighbors([-2]), "0 or more, or -1 for all neighbours, got -2"),
    (lambda: typed(neighbors([{"follows": 1, "likes": 1}])), "Unknown edge type 'likes' in fanouts"),
    (lambda: typed(neighbors([{"follows": 1}])), "a fanout for every edge type, got none for"),
    (lambda: typed(neighbors([{("user", "plays", "dev"): 1}])), "Unknown edge type"),
    (lambda: typed(neighbors([{"follows": 1, FOLLOWS: 2}])), "each edge type once"),
    (lambda: neighbors([{"to": 1}]).sample(ambiguous(), {"a": ONE}), "Ambiguous edge type 'to'"),
    # seeds
    (lambda: sample(neighbors(), torch.tensor([0, 60])), r"in \[0, 60\), got 60"),
    (lambda: sample(neighbors(), torch.tensor([-1])), r"in \[0, 60\), got -1"),
    (lambda: sample(neighbors(), torch.tensor([0.5])), IDS),
    (lambda: sample(neighbors(), torch.tensor([[1]])), IDS),
    (lambda: sample(neighbors(), [0.5]), IDS),
    (lambda: sample(neighbors(), torch.ones(60, dtype=torch.bool)), r"mask.nonzero\(\)"),
    (lambda: sample(neighbors(), torch.ones(60, dtype=torch.uint8)), r"a dtype of masks.*mask.nonzero.*ids.long\(\)"),
    (lambda: sample(neighbors(), np.ones(60, dtype=np.uint8)), "got torch.uint8, a dtype of masks"),
    (lambda: sample(neighbors(), USER), "Unknown node type 'user'"),
    (lambda: sample(neighbors(), {}), "at least one node type"),
    (lambda: sample(neighbors(), META), IN_MEMORY),
    (lambda: typed(neighbors(), ONE), "a dict, node type -> ids"),
    # They must not wrap around to nodes and edges that exist.
    (lambda: neighbors().sample(graph(idtype=torch.int32), torch.tensor([2**32 + 5])), "got 4294967301"),
    (lambda: edges().sample(graph(idtype=torch.int32), torch.tensor([2**32 + 5])), "got 4294967301"),
    # edges to exclude
    (lambda: typed(neighbors(), USER, ONE), "a dict, edge type -> ids"),
    (lambda: typed(neighbors(), USER, {"likes": ONE}), "Unknown edge type 'likes'"),
    (lambda: typed(neighbors(), USER, {"follows": torch.tensor([0.5])}), IDS),
    (lambda: typed(neighbors(), USER, {"follows": META}), IN_MEMORY),
    # prob, mask and further arguments of samplers
    (lambda: neighbors(prob="weight", mask="keep"), "either prob or mask"),
    (lambda: neighbors(edge_dir="both"), "edge_dir 'in' or 'out', got 'both'"),
    (lambda: LaborSampler([2], edge_dir="both"), "edge_dir 'in' or 'out'"),
    (
        lambda: neighbors(prob=torch.ones(400)),
        "prob as the name of edge data, got a Tensor.*Store the",
    ),
    (lambda: LaborSampler([2], prob=torch.ones(400)), "prob as the name of edge data, got a Tensor"),
    (lambda: neighbors(mask=torch.ones(400, dtype=torch.bool)), "mask as the name of edge data, got a Tensor"),
    (lambda: neighbors(seed="one"), "seed to be an integer, got 'one'"),
    (lambda: neighbors(replace="no"), "replace to be True or False"),
    (lambda: neighbors(fused="no"), "fused to be True or False"),
    (lambda: neighbors(output_device="moon"), "output_device to be 'cuda', .* got 'moon'"),
    (lambda: LaborSampler([2], output_device="moon"), "output_device to be 'cuda', .* got 'moon'"),
    (lambda: sample(neighbors(output_device="cuda:99")), "Expected an available device, got 'cuda:99'"),
    (lambda: LaborSampler([2], layer_dependency="no"), "layer_dependency to be True or False"),
    (lambda: LaborSampler([2], importance_sampling=-2), "importance_sampling to be an integer of at least -1, got -2"),
    (lambda: LaborSampler([2], importance_sampling=True), "importance_sampling to be an integer"),
    (lambda: LaborSampler([2], batch_dependency=-1), "batch_dependency to be an integer of at least 0"),
    (lambda: MultiLayerFullNeighborSampler([2]), r"num_layers to be an integer, got \[2\]"),
    (lambda: neighbors(prefetch_labels="label"), "prefetch_labels as a list of names"),
    (lambda: neighbors(prefetch_node_feats={"user": "feat"}), "prefetch_node_feats as a list of names"),
    (lambda: neighbors().sample(sample(neighbors())[2][0], ONE), "got a block"),
    (lambda: neighbors().sample([], ONE), "got list"),
    # seed edges
    (lambda: edges(exclude="reverse"), "Expected exclude to be one of"),
    (lambda: edges(exclude="reverse_id"), "needs reverse_eids"),
    (lambda: edges(exclude="reverse_types"), "needs reverse_etypes"),
    (lambda: edges(exclude="reverse_types", reverse_etypes=["plays"]), "reverse_etypes as a dict"),
    (lambda: edges(exclude="self", reverse_eids=torch.arange(400)), "reverse_eids is for exclude='reverse_id'"),
    (lambda: edges(negative_sampler=5), "negative sampler to be callable, got 5"),
    (lambda: edges(prefetch_labels="weight"), "prefetch_labels as a list"),
    (lambda: edges(seed=1), "pass seed to it"),
    (lambda: around_edges([2]), r"a sampler with a method sample.* got a list"),
    (lambda: sample(edges(), torch.tensor([400])), r"in \[0, 400\), got 400"),
    (lambda: sample(edges(), torch.tensor([-1])), "got -1"),
    (lambda: sample(edges(), {"likes": ONE}), "Unknown edge type 'likes'"),
    (lambda: sample(edges(), {}), "at least one edge type"),
    (lambda: sample(edges(), torch.tensor([1.5])), IDS),
    (lambda: typed(edges(), ONE), "a dict, edge type -> ids"),
    (lambda: typed(edges(), {"plays": ONE, PLAYS: ONE}), "each edge type once"),
    (lambda: sample(reverse(torch.arange(3))), r"reverse_eids of shape \[400\]"),
    (lambda: sample(reverse(torch.full((400,), 400))), r"reverse_eids in \[0, 400\), got 400"),
    (lambda: sample(reverse(torch.rand(400))), f"reverse_eids as a {IDS}, got torch.float32"),
    (lambda: manyhop_dgl.Uniform(1.5), "number of negatives per edge to be an integer"),
    (lambda: GlobalUniform(-1), "negatives per edge to be an integer of at least 0"),
    (lambda: GlobalUniform(2, exclude_self_loops="no"), "exclude_self_loops to be True or False"),
    (lambda: GlobalUniform(2, replace="no"), "replace to be True or False"),
    (lambda: sample(drawing(torch.zeros(3))), r"as \(sources, destinations\), got a Tensor"),
    (lambda: sample(drawing(([0], [1, 2]))), "as many sources as destinations .* got 1 and 2"),
    (lambda: sample(drawing(([0], [60]))), r"destinations of negatives.* in \[0, 60\), got 60"),
    (lambda: sample(drawing(([0.5], [1]))), f"sources of negatives.* as a {IDS}"),
    (
        lambda: around_edges(dgl.dataloading.NeighborSampler([2])).sample_tensors(graph(), ONE),
        "got a NeighborSampler",
    ),
    (lambda: edges().sample_tensors(graph(), META), IN_MEMORY),
    # tensors
    (lambda: tensors(graph(), [0], [2], prob=torch.ones(400)), "prob as the name of edge data, got a Tensor"),
    (lambda: tensors(graph(), [0], [2], replace="no"), "replace to be True or False"),
    (lambda: tensors(graph(), [0], [2], key=5), r"key as \(seed, epoch, batch\), got 5"),
    (lambda: tensors(graph(), [0], [2], key=(1, 2, "3")), "each part of key to be an integer"),
    (lambda: tensors(graph(), [0], [2], device="cuda:99"), "an available device, got 'cuda:99'"),
    (lambda: tensors(graph(), [0], [2], device="mars"), "device to be 'cuda'"),
    (lambda: tensors(typed_graph(), USER, [2], node_features={"nobody": ["feat"]}), "Unknown node type 'nobody'"),
    (lambda: tensors(typed_graph(), USER, [2], edge_features={"likes": ["weight"]}), "'likes' in edge_features"),
    (lambda: tensors(typed_graph(), USER, [2], node_features="feat"), "node_features as a list of names"),
    # graphs in files
    (lambda: Graph(([0], [1])).save("never", crc32="no"), "crc32 to be True or False"),
    (lambda: Graph.open(3), "folder as a path, got 3"),
    (lambda: Graph.open("never", idtype="x"), "idtype torch.int32 or torch.int64, got 'x'"),
    (lambda: Graph(([0], [1]), idtype="x"), "idtype torch.int32 or torch.int64, got 'x'"),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_arguments(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sample(neighbors(prob="nothing")), GraphError, "edge data 'nothing'"),
        (lambda: sample(LaborSampler([2], prob="nothing")), GraphError, "edge data 'nothing'"),
        (lambda: sample(neighbors(mask="weight")), GraphError, "as bool"),
        (lambda: sample(neighbors(mask="m"), m=torch.ones(400, 2) > 0), GraphError, r"\[400\] or \[400, 1\]"),
        (lambda: sample(neighbors(prob="w"), w=weights(-1.0)), GraphError, "finite and not negative"),
        (lambda: sample(neighbors(prob="w"), w=weights(float("nan"))), GraphError, "finite and not negative"),
        (lambda: sample(neighbors(prob="w"), w=weights(float("inf"))), GraphError, "finite and not negative"),
        (lambda: sample(neighbors(prob="w"), w=torch.ones(400, 2)), GraphError, "one number per edge"),
        (
            lambda: tensors(typed_graph(), USER, [2], node_features=["nothing"]),
            FeatureError,
            r"'nothing' among the node data of the graph, which has: \['feat', 'label'\]",
        ),
        (
            lambda: tensors(typed_graph(), USER, [2], node_features={"user": ["label"]}),
            FeatureError,
            r"'label' among the data of node type 'user', which has: \['feat'\]",
        ),
        (lambda: around_edges(CannotExclude()), TypeError, "does not support edge"),
    ],
)
def test_data(call, error, message):
    with pytest.raises(error, match=message):
        call()


class CannotExclude(dgl.dataloading.Sampler):
    def sample(self, g, indices):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch_node_feats": ["feat"]}, r"prefetch_node_feats as a dict.*got a list.*as in \{'dev': ...\}"),
        ({"prefetch_labels": ["label"]}, "prefetch_labels as a dict, node type -> list of names"),
        ({"prefetch_edge_feats": ["weight"]}, "prefetch_edge_feats as a dict, edge type -> list of names"),
        ({"prefetch_labels": {"nobody": ["label"]}}, "Unknown node type 'nobody' in prefetch_labels"),
        ({"prefetch_edge_feats": {"likes": ["weight"]}}, "Unknown edge type 'likes' in prefetch_edge_feats"),
        (None, "prefetch_labels as a dict, edge type -> list of names"),
    ],
)
def test_data_of_typed_graphs_name_their_type(options, message):
    g, seed_edges = typed_graph(), {"follows": torch.tensor([0])}
    around = edges(prefetch_labels=["weight"]) if options is None else around_edges(neighbors(**options))
    for sampler, seeds in ((around.sampler, USER), (around, seed_edges))[options is None :]:
        with pytest.raises(InputError, match=message):
            sampler.sample(g, seeds)
        with pytest.raises(InputError, match=message):
            DataLoader(g, seeds, sampler)
