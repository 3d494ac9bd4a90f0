"""``pad="auto"`` on a GPU, or on a stand-in for one: the batches of the CPU, and steps that are replayed."""

from functools import partial
from typing import Any

import pytest
import torch
from grouped import compare, on_cuda
from helpers_pyg import all_same, name_of, stores_of
from torch_geometric import EdgeIndex
from torch_geometric.sampler import NegativeSampling

import manyhop
from manyhop.loading.pipeline import BatchPlan, block_sizes
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import GivenNegatives, LinkNeighborLoader, NeighborLoader
from manyhop_pyg.batch import padding


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
        ("data", {"transform": lambda batch: batch, "drop_last": True}),
        ("data", {"distributed": True}),
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
    source = stores_of(data, "edge_attr") if kind == "stores" else data
    if kind == "links":
        make = partial(LinkNeighborLoader, source, [3], batch_size=40, seed=1, pad="auto", **options)
    else:
        options = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True} | options
        make = partial(NeighborLoader, source, seed=1, pad="auto", **options)
    loader, on_cpu = compare(switch, make, epochs=1), make(**switch(False))
    assert loader.stats().pad_fit_rate > 0
    assert len(list(on_cpu)) == loader.stats().batches
    assert on_cpu.stats().pad_fit_rate == loader.stats().pad_fit_rate


def make_padded(data: Any, **options: Any) -> Any:
    options = {"batch_size": 8, "shuffle": True, "seed": 1, "pad": "auto"} | options
    return NeighborLoader(data, [3, 2], **options)


def test_sizes_of_padding_are_found_without_kernels_for_the_cpu(data, monkeypatch, on_gpu):
    sizes = make_padded(data)._padding.sizes
    on_gpu()
    monkeypatch.setattr(BatchPlan, "indices", None)  # which are compiled
    assert make_padded(data)._padding.sizes == sizes


ON_STAND_IN = pytest.mark.parametrize("gpu", ["stand-in"], indirect=True)


@pytest.mark.parametrize(
    "change",
    [
        {"batch": torch.arange(60), "e_id": torch.arange(300)},
        {"edge_index": lambda edges: edges.int()},
        {"edge_index": lambda edges: EdgeIndex(edges, sparse_size=(60, 60))},
        {"x": lambda x: x.requires_grad_()},
    ],
    ids=["attributes of batches", "int32", "EdgeIndex", "gradients"],
)
@ON_STAND_IN
def test_other_data(data, switch, change):
    data.update({name: value(data[name]) if callable(value) else value for name, value in change.items()})
    compare(switch, partial(make_padded, data), epochs=1)


@ON_STAND_IN
def test_batches_that_do_not_fit(data, switch, monkeypatch):
    really = padding.pad_sizes
    monkeypatch.setattr(block_sizes, "MULTIPLE", 1)
    monkeypatch.setattr(block_sizes, "MARGIN", 0.0)
    monkeypatch.setattr(padding, "pad_sizes", lambda counts, **others: really(sorted(counts, key=str)[:4], **others))
    assert compare(switch, partial(make_padded, data), epochs=1).stats().pad_fit_rate < 1


@ON_STAND_IN
def test_batches_are_independent(data, switch):
    switch(True)
    expected, first, *others = list(make_padded(data)), *make_padded(data)
    versions = [value._version for batch in others for value in tensors_in(batch)]
    for value in tensors_in(first):
        value.zero_()
    first.num_sampled_nodes.clear()
    assert versions == [value._version for batch in others for value in tensors_in(batch)]
    assert all_same(others, expected[1:])


@ON_STAND_IN
def test_rows_that_change_are_gathered_again(data, switch):
    switch(True)
    for batch in make_padded(data):
        assert torch.equal(batch.x[batch.node_mask], data.x[batch.n_id[batch.node_mask]])
        data.x.add_(1)


@ON_STAND_IN
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
    how = {"cpu": {}, "cuda": {"placement": placement}}
    compare(on_cuda, lambda device: make_padded(data, device=device, **how[device]))
