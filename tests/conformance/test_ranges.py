"""Ranges for Nsight Systems around the stages of all loaders, with NVTX stood in for."""

from harness import HARNESSES
from nvtx_stand_in import OF_FOUR_BATCHES, counted_ranges

PYG = """
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, SamplerOutput
from manyhop_pyg import LinkNeighborLoader, NeighborLoader, NodeLoader, ShaDowKHopSampler

class Own(BaseSampler):
    def sample_from_nodes(self, index):
        none = torch.empty(0, dtype=torch.int64)
        return SamplerOutput(node=index.node, row=none, col=none, edge=none, metadata=(index.input_id, None))

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError

ring = torch.arange(40)
data = Data(x=torch.zeros(40, 3), edge_index=torch.stack([ring, ring.roll(1)]))
options = {"batch_size": 10, "num_workers": 1}
loaders = {
    "nodes": NeighborLoader(data, [2], **options),
    "links": LinkNeighborLoader(data, [2], **options),
    "subgraphs": ShaDowKHopSampler(data, 1, 2, **options),
    "bidirectional": NeighborLoader(data, [2, 2], subgraph_type="bidirectional", **options),
    "sampler of the user": NodeLoader(data, Own(), **options),
}
found.update((name, counts_of(loader)) for name, loader in loaders.items())
"""

DGL = """
import manyhop_dgl.compat
import dgl
import manyhop_dgl.graphbolt as gb
from manyhop_dgl import DataLoader, EdgePredictionSampler, LaborSampler, NeighborSampler

ring = torch.arange(40)
g = dgl.graph((ring, ring.roll(1)))
g.ndata["x"] = torch.zeros(40, 3)
samplers = {
    "nodes": NeighborSampler([2], prefetch_node_feats=["x"]),
    "layers": LaborSampler([2], prefetch_node_feats=["x"]),
    "edges": EdgePredictionSampler(NeighborSampler([2], prefetch_node_feats=["x"])),
    "sampler of DGL": dgl.dataloading.ShaDowKHopSampler([2], prefetch_node_feats=["x"]),
}
for name, sampler in samplers.items():
    found[f"DGL, {name}"] = counts_of(DataLoader(g, ring, sampler, batch_size=10, num_workers=1))

class OwnStage(gb.SubgraphSampler):
    def sample_subgraphs(self, seeds, seeds_timestamp=None):
        return seeds, []

graph, store = gb.from_dglgraph(g, is_homogeneous=True), gb.BasicFeatureStore({})
store[("node", None, "x")] = gb.TorchBasedFeature(torch.zeros(40, 3))
for name in ("sample_neighbor", "sample_layer_neighbor", "a subclass of the user"):
    for num_workers in (0, 1):
        items = gb.ItemSampler(gb.ItemSet(ring, names="seeds"), batch_size=10).transform(lambda item: item)
        pipe = getattr(items, name)(graph, [2]) if hasattr(items, name) else OwnStage(items)
        pipe = pipe.fetch_feature(store, node_feature_keys=["x"])
        found[f"{name}, {num_workers}"] = counts_of(gb.DataLoader(pipe, num_workers=num_workers))
"""


def test_stages_are_ranges_if_the_environment_asks_for_them():
    found = counted_ranges(PYG + DGL if HARNESSES["DGL"].installed() else PYG)
    assert found == dict.fromkeys(found, OF_FOUR_BATCHES)
    assert len(found) == (15 if HARNESSES["DGL"].installed() else 5)
