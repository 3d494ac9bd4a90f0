"""Loaders that sample batches in groups, as on a GPU, and pad them to fixed sizes."""

from typing import Any

import pytest
from grouped import compare
from torch_geometric.sampler import NegativeSampling

import manyhop
from manyhop.loading.pipeline import BatchPlan
from manyhop_pyg import FeatureStore, GivenNegatives, GraphStore, LinkNeighborLoader, NeighborLoader


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("data", {}),
        ("data", {"filter_per_worker": False}),
        ("data", {"num_workers": 2, "disjoint": True}),
        ("data", {"subgraph_type": "induced"}),
        ("data", {"transform_sampler_output": lambda out: out}),
        ("stores", {}),
        ("hetero", {"input_nodes": "paper"}),
        ("links", {"neg_sampling": "binary"}),
        ("links", {"neg_sampling": NegativeSampling("triplet", 2)}),
        ("links", {"neg_sampling": GivenNegatives("in_batch", 20)}),
    ],
)
def test_padding(request, kind, options, kernels_everywhere, on_gpu):
    pytest.importorskip("triton", minversion="3.5", reason="GPU kernels need triton 3.5 or later")
    data = request.getfixturevalue("hetero" if kind == "hetero" else "data")
    features, graph = FeatureStore(), GraphStore()
    if kind == "stores":
        features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
        features.put_tensor(data.edge_attr, group_name=None, attr_name="edge_attr", index=None)
        graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(60, 60))
    source = (features, graph) if kind == "stores" else data

    def make() -> Any:
        if kind == "links":
            return LinkNeighborLoader(source, [3], batch_size=40, seed=1, pad="auto", **options)
        return NeighborLoader(source, [3, 2], batch_size=8, seed=1, pad="auto", **options)

    def switch(on: bool) -> None:
        on_gpu(on)
        kernels_everywhere(on)

    loader = compare(switch, make, epochs=1)
    assert loader.stats().pad_fit_rate > 0


def test_sizes_of_padding_are_found_without_kernels_for_the_cpu(data, monkeypatch, on_gpu):
    def make() -> Any:
        return NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto")

    sizes = make()._padding.sizes
    on_gpu()
    monkeypatch.setattr(BatchPlan, "indices", None)  # which are compiled
    assert make()._padding.sizes == sizes


def test_batches_have_marks_of_their_own(data, kernels_everywhere, on_gpu):
    pytest.importorskip("triton", minversion="3.5", reason="GPU kernels need triton 3.5 or later")

    def make() -> Any:
        return NeighborLoader(data, [3, 2], batch_size=16, shuffle=True, seed=1, distributed=True)

    def switch(on: bool) -> None:
        on_gpu(on)
        kernels_everywhere(on)

    batches = list(compare(switch, make, epochs=1))
    manyhop.shutdown()  # of the one rank
    batches[0].is_padding.fill_(True)
    assert not batches[1].is_padding.any(), "marks are made for many batches at once"
