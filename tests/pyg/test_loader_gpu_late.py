"""What loaders on GPUs leave to the caller or to a later time; the CPU's sampler."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_stand_ins import exchange_nothing
from helpers_pyg import stores_of
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

import manyhop.sampling
import manyhop_pyg
from manyhop.errors import InputError
from manyhop.loading.gpu import warm_up
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler
from manyhop_pyg.loaders.adapter import Batches

OF_THE_CALLER = ("is_padding", "_orig_edge_index")
"""Attributes whose memory is of the caller's stream."""


def addresses(tensors: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("data", {}),
        ("data", {"disjoint": True, "time_attr": "time", "input_time": torch.arange(60)}),
        ("data", {"subgraph_type": "bidirectional"}),
        ("data", {"pad": "auto"}),
        ("stores", {}),
        ("stores", {"disjoint": True, "pad": "auto"}),
        ("hetero", {"input_nodes": "paper"}),
        ("hetero", {"input_nodes": {"paper": None, "author": torch.arange(9)}}),
        ("links", {"neg_sampling": "triplet"}),
        ("links", {"neg_sampling": "binary", "edge_label": torch.arange(300) % 3, "pad": "auto"}),
    ],
)
def test_all_memory_of_batches_is_known_when_they_are_received(request, monkeypatch, on_gpu, kind, options):
    """It may be used again only when the caller's stream is done with it."""
    data = request.getfixturevalue("hetero" if kind == "hetero" else "data")
    on_gpu()
    if kind == "links":
        loader: Any = LinkNeighborLoader(data, [3], batch_size=40, seed=1, **options)
    else:
        source = stores_of(data) if kind == "stores" else data
        loader = NeighborLoader(source, [3, 2], batch_size=8, seed=1, **options)
    exchange_nothing(monkeypatch.setattr, loader)
    monkeypatch.setattr(loader, "distributed", True)
    received: list[set[int]] = []

    def hand_out(self: Batches, batch: Any, really: Any = Batches.hand_out) -> Any:
        values = [value for some in self.values(batch) for value in some]
        received.append(addresses(tensors_in(values)))
        return really(self, batch)

    monkeypatch.setattr(Batches, "hand_out", hand_out)
    batches = list(loader)
    assert len(received) == len(batches) > 0
    for known, batch in zip(received, batches, strict=True):
        for store in batch.stores:
            assert addresses(value for name, value in store.items() if own(name, value)) <= known


def own(name: str, value: object) -> bool:
    return isinstance(value, Tensor) and name not in OF_THE_CALLER


def test_what_fails_in_the_caller_names_the_batch(data, monkeypatch, on_gpu):
    on_gpu()
    loader = NeighborLoader(data, [3, 2], batch_size=8, seed=1, num_workers=1)
    exchange_nothing(monkeypatch.setattr, loader)

    def fail(self: Any, batch: Any, out: Any) -> None:
        if out.metadata[0][0] == 16:
            raise ValueError("a label")

    monkeypatch.setattr(NeighborLoader, "_label", fail)
    with pytest.raises(ValueError, match="a label") as caught:
        list(loader)
    assert any("batch 2" in note for note in caught.value.__notes__)


def test_what_fails_while_a_loader_warms_up_is_left_to_the_batches(data, on_gpu, monkeypatch):
    monkeypatch.setattr(warm_up, "_gather", lambda *_: 1 // 0)
    monkeypatch.setattr(warm_up, "_begin", lambda *_: 1 // 0)
    on_gpu()
    assert len(list(NeighborLoader(data, [3, 2], batch_size=8))) == 8


ALL = ["CPUSampler", "CPUSampler", "EdgeSampler", "CPUHGTSampler"]
SCRIPT = Path(__file__).with_name("gpu_only_script.py")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, gpu_in_reach: None) -> list[str]:
    """Names of the CPU samplers that have been made, on a machine with a GPU."""
    names: list[str] = []

    def counted(kind: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            names.append(kind.__name__)
            return kind(*args, **kwargs)

        return make

    sampling, adapter = manyhop.sampling, manyhop_pyg.samplers.neighbor
    for module, name in ((sampling, "CPUSampler"), (sampling, "CPUHGTSampler"), (adapter, "EdgeSampler")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return names


def loaders(data: Any, hetero: Any, **options: Any) -> list[Any]:
    return [
        NeighborLoader(data, [2], batch_size=20, seed=1, **options),
        LinkNeighborLoader(data, [2], batch_size=100, neg_sampling="binary", seed=1, **options),
        HGTLoader(hetero, [4], "paper", batch_size=20, seed=1, **options),
    ]


@pytest.mark.slow
def test_a_loader_on_a_gpu_compiles_no_kernel_for_cpus():
    pytest.importorskip("triton", minversion="3.5", reason="GPU kernels need triton 3.5 or later")
    paths = [str(SCRIPT.parent), str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_loader_on_a_gpu_makes_no_sampler_for_the_cpu(data, hetero, on_gpu, made):
    on_gpu()
    for loader in loaders(data, hetero):
        assert len(list(loader)) > 1
    assert made == []


def test_a_loader_on_the_cpu_makes_it_in_its_constructor(data, hetero, made):
    made_by = loaders(data, hetero, device="cpu")
    assert made == ALL
    for loader in made_by:
        list(loader)
    assert made == ALL


def test_a_loader_that_finds_no_gpu_in_use_makes_it_before_its_first_batch(data, made):
    loader = NeighborLoader(data, [2], batch_size=20)
    assert made == []
    batches = iter(loader)
    assert made == ["CPUSampler"]
    next(batches)
    assert len(made) == 1


def test_what_does_not_fit_is_an_error_of_the_constructor(data, hetero, on_gpu, made):
    for wrong in ({"num_neighbors": [-2]}, {"num_neighbors": [2], "temporal_strategy": "first"}):
        with pytest.raises(InputError):
            NeighborSampler(data, **wrong)
    on_gpu()
    with pytest.raises(InputError, match="0 or more"):
        HGTLoader(hetero, [-4], "paper")
    wrong_weights = NegativeSampling("binary", src_weight=torch.ones(3))
    with pytest.raises(InputError, match="one real weight per node"):
        LinkNeighborLoader(data, [2], neg_sampling=wrong_weights)
    pairs = ("paper", "like", "venue"), torch.zeros(2, 1, dtype=torch.int64)  # a type without edges
    with pytest.raises(InputError, match="exclude_true_negatives=True needs the edges"):
        LinkNeighborLoader(hetero, [2], pairs, neg_sampling="binary", exclude_true_negatives=True)
    assert made == []
