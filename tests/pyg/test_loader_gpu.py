"""Loaders that make their batches on a GPU: the same batches as on the CPU, bit for bit."""

import gc
import threading
import time
from typing import Any

import pytest
import torch
from helpers_pyg import all_same, check_batch, name_of
from torch_geometric import EdgeIndex
from torch_geometric.loader import PrefetchLoader
from torch_geometric.sampler import BaseSampler, NegativeSampling
from torch_geometric.transforms import Constant, ToSparseTensor

from manyhop.errors import FeatureError, InputError
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import (
    ClusterData,
    ClusterLoader,
    FeatureStore,
    GivenNegatives,
    GraphSAINTEdgeSampler,
    GraphStore,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
    PPRLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    ShaDowPPRSampler,
)

pytestmark = pytest.mark.gpu


def compare(make: Any, epochs: int = 2) -> Any:
    """``make(device)`` makes a loader; compares all batches of the CPU and of the GPU, and returns the GPU's loader."""
    cpu, gpu = make("cpu"), make("cuda")
    for _ in range(epochs):
        expected, got = list(cpu), list(gpu)
        for batch in got:
            assert all(tensor.is_cuda for tensor in tensors_in(batch))
        assert all_same(expected, [batch.cpu() for batch in got])
    return gpu


@pytest.mark.parametrize("kind", [NeighborLoader, PPRLoader, ShaDowPPRSampler, ShaDowKHopSampler])
def test_batches_of_given_seeds(data, kind):
    sizes = {PPRLoader: [5], ShaDowPPRSampler: [5], NeighborLoader: [[3, 2]]}.get(kind, [2, 3])
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


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("filter_per_worker", [None, False])
@pytest.mark.parametrize("batch_size", [1, 7, 5000])
def test_batches_are_those_of_the_cpu(data, workers, filter_per_worker, batch_size):
    loader = compare(
        lambda device: NeighborLoader(
            data,
            [3, 2],
            batch_size=batch_size,
            shuffle=True,
            seed=1,
            device=device,
            num_workers=workers,
            filter_per_worker=filter_per_worker,
        )
    )
    report = loader.stats()
    assert report.seeds == 120
    assert report.sample_s > 0
    assert report.gather_s > 0


@pytest.mark.parametrize(
    "options",
    [
        {"num_neighbors": [-1, 2]},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
        {"disjoint": True, "replace": True},
        {"weight_attr": "edge_weight"},
        {"time_attr": "time"},
        {"time_attr": "edge_time", "input_time": torch.arange(60), "temporal_strategy": "last"},
        {"time_attr": "time", "time_window": 3},
        {"time_attr": "edge_time", "input_time": torch.arange(60) % 20, "weight_attr": "edge_weight"},
        {"time_attr": "time", "input_time": torch.arange(120).view(60, 2) // 6},
        {"input_nodes": torch.tensor([3, 3, 5]), "input_id": torch.tensor([7, 8, 9])},
        {"transform": Constant()},
        {"transform": ToSparseTensor()},
        {"sampler": torch.utils.data.SequentialSampler(range(60))},
        {"batch_sampler": [[1, 2], [3], [5, 5, 5], list(range(40))], "batch_size": 1},
    ],
    ids=name_of,
)
def test_all_kinds_of_sampling(data, options):
    options = {"batch_size": 8, "num_neighbors": [3, 2]} | options
    if isinstance(options.get("transform"), ToSparseTensor):
        pytest.importorskip("torch_sparse")
    compare(lambda device: NeighborLoader(data, seed=1, device=device, **options))


@pytest.mark.parametrize("placement", ["cuda-cuda", "pinned-cuda", "cpu-cuda"])
@pytest.mark.parametrize("workers", [0, 2])
def test_memories(data, placement, workers):
    compare(
        lambda device: NeighborLoader(
            data,
            [3, 2],
            batch_size=8,
            seed=1,
            device=device,
            placement=None if device == "cpu" else placement,
            num_workers=workers,
        )
    )


def test_a_loader_logs_where_it_reads(data, caplog):
    with caplog.at_level("INFO", "manyhop"):
        NeighborLoader(data, [3, 2], batch_size=8, device="cuda")
    (line,) = [message for message in caplog.messages if "topology" in message]
    assert line.startswith("NeighborLoader on cuda:0:\n")
    assert "\nx: device. " in line


def test_graphs_of_seeds(data):
    compare(lambda device: ShaDowKHopSampler(data, 2, 3, batch_size=8, seed=1, device=device))
    compare(lambda device: ShaDowPPRSampler(data, 5, batch_size=8, seed=1, device=device))


def test_sets_of_nodes(data):
    compare(lambda device: GraphSAINTEdgeSampler(data, 9, 5, 3, seed=1, device=device))
    parts = ClusterData(data, 7, cluster=torch.arange(60) % 7)
    compare(lambda device: ClusterLoader(parts, batch_size=2, shuffle=True, seed=1, device=device))
    compare(lambda device: PPRLoader(data, 5, data.train_mask, batch_size=7, shuffle=True, seed=1, device=device))


@pytest.mark.parametrize("workers", [0, 2])
def test_typed_data(hetero, workers):
    options: dict[str, Any] = {"batch_size": 8, "seed": 1, "num_workers": workers}
    compare(lambda device: NeighborLoader(hetero, [3, 2], "paper", device=device, **options))
    compare(lambda device: HGTLoader(hetero, [5, 4], "paper", device=device, **options))
    compare(lambda device: RandomNodeLoader(hetero, 4, shuffle=True, seed=1, device=device))
    several = {"paper": None, "venue": None, "author": torch.arange(9)}
    compare(lambda device: NeighborLoader(hetero, [3, 2], several, shuffle=True, device=device, **options))
    compare(lambda device: HGTLoader(hetero, [5, 4], several, shuffle=True, device=device, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"neg_sampling": "binary"},
        {"neg_sampling": NegativeSampling("triplet", 2)},
        {"neg_sampling": "binary", "edge_label": torch.arange(300) % 3, "disjoint": True},
        {"neg_sampling": "binary", "time_attr": "time", "edge_label_time": torch.arange(300) % 20},
        {"neg_sampling": "binary", "exclude_true_negatives": True},
        {"neg_sampling": "binary", "time_attr": "time", "edge_label_time": torch.arange(600).view(300, 2) // 30},
        {"neg_sampling": "binary", "exclude_seed_edges": "self"},
        {"neg_sampling": GivenNegatives(torch.arange(900).view(300, 3) % 60)},
        {"neg_sampling": GivenNegatives(lambda src, dst: (src + dst).view(-1, 1) % 60, 1), "disjoint": True},
        {"neg_sampling": GivenNegatives("in_batch")},
        {"exclude_seed_edges": "reverse_id", "subgraph_type": "bidirectional"},
    ],
    ids=name_of,
)
@pytest.mark.parametrize("workers", [0, 2])
def test_links(data, options, workers):
    compare(
        lambda device: LinkNeighborLoader(
            data, [3], batch_size=40, seed=1, device=device, num_workers=workers, **options
        )
    )


def test_typed_links(hetero):
    edge_type = ("author", "writes", "paper")
    compare(
        lambda device: LinkNeighborLoader(
            hetero, [3, 2], edge_label_index=edge_type, neg_sampling="binary", batch_size=40, seed=1, device=device
        )
    )
    compare(
        lambda device: LinkNeighborLoader(
            hetero,
            [3, 2],
            edge_label_index=edge_type,
            batch_size=40,
            seed=1,
            device=device,
            exclude_seed_edges="reverse_types",
            reverse_etypes={edge_type: ("paper", "rev_writes", "author")},
        )
    )


def test_a_batch_of_given_seeds(data):
    """From any thread, on its current stream, while an epoch is under way."""
    cpu, gpu = (NeighborLoader(data, [3, 2], seed=1, device=device) for device in ("cpu", "cuda"))
    expected = [cpu.batch([i, 9], key=(1, 0, i)) for i in range(40)]
    found: list[Any] = [None] * 40

    def serve(first: int) -> None:
        for i in range(first, 40, 4):
            found[i] = gpu.batch([i, 9], key=(1, 0, i)).cpu()

    threads = [threading.Thread(target=serve, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    assert len(list(gpu)) == 60
    for thread in threads:
        thread.join()
    assert all_same(expected, found)
    links = [
        LinkNeighborLoader(data, [3], neg_sampling="binary", exclude_seed_edges="self", seed=1, device=device)
        for device in ("cpu", "cuda")
    ]
    expected, found = ([loader.batch(data.edge_index[:, :9])] for loader in links)
    assert all_same(expected, [batch.cpu() for batch in found])


def test_stores(data):
    features, graph = FeatureStore(), GraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    features.put_tensor(data.edge_attr, group_name=None, attr_name="edge_attr", index=None)
    graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(60, 60))
    compare(lambda device: NeighborLoader((features, graph), [3, 2], batch_size=8, seed=1, device=device))


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_of_the_user_work_on_the_cpu(data, workers):
    class Own(BaseSampler):
        def __init__(self) -> None:
            self.inner = NeighborSampler(data, [2])

        def sample_from_nodes(self, index: Any) -> Any:
            return self.inner.sample_from_nodes(index)

        def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
            raise NotImplementedError

    compare(lambda device: NodeLoader(data, Own(), batch_size=8, seed=1, device=device, num_workers=workers))


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


def test_changes_of_the_data_are_noticed(data):
    loader = NeighborLoader(data, [2], batch_size=4, seed=3, device="cuda")
    batches = iter(loader)
    next(batches)
    data.x += 1
    data.new = torch.arange(60)
    next(batches)
    batch = next(batches).cpu()
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.new, batch.n_id)


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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [None, Constant()])
def test_edges_as_edge_index(data, workers, transform):
    data.edge_index = EdgeIndex(data.edge_index)
    how = {"batch_size": 8, "seed": 1, "num_workers": workers, "transform": transform}
    expected = list(NeighborLoader(data, [3, 2], device="cpu", **how))
    for batch, on_cpu in zip(NeighborLoader(data, [3, 2], device="cuda", **how), expected, strict=True):
        assert batch.edge_index.validate().is_sorted_by_col
        assert batch.edge_index.is_cuda
        assert torch.equal(batch.edge_index.as_tensor().cpu(), on_cpu.edge_index.as_tensor())


class OwnSample(NeighborSampler):
    def _sample(self, seed, seed_time=None, **kwargs):
        assert not seed.is_cuda
        return super()._sample(seed, seed_time, **kwargs)


def test_a_subclass_with_its_own_sample_is_asked(data):
    compare(lambda device: NeighborLoader(data, [], neighbor_sampler=OwnSample(data, [3, 2]), seed=1, device=device))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_fails_does_so_at_its_turn(data, workers):
    bad = [[1, 2], [3, 4], [5, 99], [6]]
    got = []
    with pytest.raises(InputError, match="batch 2 of epoch 0"):
        got.extend(NeighborLoader(data, [2], batch_sampler=bad, seed=3, num_workers=workers, device="cuda"))
    assert [b.input_id.tolist() for b in got] == bad[:2]


def test_the_timeline_knows_the_gpu(data, tmp_path):
    loader = NeighborLoader(data, [3, 2], batch_size=8, device="cuda", num_workers=1, transform=Constant())
    list(loader)
    loader.timeline(tmp_path / "epoch.json")
    text = (tmp_path / "epoch.json").read_text()
    assert "GPU of manyhop-0" in text
    assert str(loader.stats()).startswith("8 batches")


def test_a_gpu_that_is_not_there(data):
    with pytest.raises(InputError, match="CUDA devices are found"):
        NeighborLoader(data, [3, 2], device="cuda:99")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_pinned_memory(data, workers, filter_per_worker):
    data.x = torch.randn(60, 3000)
    loader = NeighborLoader(
        data,
        [3, 2],
        batch_size=8,
        num_workers=workers,
        pin_memory=True,
        filter_per_worker=filter_per_worker,
        device="cpu",
    )
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
