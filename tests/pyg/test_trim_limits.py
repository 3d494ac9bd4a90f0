"""``accelerate(trim=True)`` where it cannot trim: all rows and a line of the log, or an error."""

import copy
import traceback
from typing import Any

import pytest
import torch
from test_trim import Net, batches_of, check, trimmed
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, GraphSAGE, SAGEConv, TransformerConv

from manyhop.errors import InputError
from manyhop_pyg import accelerate


@pytest.mark.parametrize(
    ("options", "change"),
    [({"subgraph_type": "induced"}, lambda e: e), ({}, torch.clone), ({"transform": lambda b: b.clone()}, lambda e: e)],
    ids=["induced", "changed", "transformed"],
)
def test_edges_of_which_hops_are_not_known(data, caplog, options, change):
    model = Net(SAGEConv)
    fast = copy.deepcopy(model)
    accelerate(fast, trim=True)
    for batch in batches_of(data, "cpu", **options):
        out = check(model, fast, batch.num_nodes, batch.x, change(batch.edge_index))
        assert out.size(0) == batch.num_nodes
    (message,) = caplog.messages
    assert message.startswith("Layers are not trimmed, since the edges are not those of a batch")


def test_inference_layer_by_layer_and_on_the_graph(data, caplog):
    """Both need all rows, and say nothing."""
    batches = batches_of(data, "cpu")
    model = Net(SAGEConv)
    fast = trimmed(model, batches[0].x, batches[0].edge_index).eval()
    batch = batches[1]
    torch.testing.assert_close(
        fast.convs[0](batch.x, batch.edge_index), model.convs[0](batch.x, batch.edge_index), rtol=2e-5, atol=2e-5
    )
    torch.testing.assert_close(fast(data.x, data.edge_index), model(data.x, data.edge_index), rtol=2e-5, atol=2e-5)
    assert len(fast(batch.x, batch.edge_index)) == batch.batch_size
    assert caplog.messages == []
    fast.train().convs[0](batch.x, batch.edge_index)
    (message,) = caplog.messages
    assert "layers are called outside of a call of the model" in message


class Residual(Net):
    """Adds rows of different layers."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x + self.convs[0](x, edge_index)


def test_rows_of_different_layers(data):
    first, batch = batches_of(data, "cpu")[:2]
    for model in (Residual(lambda i, o: SAGEConv(4, 4)), GraphSAGE(4, 8, 2, 3, jk="cat")):
        fast = trimmed(model, first.x, first.edge_index)
        with pytest.raises(RuntimeError) as caught:
            fast(batch.x, batch.edge_index)
        text = "".join(traceback.format_exception(caught.value))
        assert "so rows of different layers differ in number" in text
        assert "Leave out trim=True." in text


class Loose(torch.nn.Module):
    """Calls a layer as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 4)

    def forward(self, x: Any, edge_index: Any, *, times: int = 2, change: Any = None, **more: Any) -> Any:
        for _ in range(times):
            x = self.conv(x, edge_index, **more)
            edge_index = edge_index if change is None else change(edge_index)
        return x


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": 3}, "Expected 2 layers in each call of the model, as in the first one, got more"),
        ({"change": torch.clone}, "Expected the same edges in all layers, got others after trimmed layers"),
        ({"return_attention_weights": True}, "Expected layers of x, edge_index and rows of .* got True"),
        ({"edge_attr": torch.zeros(3, 1)}, r"Expected layers of .* edges, got \[3, 1\]"),
    ],
    ids=["more", "edges", "weights", "attributes"],
)
def test_calls_that_cannot_be_trimmed(data, options, message):
    first, batch = batches_of(data, "cpu")[:2]
    fast = trimmed(Loose(), first.x, first.edge_index)
    with pytest.raises(InputError, match=f"{message}.* Leave out trim=True"):
        fast(batch.x, batch.edge_index, **options)
    with pytest.raises(InputError, match=r"Expected rows of at least .* Leave out trim=True"):
        fast(batch.x[:-1], batch.edge_index)
    assert len(fast(batch.x, batch.edge_index)) == batch.batch_size


def test_fewer_layers_than_in_the_first_call(data):
    """Are trimmed less, but right."""
    first, batch = batches_of(data, "cpu")[:2]
    model = Loose()
    fast = trimmed(model, first.x, first.edge_index)
    out, expected = (net(batch.x, batch.edge_index, times=1) for net in (fast, model))
    assert batch.batch_size < len(out) < batch.num_nodes
    torch.testing.assert_close(out, expected[: len(out)], rtol=2e-5, atol=2e-5)


def test_models_that_cannot_be_trimmed():
    with pytest.raises(InputError, match=r"layers that accelerate supports, got 1: TransformerConv is none of"):
        accelerate(torch.nn.Sequential(SAGEConv(4, 4), TransformerConv(4, 4)), trim=True)
    with pytest.raises(InputError, match=r"got none\. Leave out trim=True"):
        accelerate(torch.nn.Linear(4, 4), trim=True)
    model = Net(SAGEConv)
    accelerate(model)
    with pytest.raises(InputError, match=r"got convs\.0: it is accelerated already"):
        accelerate(model, trim=True)


def test_gcn_by_pygs_code(data):
    first, batch = batches_of(data, "cpu")[:2]
    model = Net(lambda i, o: GCNConv(i, o, cached=True))
    accelerate(model, trim=True)
    model(first.x, first.edge_index)
    with pytest.raises(InputError, match=r"Expected GCNConv\(cached=False\)"):
        model(batch.x, batch.edge_index)


def test_torch_compile(data):
    """A compiled model computes all rows, compiled layers behind trimmed ones what is needed."""
    first, batch = batches_of(data, "cpu")[:2]
    model = Net(SAGEConv)
    fast = trimmed(model, first.x, first.edge_index)
    compiled = torch.compile(fast, backend="aot_eager")
    for _ in range(2):
        out = check(model, compiled, batch.batch_size, batch.x, batch.edge_index)
        assert len(out) == batch.num_nodes
    assert len(fast(batch.x, batch.edge_index)) == batch.batch_size
    fast.convs[1].compile(backend="aot_eager")
    with torch.no_grad():
        out, expected = (net(batch.x, batch.edge_index)[: batch.batch_size] for net in (fast, model))
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    torch.compiler.reset()
