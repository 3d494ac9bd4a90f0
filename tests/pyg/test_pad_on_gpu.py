"""Batches of fixed sizes that a GPU samples and pads: those of the CPU, bit for bit."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_stand_ins import CPU, Positions, pyg_works_on, stand_for_gpu
from grouped import compare
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

pytest.importorskip("triton", minversion="3.5", reason="GPU kernels need triton 3.5 or later")
import manyhop.loading.pipeline.gpu
from manyhop.loading.pipeline import block_sizes
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import FeatureStore, GraphStore, NeighborLoader
from manyhop_pyg.batch import padding

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU stands for the GPU")


Switch = Callable[..., dict[str, Any]]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch, kernels_everywhere: Callable[[bool], None]) -> Switch:
    """Let loaders take the way of GPUs, with kernels that are interpreted, where it is called with ``True``."""
    stand_for_gpu(monkeypatch.setattr)
    monkeypatch.setattr(manyhop.loading.pipeline.gpu, "GPUPositions", Positions)

    def switch(on: bool = True) -> dict[str, Any]:
        pyg_works_on(monkeypatch.setattr, CPU if on else None)
        kernels_everywhere(on)
        return {}

    return switch


def loader_of(source: Any, *args: Any, **options: Any) -> NeighborLoader:
    return NeighborLoader(source, [3, 2], *args, **({"batch_size": 8, "seed": 1, "pad": "auto"} | options))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"disjoint": True},
        {"distributed": True},
        {"num_workers": 1},
        {"drop_last": True},
        {"transform": lambda batch: batch},
    ],
    ids=lambda options: next(iter(options)),
)
def test_data(data: Data, on_gpu: Switch, options: dict[str, Any]) -> None:
    data.e_id = torch.arange(300)
    compare(on_gpu, functools.partial(loader_of, data, **options), epochs=1)


def test_stores(data: Data, on_gpu: Switch) -> None:
    features, graph = FeatureStore(), GraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    features.put_tensor(data.edge_attr, group_name=None, attr_name="edge_attr", index=None)
    graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(60, 60))
    compare(on_gpu, functools.partial(loader_of, (features, graph)), epochs=1)


def test_types(hetero: Any, on_gpu: Switch) -> None:
    compare(on_gpu, functools.partial(loader_of, hetero, "paper"), epochs=1)


def test_batches_that_do_not_fit(data: Data, on_gpu: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    really = padding.pad_sizes
    monkeypatch.setattr(block_sizes, "MULTIPLE", 1)
    monkeypatch.setattr(block_sizes, "MARGIN", 0.0)
    monkeypatch.setattr(padding, "pad_sizes", lambda counts, **others: really(sorted(counts, key=str)[:4], **others))
    loader = compare(on_gpu, functools.partial(loader_of, data, shuffle=True), epochs=1)
    assert loader.stats().pad_fit_rate < 1


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update({"batch": torch.arange(60)}),
        lambda data: data.update({"edge_index": data.edge_index.int()}),
        lambda data: data.update({"edge_index": EdgeIndex(data.edge_index, sparse_size=(60, 60))}),
        lambda data: data.update({"x": data.x.requires_grad_()}),
    ],
    ids=["attribute of batches", "int32", "EdgeIndex", "gradients"],
)
def test_other_data(data: Data, on_gpu: Switch, change: Callable[[Data], Any]) -> None:
    changed = change(data) or data
    compare(on_gpu, functools.partial(loader_of, changed), epochs=1)


def test_batches_are_independent(data: Data, on_gpu: Switch) -> None:
    on_gpu()
    expected, first, *others = list(loader_of(data, shuffle=True)), *loader_of(data, shuffle=True)
    assert list(first.keys()) == list(expected[0].keys())
    versions = [value._version for batch in others for value in tensors_in(batch)]
    for value in tensors_in(first):
        value.zero_()
    first.num_sampled_nodes.clear()
    assert versions == [value._version for batch in others for value in tensors_in(batch)]
    for batch, own in zip(others, expected[1:], strict=True):
        assert all(torch.equal(own[key], value) for key, value in batch if isinstance(value, torch.Tensor))
        assert batch.num_sampled_nodes == own.num_sampled_nodes


def test_rows_that_change_are_gathered_again(data: Data, on_gpu: Switch) -> None:
    on_gpu()
    loader, seen = loader_of(data), []
    for batch in loader:
        assert torch.equal(batch.x[batch.node_mask], data.x[batch.n_id[batch.node_mask]])
        seen.append(batch)
        data.x.add_(1)
    assert len(seen) == 8
