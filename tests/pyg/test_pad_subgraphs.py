"""``pad="auto"``: batches of loaders of subgraphs have the rows of those without padding; models compute the same."""

from typing import Any

import pytest
import torch
from grouped import StandIn, compare
from helpers_pyg import all_same, both, node_loader
from test_pad_loader import check
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GraphConv, SAGEConv, global_add_pool
from torch_geometric.utils import trim_to_layer

from manyhop_pyg import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    PPRLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
)


def clusters(data, **options):
    return ClusterLoader(ClusterData(data, 7, cluster=torch.arange(60) % 7), batch_size=2, shuffle=True, **options)


def edges(data, **options):
    return GraphSAINTEdgeSampler(data, 9, 6, 3, **options)


def nodes(data, **options):
    return GraphSAINTNodeSampler(data, 9, 6, 3, **options)


def walks(data, **options):
    return GraphSAINTRandomWalkSampler(data, 6, 2, 6, 3, **options)


def parts(data, **options):
    return RandomNodeLoader(data, 4, shuffle=True, **options)


def ranked(data, **options):
    return PPRLoader(data, 5, torch.arange(30), eps=0.06, batch_size=8, shuffle=True, **options)


def hops(data, **options):
    return ShaDowKHopSampler(data, 2, 3, batch_size=8, **options)


SETS, GRAPHS = [clusters, edges, nodes, walks, parts, ranked], [hops]


@pytest.mark.parametrize("make", SETS)
def test_only_padding_is_added(data, make):
    for plain, padded in both(make, data, seed=3):
        check(plain, padded)
        seeds = "n_id" if make is parts else "input_id"
        assert torch.equal(padded[seeds][: padded.seed_mask.numel()][padded.seed_mask], plain[seeds])
        for norm, mask in (("node_norm", padded.node_mask), ("edge_norm", padded.edge_mask)):
            if norm in plain:
                assert torch.equal(padded[norm][mask], plain[norm])
                assert not padded[norm][~mask].any()


@pytest.mark.parametrize("make", GRAPHS)
def test_graphs_of_seeds(data, make):
    conv = SAGEConv(4, 3)
    for plain, padded in both(make, data, seed=3):
        number, mask = plain.num_graphs, padded.seed_mask
        assert mask.tolist() == [True] * number + [False] * (8 - number)
        for name in ("n_id", "x", "batch"):
            assert torch.equal(padded[name][padded.node_mask], plain[name])
        assert torch.equal(padded.e_id[padded.edge_mask], plain.e_id)
        assert torch.equal(padded.y[mask], plain.y)
        assert torch.equal(padded.ptr[: number + 1], plain.ptr)
        assert torch.equal(padded.root_n_id[mask], plain.root_n_id)
        assert not padded.node_mask[padded.root_n_id[~mask]].any()
        expected = global_add_pool(conv(plain.x, plain.edge_index), plain.batch)
        pooled = global_add_pool(conv(padded.x, padded.edge_index), padded.batch, size=padded.num_graphs + 1)
        assert torch.allclose(pooled[:number], expected, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [*SETS, *GRAPHS])
def test_on_a_gpu_as_on_the_cpu(data, make):
    cpu, gpu = (list(make(data, seed=3, pad="auto", device=device)) for device in ("cpu", "cuda"))
    assert all(batch.edge_index.is_cuda for batch in gpu)
    assert all_same(cpu, [batch.cpu() for batch in gpu])


@pytest.mark.parametrize("make", [edges, parts, hops])
def test_where_a_gpu_samples(data, on_gpu, make):
    compare(on_gpu, lambda: make(data, seed=3, pad="auto"), epochs=1)
    assert max(StandIn.groups) > 1


class Net(torch.nn.Module):
    def __init__(self, conv: Any, trim: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = torch.nn.ModuleList([conv(4, 8), conv(8, 3)])
        self.trim = trim

    def forward(self, batch: Data) -> torch.Tensor:
        sampled = (batch.num_sampled_nodes, batch.num_sampled_edges) if self.trim else (None, None)
        return self.layers(batch.x, batch.edge_index, *sampled)

    def layers(self, x: Any, edge_index: Any, num_nodes: Any, num_edges: Any) -> torch.Tensor:
        for layer, conv in enumerate(self.convs):
            if self.trim:
                x, edge_index, _ = trim_to_layer(layer, num_nodes, num_edges, x, edge_index)
            x = conv(x, edge_index).relu()
        return x


CONVS = {
    "mean": SAGEConv,
    "max": lambda i, o: SAGEConv(i, o, aggr="max"),
    "sum": GraphConv,
    "gcn": GCNConv,
    "gat": lambda i, o: GATConv(i, o, add_self_loops=False),
    "gat with loops": GATConv,
}


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("conv", CONVS)
def test_models_compute_the_same(data, conv, trim):
    model = Net(CONVS[conv], trim).double()
    data.x = data.x.double()
    for plain, padded in both(node_loader, data):
        n, expected, got = plain.batch_size, model(plain), model(padded)
        assert torch.allclose(got[:n], expected[:n], rtol=0, atol=1e-14)
        losses = [
            torch.nn.functional.cross_entropy(expected[:n], plain.y[:n]),
            (torch.nn.functional.cross_entropy(got[:8], padded.y[:8], reduction="none") * padded.seed_mask).sum()
            / padded.seed_mask.sum(),
        ]
        grads = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
        for a, b in zip(*grads, strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is:DeprecationWarning")  # torch importing its compiler
def test_a_model_is_compiled_once(data):
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    net = Net(SAGEConv, trim=True)
    torch._dynamo.reset()
    model = torch.compile(net.layers, backend=backend, dynamic=False, fullgraph=True)
    for batch in node_loader(data, pad="auto"):
        model(batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges)
    assert len(compiled) == 1
