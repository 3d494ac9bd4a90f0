"""Tensors and arrays of every kind where GraphBolt takes ids, times and attributes: they work, or are refused."""

import numpy as np
import pytest
import torch
from gb_graphs import random_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError
from manyhop_graphbolt.stages.sampling import begin_nodes

IDS = torch.tensor([3, 1, 2, 0])
PAIRS = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4]])
GRAPH = random_graph()
pytestmark = pytest.mark.filterwarnings("ignore:.*(quantized|nested)")

# Without numbers of their dtype in memory.
REFUSED = {
    "meta": lambda ids: ids.to("meta"),
    "sparse": lambda ids: ids.to_sparse(),
    "nested": lambda ids: torch.nested.nested_tensor([ids, ids[:1]]),
    "quantized": lambda ids: torch.quantize_per_tensor(ids.float(), 1.0, 0, torch.quint8),
}
# The same ids in another form.
EQUAL = {
    "negative view": lambda ids: torch._neg_view(-ids),
    "strided": lambda ids: torch.stack([ids, ids + 99], -1)[..., 0],
    "int16": lambda ids: ids.to(torch.int16),
}


def of_items(ids):
    sampler = gb.ItemSampler(gb.ItemSet(ids, names="seeds"), batch_size=3, shuffle=True, seed=1)
    return [minibatch.seeds.tolist() for minibatch in sampler]


def of_seeds(ids):
    minibatch = gb.MiniBatch(seeds=ids)
    return begin_nodes(minibatch)[0].tolist(), minibatch.compacted_seeds.tolist()


def of_times(times):
    minibatch = gb.MiniBatch(seeds=IDS)
    minibatch.timestamp = times
    return begin_nodes(minibatch)[1].tolist()


def of_attribute(values):
    graph = gb.fused_csc_sampling_graph(torch.arange(5), torch.tensor([1, 2, 3, 0]))
    graph.add_edge_attribute("count", values)
    return graph.edge_attributes["count"].tolist()


def excluded(pairs):
    graph = gb.fused_csc_sampling_graph(torch.arange(6), torch.tensor([4, 0, 1, 2, 3]))
    layer = graph.sample_neighbors(torch.arange(5), torch.tensor([-1]))
    return layer.exclude_edges(pairs).sampled_csc.indices.tolist()


TAKES_TENSORS = {
    "items": (of_items, IDS),
    "indices of items": (lambda ids: gb.ItemSet(torch.arange(9) * 10, names="seeds")[ids].tolist(), IDS),
    "seed nodes": (of_seeds, IDS),
    "seed edges": (of_seeds, PAIRS),
    "times": (of_times, IDS),
    "nodes": (lambda ids: GRAPH.sample_neighbors(ids, torch.tensor([-1])).sampled_csc.indptr.tolist(), IDS),
    "attributes": (of_attribute, IDS),
    "indices of a graph": (lambda ids: gb.fused_csc_sampling_graph(torch.arange(5), ids).indices.tolist(), IDS),
    "unique nodes": (lambda ids: gb.unique_and_compact([ids])[0].tolist(), IDS),
    "excluded edges": (excluded, PAIRS),
}
place = pytest.mark.parametrize("place", TAKES_TENSORS.values(), ids=TAKES_TENSORS)


@place
@pytest.mark.parametrize("odd", REFUSED.values(), ids=REFUSED)
def test_without_numbers_in_memory(place, odd):
    use, ids = place
    with pytest.raises(InputError):
        use(odd(ids))


@place
@pytest.mark.parametrize("other", EQUAL.values(), ids=EQUAL)
def test_other_forms_of_the_same_ids(place, other):
    use, ids = place
    assert use(other(ids)) == use(ids)


@pytest.mark.parametrize("items", [np.array(["a", "b"]), (torch.tensor(3), IDS), torch.tensor(2.5)], ids=str)
def test_items_that_are_no_rows_of_numbers(items):
    with pytest.raises(InputError):
        gb.ItemSet(items)


def test_unsigned_seeds_of_a_minibatch():
    assert of_seeds(IDS.to(torch.uint32)) == of_seeds(IDS)
