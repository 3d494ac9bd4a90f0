"""``pad="auto"`` on a GPU, or on a stand-in for one: the batches of the CPU, and steps that are replayed."""

from functools import partial
from typing import Any

import pytest
import torch
from grouped import compare, on_cuda
from helpers_pyg import name_of
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NegativeSampling

import manyhop
from manyhop.loading.pipeline import BatchPlan
from manyhop_pyg import FeatureStore, GivenNegatives, GraphStore, LinkNeighborLoader, NeighborLoader


@pytest.fixture
def switch(gpu, kernels_everywhere):
    """``gpu``, with kernels that are interpreted where a stand-in samples."""

    def on(there: bool) -> dict[str, Any]:
        where = gpu(there)
        kernels_everywhere(there and not where)
        return where

    return on


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("data", {}),
        ("data", {"filter_per_worker": False}),
        ("data", {"num_workers": 2, "disjoint": True}),
        ("data", {"num_neighbors": [-1]}),
        ("data", {"subgraph_type": "induced"}),
        ("data", {"time_attr": "time"}),
        ("data", {"transform_sampler_output": lambda out: out}),
        ("stores", {}),
        ("hetero", {"input_nodes": "paper"}),
        ("links", {"neg_sampling": "binary"}),
        ("links", {"neg_sampling": NegativeSampling("triplet", 2)}),
        ("links", {"neg_sampling": GivenNegatives("in_batch", 20)}),
    ],
    ids=name_of,
)
def test_padding(request, kind, options, switch):
    pytest.importorskip("triton", minversion="3.5", reason="GPU kernels need triton 3.5 or later")
    data = request.getfixturevalue("hetero" if kind == "hetero" else "data")
    features, graph = FeatureStore(), GraphStore()
    if kind == "stores":
        features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
        features.put_tensor(data.edge_attr, group_name=None, attr_name="edge_attr", index=None)
        graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(60, 60))
    source = (features, graph) if kind == "stores" else data
    if kind == "links":
        make = partial(LinkNeighborLoader, source, [3], batch_size=40, seed=1, pad="auto", **options)
    else:
        options = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True} | options
        make = partial(NeighborLoader, source, seed=1, pad="auto", **options)
    loader, on_cpu = compare(switch, make, epochs=1), make(**switch(False))
    assert loader.stats().pad_fit_rate > 0
    assert len(list(on_cpu)) == loader.stats().batches
    assert on_cpu.stats().pad_fit_rate == loader.stats().pad_fit_rate


def test_sizes_of_padding_are_found_without_kernels_for_the_cpu(data, monkeypatch, on_gpu):
    def make() -> Any:
        return NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto")

    sizes = make()._padding.sizes
    on_gpu()
    monkeypatch.setattr(BatchPlan, "indices", None)  # which are compiled
    assert make()._padding.sizes == sizes


@pytest.mark.parametrize("gpu", ["stand-in"], indirect=True)
def test_batches_have_marks_of_their_own(data, switch):
    pytest.importorskip("triton", minversion="3.5", reason="GPU kernels need triton 3.5 or later")

    make = partial(NeighborLoader, data, [3, 2], batch_size=16, shuffle=True, seed=1, distributed=True)
    batches = list(compare(switch, make, epochs=1))
    manyhop.shutdown()  # of the one rank
    batches[0].is_padding.fill_(True)
    assert not batches[1].is_padding.any(), "marks are made for many batches at once"


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["cuda-cuda", "pinned-cuda", "cpu-cuda"])
def test_memories(data, placement):
    options = {"batch_size": 8, "shuffle": True, "seed": 1, "pad": "auto"}
    how = {"cpu": {}, "cuda": {"placement": placement}}
    compare(on_cuda, lambda device: NeighborLoader(data, [3, 2], device=device, **options, **how[device]))


@pytest.fixture
def stream() -> Any:
    """A stream that can be captured; all of a test runs on it, since gradients belong to a stream."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield stream
        stream.synchronize()


@pytest.mark.gpu
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
