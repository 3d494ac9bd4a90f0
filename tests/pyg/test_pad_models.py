"""Models compute the same on batches of fixed sizes."""

from typing import Any

import pytest
import torch
from padded import both, node_loader
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GraphConv, SAGEConv
from torch_geometric.utils import trim_to_layer


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
