"""Aggregation by kernels (in triton's interpreter without a GPU) equals torch's own operators, and so do gradients."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop_train.aggregation import Edges, aggregate
from manyhop_train.aggregation.dispatch import aggregate_by_torch

pytestmark = pytest.mark.usefixtures("kernels_everywhere")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NUM_SRC, NUM_DST, NUM_EDGES = 23, 11, 290


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("with a GPU, kernels are compiled for it: the other parameter")
    return request.param


def edges_of(device: str, *, index: torch.dtype = torch.int64, ordered: bool = True) -> Tensor:
    """Edges with duplicates, a source with most of them, a destination with most of them and empty ones."""
    row, col = torch.randint(0, NUM_SRC - 2, (NUM_EDGES,)), torch.randint(0, NUM_DST - 3, (NUM_EDGES,))
    row[:150], col[100:220] = 5, 2
    edge_index = torch.stack([row, col])
    if ordered:
        edge_index = edge_index[:, col.argsort(stable=True)]
    return edge_index.to(device, index)


def rows(device: str, channels: int, dtype: torch.dtype) -> Tensor:
    """Rows with equal entries, as after a ReLU."""
    return torch.randn(NUM_SRC, channels).relu().to(device, dtype).requires_grad_()


def both(x: Tensor, edge_index: Tensor, weight: Tensor | None, *, limit: int, num_dst: int, **options: Any) -> Any:
    """Outputs and gradients of the kernels, and of torch in double precision."""
    results = []
    for ours in (True, False):
        own = x.detach().clone().requires_grad_() if ours else x.detach().double().requires_grad_()
        scale = None if weight is None else weight[:limit].detach().to(own.dtype).requires_grad_()
        if ours:
            edges = Edges(edge_index, ordered=options["ordered"])
            out = aggregate(own, edges, num_dst=num_dst, num_edges=limit, reduce=options["reduce"], weight=scale)
        else:
            ends = edge_index[:, :limit].long()
            out = aggregate_by_torch(own, ends, num_dst=num_dst, reduce=options["reduce"], weight=scale)
        seed = torch.linspace(-1, 1, out.numel()).view_as(out).to(out)
        (out * seed.to(x.dtype).to(out.dtype)).sum().backward()
        results.append([out, own.grad, *([] if scale is None else [scale.grad])])
    return results


CASES = [
    ("sum", torch.float32, 5, False, torch.int64, True),
    ("sum", torch.float32, 16, True, torch.int32, True),
    ("mean", torch.float32, 7, False, torch.int32, False),
    ("mean", torch.float32, 300, True, torch.int64, False),
    ("max", torch.float32, 6, False, torch.int64, True),
    ("max", torch.float32, 3, False, torch.int32, False),
    ("sum", torch.bfloat16, 8, True, torch.int64, True),
    ("mean", torch.float16, 8, False, torch.int64, True),
    ("max", torch.bfloat16, 8, False, torch.int64, True),
    ("mean", torch.float64, 4, True, torch.int64, True),
]


@pytest.mark.parametrize("limit", [NUM_EDGES, 137])
@pytest.mark.parametrize(("reduce", "dtype", "channels", "weighted", "index", "ordered"), CASES)
def test_equals_torch(device, reduce, dtype, channels, weighted, index, ordered, limit):
    edge_index = edges_of(device, index=index, ordered=ordered)
    weight = torch.rand(NUM_EDGES).to(device, dtype) if weighted else None
    x = rows(device, channels, dtype)
    ours, expected = both(x, edge_index, weight, limit=limit, num_dst=NUM_DST, reduce=reduce, ordered=ordered)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    for value, right in zip(ours, expected, strict=True):
        assert value.dtype == dtype
        torch.testing.assert_close(value.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_dst", [1, 31, 33, 1100])
def test_hubs_among_other_destinations(device, num_dst):
    """Windows of their edges find them, also where destinations without edges are at the same place."""
    degrees = torch.randint(0, 2, (num_dst,))
    for at in (0, num_dst // 2, num_dst - 1):
        degrees[at] = 97 + at % 7
    col = torch.repeat_interleave(degrees)
    edge_index = torch.stack([torch.randint(0, NUM_SRC, col.shape), col]).to(device)
    x = rows(device, 3, torch.float32)
    ours, expected = both(x, edge_index, None, limit=col.numel(), num_dst=num_dst, reduce="sum", ordered=True)
    for value, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(value.double(), right, rtol=1e-5, atol=1e-4)


def test_only_weights_learn(device):
    edge_index, x = edges_of(device), torch.randn(NUM_SRC, 5, device=device)
    weights = [torch.linspace(0, 1, NUM_EDGES, device=device, requires_grad=True) for _ in range(2)]
    outs = [
        aggregate(x, Edges(edge_index, ordered=True), num_dst=NUM_DST, reduce="mean", weight=weights[0]),
        aggregate_by_torch(x, edge_index, num_dst=NUM_DST, reduce="mean", weight=weights[1]),
    ]
    for out in outs:
        out.square().sum().backward()
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(weights[0].grad, weights[1].grad)
    with torch.no_grad():
        fixed = aggregate(x, Edges(edge_index, ordered=True), num_dst=NUM_DST, reduce="mean", weight=weights[0])
    assert torch.equal(fixed, outs[0])
    assert not fixed.requires_grad


def test_sums_of_half_precision_are_of_float32(device):
    edge_index = torch.stack([torch.arange(4096) % 2, torch.zeros(4096, dtype=torch.int64)]).to(device)
    x = torch.full((2, 1), 1.0, dtype=torch.bfloat16, device=device)
    assert aggregate(x, Edges(edge_index, ordered=True), num_dst=1, reduce="sum").item() == 4096  # 256 in bfloat16


def test_maxima_of_nan_are_nan_as_in_torch(device):
    x = torch.tensor([[1.0], [math.nan], [-math.inf]], device=device)
    edge_index = torch.tensor([[0, 1, 2, 0], [0, 0, 1, 2]], device=device)
    out = aggregate(x, Edges(edge_index, ordered=True), num_dst=4, reduce="max").flatten().tolist()
    assert math.isnan(out[0])
    assert out[1:] == [-math.inf, 1.0, 0.0]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize(("num_dst", "channels", "num_edges"), [(4, 3, 0), (0, 3, 0), (4, 0, 5)])
def test_nothing_to_add(device, reduce, num_dst, channels, num_edges):
    x = torch.randn(5, channels, device=device, requires_grad=True)
    edge_index = torch.zeros(2, num_edges, dtype=torch.int64, device=device)
    out = aggregate(x, Edges(edge_index, ordered=True), num_dst=num_dst, reduce=reduce)
    out.sum().backward()
    assert out.shape == (num_dst, channels)
    assert not out.any()
    assert x.grad is not None
    assert not x.grad.any()


def test_orders_serve_layers_with_fewer_edges(device):
    edges = Edges(edges_of(device), ordered=True)
    incoming, outgoing = edges.incoming(NUM_DST), edges.outgoing(NUM_SRC, NUM_EDGES)
    assert edges.incoming(4) is incoming
    assert edges.outgoing(9, 20) is outgoing
    assert edges.outgoing(NUM_SRC + 1, 20) is not outgoing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduce": "min"}, "Expected reduce to be 'sum', 'mean' or 'max', got 'min'"),
        ({"num_edges": 291}, "Expected num_edges of 0 to 290, got 291"),
        ({"weight": torch.rand(290, dtype=torch.float64)}, "Expected weight of shape .290. and torch.float32"),
        ({"weight": torch.rand(290), "reduce": "max"}, "for a sum or mean"),
        ({"x": torch.zeros(3)}, "Expected x of shape"),
    ],
)
def test_wrong_arguments(options, message):
    x = options.pop("x", torch.zeros(NUM_SRC, 4))
    with pytest.raises(InputError, match=message):
        aggregate(x, Edges(edges_of("cpu"), ordered=True), **{"num_dst": NUM_DST, "reduce": "sum"} | options)
