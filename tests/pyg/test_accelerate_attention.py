"""``accelerate`` of attention layers: they compute the same by segments of sorted edges, and so do their gradients."""

from typing import Any

import pytest
import torch
from test_accelerate import batch_of, check, device  # noqa: F401  # device is a fixture
from torch_geometric.nn import GATConv, GATv2Conv, Sequential

from manyhop_pyg import accelerate
from manyhop_train.aggregation import dispatch

KINDS = [GATConv, GATv2Conv]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 2},
    {"heads": 2, "concat": False, "add_self_loops": False, "residual": True},
    {"heads": 3, "bias": False, "negative_slope": 0.1},
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the engine normalizes."""
    found: list[int] = []

    def counted(scores: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found.append(scores.size(0))
        return dispatch.normalize(scores, *args, **kwargs)

    monkeypatch.setattr("manyhop_pyg.training.layers.normalize", counted)
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_layers(data, device, calls, kind, options):  # noqa: F811
    batch = batch_of(data, device)
    model = Sequential("x, edge_index", [(kind(4, 6, **options), "x, edge_index -> x")]).to(device)
    check(model, batch.x, batch.edge_index)
    assert calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(40, 25), (25, 40)])
def test_bipartite_edges_in_any_order(device, calls, kind, sizes):  # noqa: F811
    num_src, num_dst = sizes
    edge_index = torch.stack([torch.randint(0, n - 2, (150,)) for n in sizes]).to(device)
    conv = kind((4, 5), 3, heads=2).to(device)
    x, other = torch.randn(num_src, 4, device=device), torch.randn(num_dst, 5, device=device)

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: torch.Tensor, other: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv((x, other), edge_index)

    check(Pair(), x, other, edge_index)
    assert calls == [150]


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_leaves_expected_sums(data, kind):
    conv = kind(4, 3, dropout=0.5)
    expected = conv.eval()(data.x, data.edge_index)
    accelerate(conv)
    conv.train()
    mean = torch.stack([conv(data.x, data.edge_index) for _ in range(600)]).mean(0)
    torch.testing.assert_close(mean, expected, rtol=0.2, atol=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_of_edges_and_returned_weights_run_pygs_code(data, calls, kind):
    conv = kind(4, 3, edge_dim=1)
    expected = conv(data.x, data.edge_index, data.edge_attr)
    accelerate(conv)
    torch.testing.assert_close(conv(data.x, data.edge_index, data.edge_attr), expected)
    edges, shares = conv(data.x, data.edge_index, data.edge_attr, return_attention_weights=True)[1]
    assert edges.size(1) == shares.size(0)
    assert calls == []
    assert conv.add_self_loops
