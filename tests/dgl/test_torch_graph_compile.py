"""torch.compile of layers on graphs on torch tensors: the same results, and few places where it stops tracing."""

import dgl.nn.pytorch as dnn
import pytest
import torch
from sampler_graphs import graph
from torch_graphs import block, on_torch

import manyhop_dgl
from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too

pytestmark = pytest.mark.filterwarnings("ignore")  # of dynamo, about what it traces
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


@pytest.mark.parametrize("name", LAYERS)
def test_blocks_of_which_nothing_is_made_yet(name):
    layer, most = LAYERS[name]
    with graphs_of_cpu_too():
        sample = manyhop_dgl.sample_tensors(graph(), torch.arange(20), [3, 4], key=(1, 0, 0))
        manyhop_dgl.to_blocks(sample)  # the first ones of these types are made at once
        lazy = manyhop_dgl.to_blocks(sample)[0]
    torch._dynamo.reset()
    assert "_graph" not in vars(lazy)
    explained = torch._dynamo.explain(layer())(lazy, torch.rand(len(sample.input_nodes), 6))
    # Blocks are cut in a graph of their own.
    assert explained.graph_break_count <= most + 1, explained.break_reasons
