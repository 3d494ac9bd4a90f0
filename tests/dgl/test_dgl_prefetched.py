"""Data that change between batches: a batch has those of the moment when it is returned."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from test_dgl_loader_tensors import graph

from manyhop.errors import FeatureError
from manyhop_dgl import DataLoader, NeighborSampler
from manyhop_dgl.samplers.features import Prefetched, values_of

CHANGES = {
    "in place": lambda g, sampler: g.ndata["x"].add_(1),
    "replaced": lambda g, sampler: g.ndata.update({"x": torch.zeros(g.num_nodes(), 2)}),
    "rows": lambda g, sampler: g.nodes[[1, 2]].data.update({"x": torch.zeros(2, 3)}),  # DGL makes another tensor
    "names": lambda g, sampler: sampler.prefetch_node_feats.append("y"),
    "names by type": lambda g, sampler: setattr(sampler, "prefetch_node_feats", {"_N": ["y"]}),
}


@pytest.mark.parametrize("kind", ["plain", "ours"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(kind, change):
    if (kind, change) == ("ours", "rows"):
        pytest.skip("an interface of DGL's graphs")
    g, sampler = graph(kind), NeighborSampler([2], prefetch_node_feats=["x"])
    g.ndata["x"].requires_grad_(change == "rows")
    batches = iter(DataLoader(g, torch.arange(40), sampler, batch_size=8, num_workers=1, output="tensors"))
    next(batches)
    with torch.no_grad():
        CHANGES[change](g, sampler)
    names = sampler.prefetch_node_feats
    for batch in batches:
        for name in names["_N"] if isinstance(names, dict) else names:
            assert torch.equal(batch.node_features[name], g.ndata[name][batch.input_nodes])


@pytest.mark.parametrize("kind", ["plain", "ours"])
def test_data_of_a_scope_and_data_that_are_removed(kind):
    g, sampler = graph(kind), NeighborSampler([2], prefetch_node_feats=["x"])
    batches = iter(DataLoader(g, torch.arange(40), sampler, batch_size=8, num_workers=1, output="tensors"))
    with g.local_scope():
        g.ndata["x"] = torch.zeros(g.num_nodes(), 2)
        assert next(batches).node_features["x"].shape[1] == 2
    batch = next(batches)
    assert torch.equal(batch.node_features["x"], g.ndata["x"][batch.input_nodes])
    del g.ndata["x"]
    with pytest.raises(FeatureError, match="'x' among the node data"):
        list(batches)


@pytest.mark.parametrize("kind", ["plain", "ours"])
def test_nothing_is_looked_up_again_without_a_change(kind):
    g = graph(kind)
    sampler = NeighborSampler([2], prefetch_node_feats=["x"], prefetch_labels=["y"], prefetch_edge_feats=["w"])
    prefetched = Prefetched(g, sampler, sampler)
    data = prefetched.data()
    g.ndata["x"].add_(1)  # which the version of the tensor tells
    g.ndata["other"] = torch.zeros(g.num_nodes())
    g.edata["w"] = g.edata.pop("w")
    assert prefetched.data() is prefetched.all_data() is data


def test_data_of_a_subgraph_are_gathered_by_one_thread_at_a_time():
    """DGL's columns gather when they are first read, in several steps."""

    class Column:
        def __init__(self):
            self.index, self.device, self.deferred_dtype, self.readers = torch.arange(2), None, None, 0

        @property
        def data(self):
            self.readers += 1
            time.sleep(0.02)
            found, self.readers = self.readers, self.readers - 1
            return found

    frame = SimpleNamespace(_columns={"x": Column()})
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: values_of(frame, "x"), range(4))) == [1] * 4
