"""Batches of given seeds on a GPU: the same as on the CPU, regardless of changes meanwhile.

Without CUDA, kernels run in triton's interpreter, and the CPU stands for the GPU.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_stand_ins import CPU, pyg_works_on, stand_for_gpu
from helpers_pyg import same
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.transforms import Constant

from manyhop.errors import InputError
from manyhop.features.gather_gpu import gather_on_gpu
from manyhop.features.gathering import gather_on_cpu
from manyhop.loading import next_key
from manyhop.loading.gpu import runtime
from manyhop.sampling import BatchKey
from manyhop_pyg import NeighborLoader, NeighborSampler, NodeLoader

HAS_GPU = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(
    not HAS_GPU and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a GPU, or what stands for one"
)
Make = Callable[..., tuple[NodeLoader, NodeLoader]]


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Make:
    """``loaders(data, ...)`` makes two loaders: one on the CPU, one on a GPU."""
    if not HAS_GPU:
        from triton.runtime.interpreter import GridExecutor

        lock, launch = threading.RLock(), GridExecutor.__call__

        def one_by_one(self: Any, *args: Any, **kwargs: Any) -> Any:
            with lock:
                return launch(self, *args, **kwargs)

        def gather(requests: Any, *, checks: Any, **others: Any) -> list[Any]:
            return gather_on_gpu(requests, CPU, on_cpu=gather_on_cpu, checks=checks)

        monkeypatch.setattr(GridExecutor, "__call__", one_by_one)
        stand_for_gpu(monkeypatch.setattr)
        monkeypatch.setattr(runtime, "gather", gather)

    def make(data: Data, sizes: Any = (3, 2), direction: Any = None, **options: Any) -> tuple[NodeLoader, NodeLoader]:
        made = []
        for on_gpu in (False, True):
            if not HAS_GPU:
                pyg_works_on(monkeypatch.setattr, CPU if on_gpu else None)
            device = "cuda" if on_gpu and HAS_GPU else "cpu"
            options = {"batch_size": 60, "seed": 7} | options
            if direction is None:
                made.append(NeighborLoader(data, list(sizes), device=device, **options))
            else:
                sampler = NeighborSampler(data, list(sizes), sample_direction=direction)
                made.append(NodeLoader(data, sampler, device=device, **options))
        return made[0], made[1]

    return make


def check(cpu: NodeLoader, gpu: NodeLoader, seeds: Any, **options: Any) -> None:
    expected, found = cpu.batch(seeds, **options), gpu.batch(seeds, **options)
    assert list(found.keys()) == list(expected.keys())
    assert same(expected, found.cpu())


def test_the_same_as_on_the_cpu(data, loaders):
    cpu, gpu = loaders(data)
    many = torch.arange(60)
    for key, given in enumerate(([40, 40, 2], many[3:4], many, [1], many[:9].int(), many[::7], [], [40, 40, 2])):
        check(cpu, gpu, given, key=(3, 1, key))
    check(cpu, gpu, [5])
    for key in ((-1, 0, 0), (1 << 63, 2, 1 << 70)):
        check(cpu, gpu, [5, 7], key=key)


def test_seeds_that_are_on_the_gpu_already(data, loaders):
    cpu, gpu = loaders(data)
    device = torch.device("cuda" if HAS_GPU else "cpu")
    for given in (torch.arange(9, device=device), torch.arange(18, device=device)[::2]):
        assert same(cpu.batch(given.cpu()), gpu.batch(given).cpu())


def test_a_batch_has_memory_of_its_own(data, loaders):
    cpu, gpu = loaders(data)
    first = gpu.batch([3, 4])
    for value in first.to_dict().values():
        if isinstance(value, torch.Tensor) and value.dtype != torch.bool:
            value.zero_()
    check(cpu, gpu, [3, 4])
    assert [tensor._version for tensor in (gpu.batch([3]).n_id, gpu.batch([3]).x)] == [0, 0]


def test_in_inference_mode(data, loaders):
    cpu, gpu = loaders(data)
    expected = cpu.batch([3, 4])
    with torch.inference_mode():
        check(cpu, gpu, [3, 4])
        assert gpu.batch([3, 4]).x.is_inference()
    assert same(expected, gpu.batch([3, 4]).cpu())


def test_changes_are_noticed(data, loaders):
    data.scale = torch.tensor(1.0)  # which all batches share
    cpu, gpu = loaders(data)
    both = cpu, gpu
    check(cpu, gpu, [5, 9])
    data.x.add_(1)
    data.scale.mul_(2)
    check(cpu, gpu, [5, 9])
    data.x = torch.randn(60, 2)
    data.z = torch.arange(60)
    check(cpu, gpu, [5, 9])
    del data.edge_attr
    data.batch, data.seed_time, data.n_id = torch.arange(60), torch.arange(60), torch.arange(60) + 1
    check(cpu, gpu, [5, 9])
    for loader in both:
        loader.node_sampler.num_neighbors = [4, 4, 1]
    check(cpu, gpu, [5, 9])
    other = NeighborSampler(data, [1])
    for loader in both:
        loader.node_sampler = other
    check(cpu, gpu, [5, 9])
    for loader in both:
        loader.transform = Constant()
    check(cpu, gpu, [5, 9])


def test_a_loader_whose_ranks_share_batches(data, loaders):
    cpu, gpu = loaders(data, distributed=True)
    check(cpu, gpu, [5, 9])
    assert gpu.batch([5, 9]).is_padding.tolist() == [False, False]


def test_keys_of_samplers_in_a_transform(data, loaders):
    cpu, gpu = loaders(data)
    keys: list[BatchKey] = []

    def note(batch: Any) -> Any:
        keys.append(next_key())
        return batch

    cpu.transform = gpu.transform = note
    check(cpu, gpu, [5, 9], key=(1, 2, 3))
    assert keys[0] == keys[1] != BatchKey(1, 2, 3)


def test_functions_between_sample_and_rows(data, loaders):
    def fewer(out: Any) -> Any:
        out.num_sampled_nodes = None
        return out

    cpu, gpu = loaders(data)
    check(cpu, gpu, [5, 9])
    cpu.transform_sampler_output = gpu.transform_sampler_output = fewer
    check(cpu, gpu, [5, 9])
    assert "num_sampled_nodes" not in gpu.batch([5])
    cpu, gpu = loaders(data)
    for loader in (cpu, gpu):
        loader.filter_fn = lambda out: out.node
    assert torch.equal(cpu.batch([5, 9]), gpu.batch([5, 9]).cpu())


@pytest.mark.parametrize(
    "options",
    [
        {"disjoint": True},
        {"replace": True},
        {"weight_attr": "edge_weight"},
        {"subgraph_type": "bidirectional"},
        {"subgraph_type": "induced"},
        {"time_attr": "time"},
        {"pad": "auto"},
    ],
    ids=str,
)
def test_other_loaders(data, loaders, options):
    cpu, gpu = loaders(data, **options)
    for seeds in ([5, 9, 5], [1], [2]):
        check(cpu, gpu, seeds)


def test_other_data(data, hetero, loaders):
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(60, 60))
    cpu, gpu = loaders(data)
    check(cpu, gpu, [5, 9])
    assert type(gpu.batch([5]).edge_index) is EdgeIndex
    for edges in (data.edge_index.as_tensor().int(), data.edge_index.as_tensor()):
        data.edge_index = edges
        cpu, gpu = loaders(data)
        check(cpu, gpu, [5, 9])
    cpu, gpu = loaders(hetero, input_nodes="paper")
    for seeds in ([5, 9, 5], [1], torch.arange(40)):
        check(cpu, gpu, seeds)


def test_edges_that_lead_to_seeds_backward(data, loaders):
    cpu, gpu = loaders(data, direction="backward")
    check(cpu, gpu, [5, 9])


def test_batches_that_do_not_fit_at_first(loaders):
    ring = torch.arange(400)
    star = torch.stack([ring, torch.zeros_like(ring)])
    graph = Data(x=torch.randn(400, 2), edge_index=torch.cat([star, torch.stack([ring, ring.roll(1)])], 1))
    cpu, gpu = loaders(graph, (-1,), batch_size=1, input_nodes=torch.arange(2))
    for seeds in ([7], [0], [0], [7]):
        check(cpu, gpu, seeds)


def test_seeds_that_are_no_nodes(data, loaders):
    cpu, gpu = loaders(data)
    check(cpu, gpu, [3])
    for seeds in ([3, -1], torch.tensor([60])):
        with pytest.raises(InputError, match=r"in \[0, 60\), got"):
            gpu.batch(seeds)
    for wrong in ([0.5], torch.zeros(60, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(InputError):
            gpu.batch(wrong)
    with pytest.raises(InputError, match="key"):
        gpu.batch([3], key=(1, 2))
    check(cpu, gpu, [3])
