"""Layers of what the GPU backend samples, in triton's interpreter where there is no GPU."""

import pytest
import torch
from gb_graphs import random_graph, random_hetero_graph

from manyhop.sampling import BatchKey, NodeRequest
from manyhop_dgl.graphbolt.stages.layers import layers_of

sampling = pytest.importorskip("manyhop.sampling")
pytest.importorskip("triton", reason="the backend is triton's")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
@pytest.mark.parametrize("hetero", [False, True])
def test_layers_are_those_of_the_cpu(hetero):
    graph = random_hetero_graph(12, 8, 30) if hetero else random_graph(20, 60)
    fanouts = [torch.tensor([2, 1, 2])] * 2 if hetero else [2, 3]
    topology = graph.topology_for(fanouts)
    spec = topology.spec(fanouts)
    seeds = topology.seeds({"user": torch.arange(3)} if hetero else torch.arange(3))
    request = NodeRequest(key=BatchKey(1, 2, 3), seeds=seeds)
    ours = layers_of(sampling.GPUSampler(topology.graph, spec, device="cpu").sample(request), with_ids=True)
    for layer, same in zip(ours, layers_of(topology.sampler(spec).sample(request), with_ids=True), strict=True):
        assert repr(layer) == repr(same)
