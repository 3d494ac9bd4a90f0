"""GraphBolt's loader goes on in mid-epoch: with the same minibatches, and with no other chain's state."""

import pytest
import torch
from gb_graphs import batches, random_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import StateError

GRAPH = random_graph()
SEEDS = torch.arange(60)


def chain(graph=GRAPH, seeds=SEEDS, fanouts=(3, 2), stage="sample_neighbor", **kwargs):
    kwargs = {"batch_size": 4, "shuffle": True, "seed": 3} | kwargs
    return getattr(batches(("seeds", "labels"), (seeds, seeds), **kwargs), stage)(graph, list(fanouts))


OTHERS = {
    "stage 0: NeighborSampler": {"stage": "sample_layer_neighbor"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_state_of_another_chain(name):
    state = gb.DataLoader(chain()).state_dict()
    with pytest.raises(StateError, match=name.split(":")[0]):
        gb.DataLoader(chain(**OTHERS[name])).load_state_dict(state)


def test_what_may_differ():
    features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(torch.rand(60, 3))})
    state = gb.DataLoader(chain()).state_dict()
    pipe = chain().transform().fetch_feature(features, node_feature_keys=["feat"]).copy_to("cpu")
    gb.DataLoader(pipe, num_workers=2).load_state_dict(state)
