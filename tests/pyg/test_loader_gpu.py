"""Loaders on a GPU: memory, streams, where data are. test_loader_gpu_groups.py compares all kinds of batches."""

import gc
import time
from typing import Any

import pytest
import torch
from grouped import compare, on_cuda
from helpers_pyg import all_same, check_batch
from torch_geometric.loader import PrefetchLoader
from torch_geometric.transforms import Constant

from manyhop.errors import FeatureError, InputError
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import NeighborLoader, PPRLoader, ShaDowKHopSampler

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", [NeighborLoader, PPRLoader, ShaDowKHopSampler])
def test_batches_of_given_seeds(data, kind):
    sizes = {PPRLoader: [5], NeighborLoader: [[3, 2]]}.get(kind, [2, 3])
    cpu, gpu = (kind(data, *sizes, seed=7, device=device) for device in ("cpu", "cuda"))
    for seeds in (torch.tensor([40, 40, 2]), torch.arange(9), torch.arange(60), torch.tensor([1]), torch.arange(9)):
        expected = cpu.batch(seeds)
        for given in (seeds, seeds.cuda(), seeds.int().cuda(), seeds.tolist()):
            batch = gpu.batch(given)
            assert all(tensor.is_cuda for tensor in tensors_in(batch))
            assert all_same([expected], [batch.cpu()])
    with pytest.raises(InputError, match=r"in \[0, 60\), got -1"):
        gpu.batch(torch.tensor([3, -1]))


def test_rows_of_a_batch_of_given_seeds_that_are_not_there(data):
    def shift(out: Any) -> Any:
        out.node = out.node + 100
        return out

    loader = NeighborLoader(data, [3], device="cuda", transform_sampler_output=shift)
    with pytest.raises(FeatureError):
        loader.batch([1, 2])


@pytest.mark.parametrize("placement", ["cuda-cuda", "pinned-cuda", "cpu-cuda"])
@pytest.mark.parametrize("workers", [0, 2])
def test_memories(data, placement, workers):
    options = {"batch_size": 8, "seed": 1, "num_workers": workers}
    how = {"cpu": {}, "cuda": {"placement": placement}}
    compare(on_cuda, lambda device: NeighborLoader(data, [3, 2], device=device, **options, **how[device]))


@pytest.mark.parametrize("names", [("x", "y"), ()])
def test_data_on_the_gpu_makes_batches_there(data, names):
    expected = list(NeighborLoader(data, [3, 2], batch_size=8, seed=1, device="cpu"))
    data = data.clone().to("cuda", *names)
    loader = NeighborLoader(data, [3, 2], batch_size=8, seed=1)
    batches = list(loader)
    for batch in batches:
        assert all(tensor.is_cuda for tensor in tensors_in(batch))
    assert all_same(expected, [b.cpu() for b in batches])


@pytest.mark.parametrize("workers", [0, 2])
def test_sampling_on_the_cpu_leaves_attributes_where_they_are(data, workers):
    data = data.clone().to("cuda", "x", "y")
    loader = NeighborLoader(data, [3, 2], batch_size=8, seed=1, num_workers=workers, device="cpu")
    assert loader.filter_per_worker is False
    for batch in loader:
        assert batch.x.is_cuda
        assert not batch.train_mask.is_cuda
        assert not batch.n_id.is_cuda


def test_where_the_process_uses_a_gpu_loaders_do(data):
    torch.zeros(1, device="cuda")
    batch = next(iter(NeighborLoader(data, [3, 2], batch_size=8)))
    assert batch.x.is_cuda
    moved = batch.to("cuda")
    assert moved.x.data_ptr() == batch.x.data_ptr()
    check_batch(batch.cpu(), data)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_stay_what_they_are_while_others_are_made(data, workers):
    data.x = torch.randint(0, 100, (60, 4096)).float()  # sums are exact
    cpu = NeighborLoader(data, [3, 2], batch_size=2, seed=1, device="cpu")
    loader = NeighborLoader(data, [3, 2], batch_size=2, seed=1, device="cuda", num_workers=workers)
    for _ in range(5):
        expected, sums = list(cpu), []
        for batch in loader:
            torch.cuda._sleep(200_000)  # the stream of the step is late: memory must not be used again too early
            sums.append((batch.x.sum(1), batch.edge_index.sum()))
            del batch
        for (x, edges), other in zip(sums, expected, strict=True):
            assert torch.equal(x.cpu(), other.x.sum(1))
            assert edges.item() == other.edge_index.sum()


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_early_frees_everything(data, workers):
    data.x = torch.zeros(60, 4096)

    def leave() -> None:
        loader = NeighborLoader(
            data, [3, 2], batch_size=2, seed=1, device="cuda", num_workers=workers, placement="cuda-cuda"
        )
        for _ in loader:
            break

    leave()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        leave()
    end = time.monotonic() + 10
    while torch.cuda.memory_allocated() - before >= data.x.nbytes and time.monotonic() < end:
        gc.collect()  # threads end by themselves
        time.sleep(0.05)
    assert torch.cuda.memory_allocated() - before < data.x.nbytes  # tables of gathers are kept for later: 512 bytes


def test_the_timeline_knows_the_gpu(data, tmp_path):
    loader = NeighborLoader(data, [3, 2], batch_size=8, device="cuda", num_workers=1, transform=Constant())
    list(loader)
    loader.timeline(tmp_path / "epoch.json")
    text = (tmp_path / "epoch.json").read_text()
    assert "GPU of manyhop-0" in text
    assert str(loader.stats()).startswith("8 batches")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_pinned_memory(data, workers, filter_per_worker):
    data.x = torch.randn(60, 3000)
    how = {"num_workers": workers, "filter_per_worker": filter_per_worker, "device": "cpu"}
    loader = NeighborLoader(data, [3, 2], batch_size=8, pin_memory=True, **how)
    for batch in loader:
        assert batch.x.is_pinned()
        assert batch.edge_index.is_pinned() or batch.num_edges == 0
        check_batch(batch, data)


def test_prefetching_to_the_gpu(data):
    def make(device: str) -> NeighborLoader:
        return NeighborLoader(data, [3, 2], batch_size=8, num_workers=2, seed=1, device=device)

    batches = list(PrefetchLoader(make("cpu")))  # which pins batches, so they have to be on the CPU
    assert all(b.x.is_cuda for b in batches)
    assert all_same(list(make("cpu")), [b.cpu() for b in batches])
