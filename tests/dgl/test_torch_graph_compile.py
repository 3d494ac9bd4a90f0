"""torch.compile of layers on graphs on torch tensors: the same results, and few places where it stops tracing."""

import dgl.nn.pytorch as dnn
import pytest
import torch
from torch_graphs import block, on_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*lru_cache:UserWarning")
LAYERS = {
    "SAGEConv": (lambda: dnn.SAGEConv(6, 4, "mean"), 2),
    "GATConv": (lambda: dnn.GATConv(6, 4, 3, allow_zero_in_degree=True), 2),
}


def gradients(call, layer, g, x):
    out = call(g, x)
    (out**2).sum().backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    return [out.detach(), *grads]


def check(name, g, x, most):
    """Compile a layer by dynamo alone; ``most`` breaks. The first break of a layer ends its first graph."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = LAYERS[name][0]().to(x.device)
    expected = gradients(layer, layer, g, x)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, backend=count)
    for _ in range(2):
        for a, b in zip(gradients(compiled, layer, g, x), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    explained = torch._dynamo.explain(layer)(g, x)
    assert explained.graph_break_count <= most, explained.break_reasons
    return explained.graph_break_count


@pytest.mark.parametrize("name", LAYERS)
def test_graph_breaks(name):
    check(name, on_torch(block()), torch.rand(60, 6), LAYERS[name][1])
