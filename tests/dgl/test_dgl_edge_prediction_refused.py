"""Seed edges, samplers and negatives that do not make sense."""

import pytest
import torch
from sampler_graphs import graph, typed_graph

import manyhop_dgl
from manyhop.errors import InputError

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

NeighborSampler = manyhop_dgl.NeighborSampler

as_edge_prediction_sampler = manyhop_dgl.as_edge_prediction_sampler

PLAYS = ("user", "plays", "game")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": "reverse"}, "Expected exclude to be one of"),
        ({"exclude": "reverse_id"}, "needs reverse_eids"),
        ({"exclude": "reverse_types"}, "needs reverse_etypes"),
        ({"exclude": "reverse_types", "reverse_etypes": ["plays"]}, "reverse_etypes as a dict"),
        ({"exclude": "self", "reverse_eids": torch.arange(400)}, "reverse_eids is for exclude='reverse_id'"),
        ({"negative_sampler": 5}, "negative sampler to be callable, got 5"),
        ({"prefetch_labels": "weight"}, "prefetch_labels as a list"),
        ({"seed": 1}, "pass seed to it"),
    ],
)
def test_arguments_that_do_not_make_sense(options, message):
    with pytest.raises(InputError, match=message):
        as_edge_prediction_sampler(NeighborSampler([2]), **options)


def test_edges_that_do_not_make_sense():
    sampler = as_edge_prediction_sampler(NeighborSampler([2]))
    for edges, message in (
        (torch.tensor([400]), r"in \[0, 400\), got 400"),
        (torch.tensor([-1]), "got -1"),
        ({"likes": torch.tensor([1])}, "Unknown edge type 'likes'"),
        ({}, "at least one edge type"),
        (torch.tensor([1.5]), "1-dimensional tensor of integers"),
    ):
        with pytest.raises(InputError, match=message):
            sampler.sample(graph(), edges)
    with pytest.raises(InputError, match="a dict, edge type -> edge ids"):
        sampler.sample(typed_graph(), torch.tensor([1]))
    with pytest.raises(InputError, match="each edge type once"):
        sampler.sample(typed_graph(), {"plays": torch.tensor([1]), PLAYS: torch.tensor([1])})
    with pytest.raises(InputError, match=r"reverse_eids of shape \[400\]"):
        as_edge_prediction_sampler(NeighborSampler([2]), exclude="reverse_id", reverse_eids=torch.arange(3)).sample(
            graph(), torch.tensor([1])
        )
    for reverse, message in (
        (torch.full((400,), 400), r"reverse_eids of .* in \[0, 400\), got 400"),
        (torch.rand(400), r"reverse_eids of .* as a 1-dimensional tensor of integers, got torch\.float32"),
    ):
        with pytest.raises(InputError, match=message):
            as_edge_prediction_sampler(NeighborSampler([2]), exclude="reverse_id", reverse_eids=reverse).sample(
                graph(), torch.tensor([1])
            )
    with pytest.raises(InputError, match=r"number of negatives per edge to be an integer"):
        manyhop_dgl.Uniform(1.5)
    with pytest.raises(InputError, match="negatives per edge to be an integer of at least 0"):
        manyhop_dgl.GlobalUniform(-1)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (torch.zeros(3), r"as \(sources, destinations\), got a Tensor"),
        (([0], [1, 2]), "as many sources as destinations .* got 1 and 2"),
        (([0], [60]), r"destinations of negatives .* in \[0, 60\), got 60"),
        (([0.5], [1]), "sources of negatives .* as a 1-dimensional tensor of integers"),
    ],
)
def test_negatives_of_the_user_that_do_not_make_sense(drawn, message):
    sampler = as_edge_prediction_sampler(NeighborSampler([2]), negative_sampler=lambda g, edges: drawn)
    with pytest.raises(InputError, match=message):
        sampler.sample(graph(), torch.tensor([1]))


def test_samplers_that_cannot_leave_out_edges():
    class Sampler(dgl.dataloading.Sampler):
        def sample(self, g, indices):
            raise NotImplementedError

    with pytest.raises(TypeError, match="does not support edge"):
        as_edge_prediction_sampler(Sampler())


def test_tensors_need_our_sampler_beneath():
    sampler = as_edge_prediction_sampler(dgl.dataloading.NeighborSampler([2]))
    with pytest.raises(InputError, match="got a NeighborSampler"):
        sampler.sample_tensors(graph(), torch.tensor([1]))
    with pytest.raises(InputError, match=r"in memory, got a tensor .* on meta"):
        as_edge_prediction_sampler(NeighborSampler([2])).sample_tensors(graph(), torch.tensor([1], device="meta"))
