"""What PyG and its users do with loaders: wrap them, feed models, sample by hand, change the data, copy them."""

import copy
import pickle

import pytest
import torch
from helpers_pyg import all_same, check_batch, same
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import CachedLoader, PrefetchLoader, ZipLoader
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, SAGEConv
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.transforms import Compose, NormalizeFeatures, ToUndirected

from manyhop_pyg import LinkNeighborLoader, NeighborLoader, NodeLoader


def test_zip_loader(data):
    nodes = NeighborLoader(data, [3, 3], input_nodes=torch.arange(40))
    links = LinkNeighborLoader(data, [3, 3], edge_label_index=data.edge_index[:, :30])
    for filter_per_worker in (None, False, True):
        loader = ZipLoader([nodes, links], filter_per_worker=filter_per_worker, batch_size=8,
                           num_workers=2 if filter_per_worker else 0)  # fmt: skip
        assert nodes.filter_per_worker == links.filter_per_worker == (filter_per_worker is not False)
        assert len(loader) == 4
        assert len(loader.dataset) == 30
        assert repr(loader) == f"ZipLoader(loaders=[{nodes}, {links}])"
        for i, (node, link) in enumerate(loader):
            assert node.batch_size == min(8, 30 - 8 * i)
            assert torch.equal(node.n_id[: node.batch_size], torch.arange(8 * i, 8 * i + node.batch_size))
            check_batch(node, data)
            ends = link.n_id[link.edge_label_index]
            assert torch.equal(ends, data.edge_index[:, 8 * i : 8 * i + node.batch_size])
        node, link = loader([5, 6])
        assert node.n_id[:2].tolist() == [5, 6]
        assert link.input_id.tolist() == [5, 6]


def test_prefetch_loader(data):
    loader = NeighborLoader(data, [3, 3], batch_size=8, shuffle=True, seed=2, num_workers=1)
    want = list(NeighborLoader(data, [3, 3], batch_size=8, shuffle=True, seed=2))
    prefetched = PrefetchLoader(loader, device=torch.device("cpu"))
    assert len(prefetched) == len(loader)
    assert all_same(list(prefetched), want)
    assert repr(prefetched) == f"PrefetchLoader({loader})"


def test_cached_loader(data):
    seen = []
    loader = CachedLoader(
        NeighborLoader(data, [3, 3], batch_size=8, shuffle=True), transform=lambda batch: seen.append(1) or batch
    )
    first = list(loader)
    assert all(a is b for a, b in zip(first, loader, strict=True))
    assert len(seen) == len(first) == len(loader) == 8
    loader.clear()
    assert not all_same(list(loader), first)  # the next epoch


@pytest.mark.parametrize("model", [GCN, GraphSAGE, GIN, GAT])
@pytest.mark.parametrize("cache", [False, True])
def test_inference_layer_by_layer(data, model, cache):
    torch.manual_seed(0)
    net = model(4, 8, num_layers=3, out_channels=3, dropout=0.5).eval()
    if model is GCN:  # degrees in a batch are not those of the graph
        net = GCN(4, 8, num_layers=3, out_channels=3, normalize=False).eval()
    loader = NeighborLoader(data, [-1], batch_size=25, num_workers=1)
    out = net.inference(loader, cache=cache)
    torch.testing.assert_close(out, net(data.x, data.edge_index))


class Sage(torch.nn.Module):
    """PyG's models with ``trim_to_layer``, for graphs with types."""

    def __init__(self, num_layers):
        super().__init__()
        self.convs = torch.nn.ModuleList(SAGEConv((-1, -1), 8) for _ in range(num_layers))

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return x


@pytest.fixture
def typed(hetero):
    hetero["field"].x = torch.randn(6, 2)
    del hetero["venue"]
    return ToUndirected()(hetero)


def test_transforms_of_pyg(data):
    data.x = data.x.abs() * 1000  # NormalizeFeatures leaves rows alone whose sum is below 1
    loader = NeighborLoader(data, [3, 3], batch_size=8, transform=Compose([NormalizeFeatures(), ToUndirected()]))
    batch = next(iter(loader))
    torch.testing.assert_close(batch.x.sum(-1), torch.ones(batch.num_nodes))
    assert batch.is_undirected()


class EveryOther(BaseSampler):
    """A sampler of the user that knows nothing of manyhop: each seed with the node after it."""

    def sample_from_nodes(self, index, **kwargs):
        node = torch.cat([index.node, index.node + 1]).unique()
        node = torch.cat([index.node, node[~torch.isin(node, index.node)]])
        n = index.node.numel()
        row = torch.tensor([(node == i + 1).nonzero()[0].item() for i in index.node.tolist()])
        return SamplerOutput(node, row, torch.arange(n), index.node.clone(), metadata=(index.input_id, index.time))

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError

    @property
    def edge_permutation(self):
        return torch.arange(59).flip(0)


def test_samplers_of_the_user():
    data = Data(x=torch.arange(60.0).view(60, 1), edge_index=torch.stack([torch.arange(1, 60), torch.arange(59)]))
    data.edge_attr = torch.arange(59)
    epochs = [list(NodeLoader(data, EveryOther(), torch.arange(50), batch_size=7, num_workers=n)) for n in (0, 2)]
    assert all_same(*epochs)
    for batch in epochs[0]:
        assert torch.equal(batch.n_id[batch.edge_index[0]], batch.n_id[: batch.batch_size] + 1)
        assert torch.equal(batch.e_id, 58 - batch.n_id[: batch.batch_size])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.x.view(-1).long(), batch.n_id)


def test_batches_are_data_like_any_other(data, hetero):
    batch = next(iter(NeighborLoader(data, [3, 3], batch_size=8)))
    assert type(batch) is Data
    assert batch.validate()
    for other in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), batch.clone()):
        assert same(other, batch)
    assert batch.to("cpu").x.device.type == "cpu"
    assert batch.subgraph(torch.arange(4)).num_nodes == 4
    assert Data.from_dict(batch.to_dict()).num_nodes == batch.num_nodes
    typed = next(iter(NeighborLoader(hetero, [3, 3], ("paper", None), batch_size=8)))
    assert type(typed) is HeteroData
    assert same(pickle.loads(pickle.dumps(typed)), typed)
    del typed["venue"]
    assert typed.to_homogeneous(node_attrs=[], edge_attrs=[]).num_edges == typed.num_edges
