"""Ranges for Nsight Systems, with NVTX stood in for."""

from nvtx_stand_in import OF_FOUR_BATCHES, counted_ranges

SCRIPT = """
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


def test_stages_are_ranges_if_the_environment_asks_for_them():
    found = counted_ranges(SCRIPT)
    assert found == dict.fromkeys(found, OF_FOUR_BATCHES)
    assert len(found) == 5
