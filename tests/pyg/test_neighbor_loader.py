"""NeighborLoader on homogeneous data: what is in a batch."""

import copy

import numpy as np
import pytest
import torch
import torch_geometric.loader
from helpers_pyg import check_batch, check_edges
from torch_geometric.data import Data
from torch_geometric.loader import ImbalancedSampler
from torch_geometric.sampler import SamplerOutput
from torch_geometric.utils import degree

from manyhop.errors import FeatureError, InputError
from manyhop_pyg import NeighborLoader, NeighborSampler, NodeLoader
from manyhop_pyg.batch.join import is_sorted


def test_is_one_of_pygs_loaders(data):
    loader = NeighborLoader(data, [2], batch_size=7)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert isinstance(loader, torch_geometric.loader.NodeLoader)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert loader.dataset == range(60)
    assert len(loader) == len(list(loader)) == 9
    assert len(loader.node_sampler.num_neighbors) == 1
    text = "NeighborLoader(60 seeds, fanouts [2], batch size 7, 9 batches, cpu: 0 threads)"
    assert repr(loader) == str(loader) == text
    assert loader.placement == "cpu: topology and features are read in place"


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_every_row_is_that_of_the_graph(data, replace, disjoint, subgraph_type):
    loader = NeighborLoader(
        data, [4, 3], batch_size=8, shuffle=True, replace=replace, disjoint=disjoint, subgraph_type=subgraph_type
    )
    for batch in loader:
        if subgraph_type == "bidirectional":
            pairs = set(zip(*batch.edge_index.tolist(), strict=True))
            assert pairs == {(b, a) for a, b in pairs}
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        else:
            check_batch(batch, data)
        assert ("num_sampled_nodes" in batch) == (subgraph_type == "directional")
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
        assert ("batch" in batch) == disjoint
        if disjoint:
            assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
            assert torch.equal(batch.batch[: batch.batch_size], torch.arange(batch.batch_size))


def test_attributes_and_their_order(data):
    batch = next(iter(NeighborLoader(data, [4, 3], batch_size=8)))
    added = ["n_id", "e_id", "num_sampled_nodes", "num_sampled_edges", "input_id", "batch_size"]
    assert list(batch._store) == [*data._store, *added]
    assert batch.num_sampled_nodes[0] == batch.batch_size == 8
    assert len(batch.num_sampled_nodes) == 3
    assert len(batch.num_sampled_edges) == 2
    assert batch.e_id.dtype == batch.n_id.dtype == batch.edge_index.dtype == torch.int64
    assert batch.edge_index.is_contiguous()


def test_fanouts_are_limits_and_minus_one_is_all(data):
    in_degree = degree(data.edge_index[1], 60).long()
    batch = next(iter(NeighborLoader(data, [3, 0], batch_size=60)))
    assert torch.equal(degree(batch.edge_index[1], 60).long(), in_degree.clamp(max=3))
    batch = next(iter(NeighborLoader(data, [-1], batch_size=60)))
    assert torch.equal(degree(batch.edge_index[1], 60).long(), in_degree)
    assert batch.e_id.unique().numel() == 300
    batch = next(iter(NeighborLoader(data, [5], replace=True, batch_size=60)))
    assert torch.equal(degree(batch.edge_index[1], 60).long(), 5 * (in_degree > 0))
    batch = next(iter(NeighborLoader(data, [], batch_size=60)))
    assert batch.num_sampled_nodes == [60]
    assert batch.num_sampled_edges == []
    assert batch.edge_index.shape == (2, 0)
    assert batch.edge_attr.shape == (0, 1)


def test_input_nodes(data):
    ids = torch.tensor([50, 3, 3, 9])
    batch = next(iter(NeighborLoader(data, [2], ids, batch_size=4)))
    assert torch.equal(batch.n_id[:4], ids)
    assert batch.input_id.tolist() == [0, 1, 2, 3]
    for given in ([50, 3, 3, 9], ids.numpy(), ids.int()):
        assert torch.equal(next(iter(NeighborLoader(data, [2], given, batch_size=4))).n_id[:4].long(), ids)
    batch = next(iter(NeighborLoader(data, [2], data.train_mask, batch_size=100)))
    assert torch.equal(batch.input_id, data.train_mask.nonzero().view(-1))
    assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])
    batch = next(iter(NeighborLoader(data, [2], ids, batch_size=4, input_id=torch.tensor([7, 8, 9, 10]))))
    assert batch.input_id.tolist() == [7, 8, 9, 10]


def test_empty_inputs(data):
    assert list(NeighborLoader(data, [2], torch.zeros(60, dtype=torch.bool))) == []
    assert list(NeighborLoader(data, [2], [], shuffle=True, num_workers=1)) == []
    empty = Data(x=torch.randn(3, 2), edge_index=torch.empty(2, 0, dtype=torch.long))
    batch = next(iter(NeighborLoader(empty, [2, 2], batch_size=3)))
    assert batch.num_sampled_edges == [0, 0]
    assert torch.equal(batch.x, empty.x)
    batch = next(iter(NeighborLoader(Data(x=torch.randn(3, 2)), [2], batch_size=2)))
    assert batch.num_nodes == 2


def test_duplicate_seeds_keep_their_rows(data):
    sampler = ImbalancedSampler(data)
    batch = next(iter(NeighborLoader(data, [5, 5], batch_size=50, sampler=sampler)))
    seeds = batch.n_id[: batch.batch_size]
    assert seeds.unique().numel() < seeds.numel() == batch.batch_size == 50
    check_batch(batch, data)


def test_int32_edges_give_int32_batches(data):
    wide = next(iter(NeighborLoader(data, [4, 3], batch_size=8, seed=3, disjoint=True)))
    data.edge_index = data.edge_index.int()
    batch = next(iter(NeighborLoader(data, [4, 3], batch_size=8, seed=3, disjoint=True)))
    assert batch.n_id.dtype == batch.edge_index.dtype == batch.batch.dtype == torch.int32
    assert batch.e_id.dtype == torch.int64
    assert torch.equal(batch.n_id, wide.n_id)
    assert torch.equal(batch.edge_index, wide.edge_index)
    check_batch(batch, data)


def test_kinds_of_attributes(data, tmp_path):
    np.save(tmp_path / "map.npy", np.arange(120, dtype=np.float32).reshape(60, 2))
    data.numpy = np.arange(60)
    data.mapped = np.load(tmp_path / "map.npy", mmap_mode="r")
    data.sparse_x = torch.eye(60).to_sparse()
    data.node_index = torch.arange(120).view(2, 60)
    data.half = torch.randn(60, 2, dtype=torch.bfloat16)
    data.parameter = torch.nn.Parameter(torch.randn(60, 2))
    data.scalar = torch.tensor(3.0)
    data.whole = torch.arange(7)
    data.num_nodes = 60
    batch = next(iter(NeighborLoader(data, [4], batch_size=8)))
    n_id = batch.n_id
    assert torch.equal(batch.numpy, n_id)
    assert torch.equal(batch.mapped, torch.from_numpy(np.array(data.mapped))[n_id])
    assert torch.equal(batch.sparse_x.to_dense().argmax(1), n_id)
    assert torch.equal(batch.node_index, data.node_index[:, n_id])
    assert torch.equal(batch.half, data.half[n_id])
    assert batch.parameter.requires_grad
    assert batch.scalar is data.scalar
    assert batch.whole is data.whole
    assert batch.num_nodes == n_id.numel()


def test_a_list_of_one_entry_per_node_is_refused(data):
    data.names = [str(i) for i in range(60)]
    with pytest.raises(FeatureError, match="'names' to be a tensor"):
        next(iter(NeighborLoader(data, [4], batch_size=8)))


def test_own_n_id_and_batch_as_in_pyg(data):
    data.n_id = torch.arange(60) * 10
    data.batch = torch.zeros(60, dtype=torch.long)
    batch = next(iter(NeighborLoader(data, [4], batch_size=8)))
    assert torch.equal(data.x[batch.n_id // 10], batch.x)
    assert "batch" not in batch


def test_data_is_read_when_a_batch_is_made(data):
    loader = NeighborLoader(data, [4], batch_size=8, seed=0)
    first = next(iter(loader))
    assert "x" in first
    loader.data = copy.copy(data)
    del loader.data.x
    loader.data.num_nodes = 60
    loader.data.z = torch.arange(60)
    loader.data.y = data.y + 100
    batch = next(iter(loader))
    assert "x" not in batch
    assert torch.equal(batch.z, batch.n_id)
    assert torch.equal(batch.y, data.y[batch.n_id] + 100)


def test_order_of_the_steps(data):
    seen = []

    def sampled(out):
        assert isinstance(out, SamplerOutput)
        seen.append("sampled")
        out.node = out.node.clone()
        return out

    def transform(batch):
        seen.append("transformed")
        assert batch.batch_size == 8
        batch.extra = batch.n_id * 2
        return batch

    loader = NeighborLoader(data, [4], batch_size=8, transform=transform, transform_sampler_output=sampled)
    batch = next(iter(loader))
    assert seen == ["sampled", "transformed"]
    assert torch.equal(batch.extra, batch.n_id * 2)


def test_call_collate_and_filter(data):
    loader = NeighborLoader(data, [4], torch.arange(10, 60), batch_size=8)
    torch.manual_seed(5)
    batch = loader([6, 16])
    assert batch.n_id[:2].tolist() == [16, 26]
    check_batch(batch, data)
    torch.manual_seed(5)
    again = loader(torch.tensor([6, 16]))
    assert torch.equal(batch.e_id, again.e_id)
    assert any(not torch.equal(batch.e_id, loader([6, 16]).e_id) for _ in range(5))
    loader.filter_per_worker = False
    out = loader.collate_fn([3, 1])
    assert isinstance(out, SamplerOutput)
    check_batch(loader.filter_fn(out), data)
    check_batch(loader([3, 1]), data)


def test_other_samplers(data):
    ours = NeighborLoader(data, [4, 2], batch_size=8, seed=1)
    expected = [b.e_id.tolist() for b in ours]
    sampler = NeighborSampler(data, [4, 2])
    for loader in (
        NodeLoader(data, sampler, batch_size=8, seed=1),
        NeighborLoader(data, None, batch_size=8, neighbor_sampler=sampler, seed=1),
    ):
        assert [b.e_id.tolist() for b in loader] == expected
    ours.node_sampler.num_neighbors = [1]
    assert all(len(b.num_sampled_edges) == 1 for b in ours)


def test_sampler_overridden_by_the_user(data):
    class Twice(NeighborSampler):
        def sample_from_nodes(self, index):
            first, second = super().sample_from_nodes(index), super().sample_from_nodes(index)
            same.append(torch.equal(first.edge, second.edge))
            return second

    class Loader(NeighborLoader):
        def filter_fn(self, out):
            batch = super().filter_fn(out)
            batch.mine = True
            return batch

    same: list[bool] = []
    epochs = [
        list(Loader(data, [2, 2], batch_size=8, neighbor_sampler=Twice(data, [2, 2]), seed=1, num_workers=n))
        for n in (0, 2)
    ]
    assert all(b.mine for b in epochs[0])
    assert [b.e_id.tolist() for b in epochs[0]] == [b.e_id.tolist() for b in epochs[1]]
    assert not all(same)  # two views of one batch have draws of their own


def test_backward_samples_destinations(data):
    sampler = NeighborSampler(data, [-1], sample_direction="backward")
    batch = next(iter(NodeLoader(data, sampler, batch_size=60)))
    check_batch(batch, data)
    assert torch.equal(batch.e_id.sort().values, torch.arange(300))
    batch = next(iter(NodeLoader(data, NeighborSampler(data, [2, 2], sample_direction="backward"), batch_size=4)))
    check_edges(batch.edge_index, batch.e_id, batch.n_id, batch.n_id, data.edge_index)
    assert (batch.edge_index[0, : batch.num_sampled_edges[0]] < 4).all()


def test_weights(data):
    data.edge_weight[::2] = 0
    loader = NeighborLoader(data, [4, 4], batch_size=8, weight_attr="edge_weight")
    assert all((b.edge_weight > 0).all() for b in loader)
    data.weight = data.edge_weight
    assert all((b.edge_weight > 0).all() for b in NeighborLoader(data, [4], batch_size=8, weight_attr="weight"))


@pytest.mark.parametrize("time_attr", ["time", "edge_time"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_times(data, time_attr, strategy, dtype):
    data.time, data.edge_time = data.time.to(dtype), data.edge_time.to(dtype)
    input_time = torch.randint(0, 20, (60,)).to(dtype)
    loader = NeighborLoader(
        data, [3, 3], input_time=input_time, time_attr=time_attr, temporal_strategy=strategy, batch_size=8
    )
    for batch in loader:
        assert torch.equal(batch.seed_time, input_time[batch.input_id])
        assert batch.seed_time.dtype == dtype
        src, dst = batch.edge_index
        time = batch.edge_time if time_attr == "edge_time" else batch.time[src]
        assert (time <= batch.seed_time[batch.batch[dst]]).all()
        check_batch(batch, data)
        if strategy == "last":
            for node in dst.unique():
                all_times = data.edge_time if time_attr == "edge_time" else data.time[data.edge_index[0]]
                mine = all_times[data.edge_index[1] == batch.n_id[node]].sort().values
                mine = mine[mine <= batch.seed_time[batch.batch[node]]][-3:]
                assert torch.equal(time[dst == node].sort().values, mine)


def test_seeds_have_times_of_their_own(data):
    for batch in NeighborLoader(data, [3, 3], time_attr="time", batch_size=8):
        assert "seed_time" not in batch
        src = batch.edge_index[0]
        assert (batch.time[src] <= batch.time[: batch.batch_size][batch.batch[src]]).all()


def test_directed_false_is_deprecated(data):
    with pytest.warns(UserWarning, match="deprecated"):
        loader = NeighborLoader(data, [2], batch_size=8, directed=False)
    assert loader.node_sampler.subgraph_type.value == "induced"
    check_batch(next(iter(loader)), data)


def test_sorted_edges_are_taken_as_they_are(data):
    data = data.sort(sort_by_row=False)
    loader = NeighborLoader(data, [2], batch_size=8, is_sorted=True)
    assert loader.node_sampler.topology.graph.csc["_N", "_E", "_N"].perm is None
    check_batch(next(iter(loader)), data)


def test_keep_orig_edges(data):
    sampler = NeighborSampler(data, [3, 2], subgraph_type="bidirectional")
    sampler.keep_orig_edges = True
    batch = next(iter(NodeLoader(data, sampler, batch_size=8)))
    assert batch._orig_edge_index.size(1) == sum(batch.num_sampled_edges)
    pairs = set(zip(*batch.edge_index.tolist(), strict=True))
    assert pairs == {(b, a) for a, b in pairs} >= set(zip(*batch._orig_edge_index.tolist(), strict=True))


class Reversed(NeighborSampler):
    def sample_from_nodes(self, index):
        out = super().sample_from_nodes(index)
        out.row, out.col, out.edge = out.row.flip(0), out.col.flip(0), out.edge.flip(0)
        return out


def test_edges_of_an_overridden_sampler_count_as_unsorted(data):
    for sampler, ordered in ((NeighborSampler(data, [3, 2]), True), (Reversed(data, [3, 2]), False)):
        batch = next(iter(NodeLoader(data, sampler, batch_size=8)))
        check_batch(batch, data)
        assert is_sorted(batch.edge_index) is ordered


def test_a_sample_method_of_pygs_class(data):
    own = type("Own", (NeighborSampler,), {"_sample": lambda self, seed: None})
    with pytest.raises(
        InputError, match="Expected Own to override sample_from_nodes or sample_from_edges, got its own"
    ):
        own(data, [3])
