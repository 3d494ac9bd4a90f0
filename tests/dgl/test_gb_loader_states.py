"""GraphBolt's loader goes on in mid-epoch: with the same minibatches, and with no other chain's state."""

import json

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


def as_plain(minibatch):
    layers = [layer.original_edge_ids.tolist() for layer in minibatch.sampled_subgraphs]
    return minibatch.key, minibatch.seeds.tolist(), minibatch.input_nodes.tolist(), layers


def epochs(loader, number=1):
    return [[as_plain(minibatch) for minibatch in loader] for _ in range(number)]


def saved(loader, received):
    """The state after some minibatches, as JSON gives it back, and the rest of the epoch."""
    iterator = iter(loader)
    for _ in range(received):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    return state, [as_plain(minibatch) for minibatch in iterator]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}], ids=str)
def test_the_rest_of_an_epoch(num_workers, options):
    loader = gb.DataLoader(chain(**options), num_workers=num_workers)
    epochs(loader)
    state, rest = saved(loader, 6)
    assert len(rest) == 9
    following = epochs(loader)
    for again in (loader, gb.DataLoader(chain(**options | {"seed": 8}), num_workers=1)):  # takes the seed over
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert [*epochs(again), *epochs(again)] == [rest, *following]


def test_a_seed_that_was_drawn():
    torch.manual_seed(5)
    loader = gb.DataLoader(chain(seed=None))
    epochs(loader)
    state, rest = saved(loader, 4)
    assert state["drawn"]
    following = epochs(loader)
    again = gb.DataLoader(chain(seed=None))
    again.load_state_dict(state)
    assert epochs(again) == [rest]
    assert epochs(again) != following
    of_a_seed = gb.DataLoader(chain(seed=3))
    of_a_seed.load_state_dict(state)
    assert epochs(of_a_seed, 2) == [rest, epochs(gb.DataLoader(chain()), 3)[2]]


def test_between_epochs_and_before_the_first():
    loader = gb.DataLoader(chain())
    first = loader.state_dict()
    expected = epochs(loader, 2)
    state, rest = saved(loader, 15)
    assert (first["epoch"], first["batch"], state["epoch"], state["batch"], rest) == (0, 0, 3, 0, [])
    loader.load_state_dict(first)
    assert epochs(loader, 2) == expected
    unseeded = gb.DataLoader(chain(seed=None))
    list(unseeded)
    unseeded.load_state_dict(unseeded.state_dict())
    assert len(list(unseeded)) == 15


OTHERS = {
    "batch_size=5": {"batch_size": 5},
    "shuffle=False": {"shuffle": False},
    "drop_last=True": {"drop_last": True},
    "stage 0": {"fanouts": (3, 3)},
    "stage 0: NeighborSampler": {"stage": "sample_layer_neighbor"},
    "csc_indptr of the graph": {"graph": random_graph(seed=1)},
    "items": {"seeds": SEEDS.flip(0)},
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
