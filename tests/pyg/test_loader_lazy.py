"""When the CPU's sampler is made: in the constructor where the CPU samples, otherwise when it is first asked."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.sampler import NegativeSampling

import manyhop.sampling
import manyhop_pyg
from manyhop.errors import InputError
from manyhop_pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler

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
