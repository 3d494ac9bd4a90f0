"""Kernels with several heads (in triton's interpreter without a GPU): softmax over segments, weighted sums, dots."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from manyhop_train.aggregation import Edges, Order, add_ends, aggregate, normalize
from manyhop_train.aggregation.gpu import launch

NUM_SRC, NUM_DST, NUM_EDGES = 17, 9, 150


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("kernels run in the interpreter without a GPU, and are compiled with one")
    return request.param


def edges(device: str, numbered: bool) -> tuple[Order, Tensor, Tensor]:
    """Edges by destination, of which one has most and some have none; their ends by number."""
    src, dst = torch.randint(0, NUM_SRC, (NUM_EDGES,)), torch.randint(0, NUM_DST - 2, (NUM_EDGES,))
    dst[:90] = 3
    if not numbered:
        dst = dst.sort().values
    edge = dst.argsort(stable=True)
    ptr = torch.searchsorted(dst[edge], torch.arange(NUM_DST + 1))
    order = Order(ptr.to(device), src[edge].to(device), edge.to(device) if numbered else None)
    return order, src.to(device), dst.to(device)


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("by_ends", [False, True])
def test_softmax(device: str, dtype: torch.dtype, heads: int, numbered: bool, by_ends: bool) -> None:
    """Of scores of edges, and of leaky ReLUs of sums of numbers at their ends."""
    order, src, dst = edges(device, numbered)
    left, right = ((4 * torch.randn(n, heads)).to(device, dtype) for n in (NUM_SRC, NUM_DST))
    scores, grad = ((20 * torch.randn(NUM_EDGES, heads)).to(device, dtype) for _ in range(2))
    sums = (left.double()[src] + right.double()[dst] if by_ends else scores.double()).requires_grad_()
    own = torch.nn.functional.leaky_relu(sums, 0.3) if by_ends else sums
    shares = torch.zeros_like(own)
    for node in range(NUM_DST):
        mask = (dst == node).unsqueeze(1)
        shares = shares + torch.where(mask, own.masked_fill(~mask, -torch.inf).softmax(0).nan_to_num(), 0)
    shares.backward(grad.double() / 20)
    ends = launch.Ends(left, right, 0.3) if by_ends else None
    out, _ = launch.softmax(ends or scores, order)
    found = launch.softmax_gradient(out, grad / 20, order, ends=ends)
    of_right = torch.zeros(NUM_DST, heads, dtype=torch.float64, device=device).index_add_(0, dst, sums.grad)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-6}
    for mine, expected in zip((out, *found), (shares.detach(), sums.grad, of_right), strict=True):
        if mine is not None:
            torch.testing.assert_close(mine.double(), expected, **tolerance)


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize(("heads", "features"), [(1, 5), (3, 5), (4, 80)])
def test_sums_and_products(device: str, heads: int, features: int, numbered: bool) -> None:
    order, src, dst = edges(device, numbered)
    x, weight = torch.randn(NUM_SRC, heads, features).to(device), torch.randn(NUM_EDGES, heads).to(device)
    out = launch.add(x.flatten(1), order, NUM_DST, NUM_EDGES, "sum", weight, None)[0]
    expected = torch.zeros(NUM_DST, heads, features, device=device)
    expected.index_add_(0, dst, x[src] * weight.unsqueeze(2))
    torch.testing.assert_close(out.view_as(expected), expected, rtol=1e-4, atol=1e-5)
    grad = torch.randn(NUM_DST, heads, features).to(device)
    products = launch.dots(x, grad, src, dst, 120, None)
    torch.testing.assert_close(products, (x[src] * grad[dst]).sum(2)[:120], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("channels", [5, 300])
def test_maxima_and_their_rows(device: str, channels: int, index: torch.dtype) -> None:
    """Of equal maxima, the row of the first edge; empty segments have minus infinity, and row 0."""
    order, _, _ = edges(device, numbered=False)
    x = torch.randn(NUM_SRC, channels, device=device).relu()
    values, found = launch.maxima(x, order._replace(other=order.other.to(index)), NUM_DST, NUM_EDGES, rows=True)
    for segment, (begin, end) in enumerate(pairwise(order.ptr.tolist())):
        rows = order.other[begin:end]
        best = x[rows].max(0).values if end > begin else torch.full_like(x[0], -torch.inf)
        assert torch.equal(values[segment], best)
        first = rows[(x[rows] == best).int().argmax(0)] if end > begin else torch.zeros_like(found[segment])
        assert torch.equal(found[segment].long(), first.long())


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_attention_of_the_first_edges(
    device: str, own: bool, ordered: bool, kernels_everywhere: Callable[[bool], None]
) -> None:
    """Kernels compute what torch's operators do on a CPU, for gradients, too."""
    _, *ends = edges(device, not ordered)
    results = []
    for kernels, place in ((True, device), (False, "cpu")):
        kernels_everywhere(kernels)
        torch.manual_seed(0)
        sizes = (NUM_SRC, NUM_DST, NUM_DST)
        left, right, loops = inputs = [torch.randn(n, 3).to(place).requires_grad_() for n in sizes]
        src, dst = (end.to(place) for end in ends)
        both = Edges(torch.stack([src, dst]), ordered=ordered)
        scores = add_ends(left, right, both, num_edges=120).masked_fill((src == dst)[:120, None], -torch.inf)
        shares, rest = normalize(scores, both, num_dst=NUM_DST, own=loops if own else None)
        x = torch.randn(NUM_SRC, 12).to(place).requires_grad_()
        out = aggregate(x, both, num_dst=NUM_DST, num_edges=120, reduce="sum", weight=shares)
        (out.square().sum() + (0 if rest is None else rest.square().sum())).backward()
        results.append([t.cpu() for t in (out, *(t.grad for t in (x, *inputs[: 2 + own])))])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
