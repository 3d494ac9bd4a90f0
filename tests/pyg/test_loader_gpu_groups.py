"""Loaders that sample batches in groups, on a GPU or on a stand-in for one: the batches of the CPU, bit for bit."""

import threading
from functools import partial
from typing import Any

import pytest
import torch
from grouped import StandIn, compare
from helpers_pyg import all_same, name_of, stores_of
from torch_geometric import EdgeIndex
from torch_geometric.sampler import BaseSampler, NegativeSampling
from torch_geometric.transforms import Constant, ToSparseTensor

from manyhop.errors import FeatureError, InputError
from manyhop_pyg import (
    ClusterData,
    ClusterLoader,
    GivenNegatives,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
    PPRLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
)

EDGE_TYPE = ("author", "writes", "paper")


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("filter_per_worker", [None, False])
@pytest.mark.parametrize("batch_size", [1, 7, 5000])
def test_batches_are_those_of_the_cpu(data, gpu, workers, filter_per_worker, batch_size):
    options = {"batch_size": batch_size, "num_workers": workers, "filter_per_worker": filter_per_worker}
    loader = compare(gpu, partial(NeighborLoader, data, [3, 2], shuffle=True, seed=1, **options))
    if StandIn.groups:  # none where there is a GPU
        assert max(StandIn.groups) == {1: 32, 7: 9, 5000: 1}[batch_size]
        assert len(StandIn.threads) <= max(1, workers) * 2
    report = loader.stats()
    assert (report.seeds, report.batches) == (120, 2 * len(loader))
    assert StandIn.groups or min(report.sample_s, report.gather_s) > 0
    for _ in loader:
        break
    report = loader.stats(report)
    assert (report.seeds, report.batches) == (min(batch_size, 60), 1)


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
        {"batch_sampler": [[1, 2], [3], [], [5, 5, 5], list(range(40))], "batch_size": 1},
    ],
    ids=name_of,
)
@pytest.mark.parametrize("workers", [0, 2])
def test_all_kinds_of_sampling(data, gpu, options, workers):
    options = {"batch_size": 8, "num_neighbors": [3, 2], "num_workers": workers} | options
    if isinstance(options.get("transform"), ToSparseTensor):
        pytest.importorskip("torch_sparse")
    compare(gpu, partial(NeighborLoader, data, seed=1, **options))


def test_a_loader_logs_where_it_reads(data, gpu, caplog):
    where = gpu()
    with caplog.at_level("INFO", "manyhop"):
        NeighborLoader(data, [3, 2], batch_size=8, **where)
    (message,) = [message for message in caplog.messages if message.startswith("NeighborLoader on ")]
    assert message.startswith("NeighborLoader on cuda:0:\n" if where else "NeighborLoader on cpu:\n")
    assert not where or "\nx: device. " in message


def test_graphs_of_seeds(data, gpu):
    compare(gpu, partial(ShaDowKHopSampler, data, 2, 3, batch_size=8, seed=1))
    assert max(StandIn.groups, default=2) > 1


def test_sets_of_nodes(data, gpu):
    compare(gpu, partial(GraphSAINTEdgeSampler, data, 9, 5, 3, seed=1))
    compare(gpu, partial(GraphSAINTNodeSampler, data, 9, 5, 3, seed=1))
    compare(gpu, partial(GraphSAINTRandomWalkSampler, data, 9, 2, 5, 3, seed=1))
    parts, some = ClusterData(data, 7, cluster=torch.arange(60) % 7), torch.arange(20)
    compare(gpu, partial(ClusterLoader, parts, batch_size=2, shuffle=True, seed=1))
    compare(gpu, partial(PPRLoader, data, 5, some, eps=0.06, batch_size=7, shuffle=True, seed=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_typed_data(hetero, gpu, workers):
    options = {"batch_size": 8, "seed": 1, "num_workers": workers}
    compare(gpu, partial(NeighborLoader, hetero, [3, 2], "paper", **options))
    compare(gpu, partial(HGTLoader, hetero, [5, 4], "paper", **options))
    assert max(StandIn.groups, default=2) > 1
    compare(gpu, partial(RandomNodeLoader, hetero, 4, shuffle=True, seed=1, num_workers=workers))
    several = {"paper": None, "venue": None, "author": torch.arange(9)}
    compare(gpu, partial(NeighborLoader, hetero, [3, 2], several, shuffle=True, **options))
    compare(gpu, partial(HGTLoader, hetero, [5, 4], several, shuffle=True, **options))


@pytest.mark.parametrize("workers", [0, 2])
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
def test_links(data, gpu, options, workers):
    options = {"batch_size": 40, "seed": 1, "num_workers": workers} | options
    compare(gpu, partial(LinkNeighborLoader, data, [3], **options))
    assert max(StandIn.groups, default=8) == 8


@pytest.mark.parametrize(
    "options",
    [
        {"neg_sampling": "binary"},
        {"exclude_seed_edges": "reverse_types", "reverse_etypes": {EDGE_TYPE: ("paper", "rev_writes", "author")}},
    ],
    ids=["negatives", "reverse"],
)
def test_typed_links(hetero, gpu, options):
    options = {"edge_label_index": EDGE_TYPE, "batch_size": 40, "seed": 1} | options
    compare(gpu, partial(LinkNeighborLoader, hetero, [3, 2], **options))


def test_a_batch_of_given_seeds(data, gpu):
    """From any thread, on its current stream, while an epoch is under way."""
    found = []
    for on in (False, True):
        where, batches = gpu(on), [None] * 40
        loader = NeighborLoader(data, [3, 2], seed=1, **where)

        def serve(first: int, loader: Any = loader, batches: Any = batches) -> None:
            for i in range(first, 40, 4):
                batches[i] = loader.batch([i, 9], key=(1, 0, i)).cpu()

        threads = [threading.Thread(target=serve, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        assert len(list(loader)) == 60
        for thread in threads:
            thread.join()
        links = LinkNeighborLoader(data, [3], neg_sampling="binary", exclude_seed_edges="self", seed=1, **where)
        found.append([*batches, links.batch(data.edge_index[:, :9]).cpu()])
    assert all_same(*found)


def test_stores(data, gpu):
    compare(gpu, partial(NeighborLoader, stores_of(data, "edge_attr"), [3, 2], batch_size=8, seed=1))


def test_samplers_of_the_user_are_asked_one_by_one(data, gpu):
    class Own(BaseSampler):
        def __init__(self) -> None:
            self.inner = NeighborSampler(data, [2])

        def sample_from_nodes(self, index: Any) -> Any:
            return self.inner.sample_from_nodes(index)

        def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
            raise NotImplementedError

    class Derived(NeighborSampler):
        def sample_from_nodes(self, index: Any) -> Any:
            return super().sample_from_nodes(index)

    for workers in (0, 2):
        for sampler in (Own(), Derived(data, [2])):
            options = {"batch_size": 8, "seed": 1, "num_workers": workers}
            compare(
                gpu, lambda sampler=sampler, options=options, **where: NodeLoader(data, sampler, **options, **where)
            )
    assert StandIn.groups == []


def test_a_collate_fn_of_the_user_is_called(data, on_gpu):
    class Loader(NeighborLoader):
        def collate_fn(self, index: Any) -> Any:
            calls.append(len(index))
            return super().collate_fn(index)

    calls: list[int] = []
    compare(on_gpu, lambda: Loader(data, [2], batch_size=16, seed=1), epochs=1)
    assert calls == [16, 16, 16, 12] * 3


def test_calling_the_loader(data, on_gpu):
    on_gpu()
    loader = NeighborLoader(data, [2], batch_size=16, seed=1)
    assert loader([1, 2, 3]).input_id.tolist() == [1, 2, 3]


class OwnSample(NeighborSampler):
    def sample_from_nodes(self, index):
        assert not index.node.is_cuda
        out = super().sample_from_nodes(index)
        out.edge, out.row, out.col = (x[::2].contiguous() for x in (out.edge, out.row, out.col))
        out.num_sampled_edges = None
        return out


def test_a_subclass_with_its_own_sample_is_asked(data, gpu):
    options = {"neighbor_sampler": OwnSample(data, [3, 2]), "batch_size": 8, "seed": 3}
    compare(gpu, partial(NeighborLoader, data, [], **options))
    assert StandIn.groups == []


@pytest.mark.parametrize("transform", [None, Constant()], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_edges_as_edge_index(data, gpu, workers, transform):
    data.edge_index = EdgeIndex(data.edge_index)
    options = {"batch_size": 8, "seed": 3, "num_workers": workers, "transform": transform}
    expected = [b.edge_index.as_tensor() for b in NeighborLoader(data, [3, 2], **options, **gpu(False))]
    for batch, on_cpu in zip(NeighborLoader(data, [3, 2], **options, **gpu()), expected, strict=True):
        assert batch.edge_index.validate().is_sorted_by_col
        assert torch.equal(batch.edge_index.as_tensor().cpu(), on_cpu)


def test_changes_of_the_data_are_noticed(data, gpu):
    loader = NeighborLoader(data, [2], batch_size=4, seed=3, **gpu())
    batches = iter(loader)
    next(batches)
    data.x += 1
    data.new = torch.arange(60)
    del data.y
    next(batches)
    batch = next(batches).cpu()
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.new, batch.n_id)
    assert "y" not in batch
    data.new = ["text"] * 60
    with pytest.raises(FeatureError):
        list(batches)


def noted(batch: Any) -> Any:
    batch.thread = threading.current_thread().name
    return batch


@pytest.mark.parametrize(
    ("options", "in_threads"),
    [
        ({}, False),
        ({"persistent_workers": True, "prefetch_factor": 3}, False),
        ({"filter_per_worker": False}, False),
        ({"transform": noted}, True),
        ({"transform_sampler_output": lambda out: out}, True),
        ({"worker_init_fn": lambda worker: None}, True),
        ({"timeout": 30}, True),
    ],
    ids=name_of,
)
def test_threads_where_they_have_something_to_do(data, on_gpu, options, in_threads):
    def make() -> NeighborLoader:
        return NeighborLoader(data, [3, 2], batch_size=2, seed=1, num_workers=2, **options)

    on_gpu(False)
    expected = list(make())
    on_gpu()
    loader = make()
    StandIn.threads.clear()
    got = list(loader)
    assert (threading.current_thread().name not in StandIn.threads) == in_threads
    for batch, other in zip(got, expected, strict=True):
        if "thread" in batch:
            assert batch.thread.startswith("manyhop")
            other.thread = batch.thread
    assert all_same(got, expected)


def test_a_batch_whose_rows_are_not_there_fails_alone(data, on_gpu, monkeypatch):
    on_gpu()
    loader = NeighborLoader(data, [2], batch_size=4, seed=3)
    seeds = loader.input_data.node.view(-1, 4)
    dress = type(loader)._label
    bad = seeds[6].tolist()

    def label(self: Any, batch: Any, out: Any) -> Any:
        if out.node[:4].tolist() == bad:
            raise FeatureError("not there")
        return dress(self, batch, out)

    monkeypatch.setattr(type(loader), "_label", label)
    got = []
    with pytest.raises(FeatureError, match=r"(?s)not there.*batch 6 of epoch 0"):
        got.extend(loader)
    assert [b.n_id[:4].tolist() for b in got] == seeds[:6].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "0 CUDA devices"),
        ({"device": "mps"}, "device"),
        ({"device": "no such"}, "device"),
        ({"device": "cpu", "placement": "auto"}, "placement"),
        ({"placement": "everywhere"}, "placement"),
    ],
)
def test_devices_that_make_no_sense(data, options, message):
    if torch.cuda.is_available() and options == {"device": "cuda"}:
        options, message = {"device": "cuda:99"}, "CUDA devices"
    with pytest.raises(InputError, match=message):
        NeighborLoader(data, [2], **options)
