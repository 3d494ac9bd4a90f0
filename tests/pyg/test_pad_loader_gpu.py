"""``pad="auto"`` on a GPU: the batches of the CPU, bit for bit, and steps that are captured and replayed."""

from typing import Any

import pytest
import torch
from helpers_pyg import all_same
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NegativeSampling

from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import GivenNegatives, LinkNeighborLoader, NeighborLoader

pytestmark = pytest.mark.gpu


def compare(make: Any) -> None:
    """``make(device)`` makes a loader; all batches are those of the CPU."""
    cpu, gpu = make("cpu"), make("cuda")
    for _ in range(2):
        got = list(gpu)
        assert all(tensor.is_cuda for batch in got for tensor in tensors_in(batch))
        assert all_same(list(cpu), [batch.cpu() for batch in got])
    assert cpu.stats().pad_fit_rate == gpu.stats().pad_fit_rate > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"filter_per_worker": False},
        {"num_neighbors": [-1]},
        {"disjoint": True},
        {"subgraph_type": "induced"},
        {"time_attr": "time"},
    ],
    ids=str,
)
def test_nodes(data, options):
    options = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True, "seed": 1, "pad": "auto"} | options
    compare(lambda device: NeighborLoader(data, device=device, **options))


@pytest.mark.parametrize("placement", ["cuda-cuda", "pinned-cuda", "cpu-cuda"])
def test_memories(data, placement):
    options = {"batch_size": 8, "shuffle": True, "seed": 1, "pad": "auto"}
    compare(
        lambda device: NeighborLoader(
            data, [3, 2], device=device, placement=None if device == "cpu" else placement, **options
        )
    )


def test_typed_nodes(hetero):
    options: dict[str, Any] = {"batch_size": 8, "seed": 1, "pad": "auto"}
    compare(lambda device: NeighborLoader(hetero, [3, 2], "paper", device=device, **options))


@pytest.mark.parametrize(
    "negatives",
    ["binary", NegativeSampling("triplet", 2), GivenNegatives("in_batch")],
    ids=["binary", "triplet", "in the batch"],
)
def test_links(data, negatives):
    options = {"batch_size": 16, "shuffle": True, "seed": 1, "pad": "auto", "neg_sampling": negatives}
    compare(lambda device: LinkNeighborLoader(data, [3, 2], device=device, **options))


@pytest.fixture
def stream() -> Any:
    """A stream that can be captured; all of a test runs on it, since gradients belong to a stream."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield stream
        stream.synchronize()


def test_a_replayed_step_computes_what_an_eager_one_does(data, stream):
    loader = NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, device="cuda", pad="auto", num_workers=1)
    torch.manual_seed(0)
    model = GraphSAGE(4, hidden_channels=8, num_layers=2, out_channels=3).cuda()
    batches = list(loader)
    names = ("x", "edge_index", "y", "seed_mask")

    def step(x: Any, edge_index: Any, y: Any, seed_mask: Any) -> Any:
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, edge_index)[:8], y[:8], reduction="none")
        loss = (loss * seed_mask).sum() / seed_mask.sum()
        loss.backward()
        return loss

    static = [batches[0][name].clone() for name in names]
    step(*static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        loss = step(*static)
    grads = [p.grad for p in model.parameters()]
    for batch in batches:
        values = [batch[name] for name in names]
        torch._foreach_copy_(static, values)
        graph.replay()
        assert loss.item() == pytest.approx(step(*values).item(), rel=1e-5)
        for got, parameter in zip(grads, model.parameters(), strict=True):
            assert torch.allclose(got, parameter.grad, rtol=1e-4, atol=1e-6)
