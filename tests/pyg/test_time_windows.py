"""Windows of time, one per seed: neighbours between a start and an end."""

import pytest
import torch
from helpers_pyg import check_batch
from torch_geometric.data import Data

from manyhop.errors import InputError
from manyhop_pyg import GivenNegatives, LinkNeighborLoader, NeighborLoader

OPTIONS = {"batch_size": 9, "shuffle": True, "seed": 1}


def windows(n, dtype=torch.int64):
    g = torch.Generator().manual_seed(4)
    start = torch.randint(0, 15, (n,), generator=g)
    return torch.stack([start, start + torch.randint(0, 6, (n,), generator=g)], 1).to(dtype)


@pytest.mark.parametrize("attr", ["time", "edge_time"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_nodes(data, attr, dtype, strategy):
    data[attr] = data[attr].to(dtype)
    given = windows(60, dtype)
    loader = NeighborLoader(data, [4, 3], input_time=given, time_attr=attr, temporal_strategy=strategy, **OPTIONS)
    edges = 0
    for batch in loader:
        check_batch(batch, data)
        assert torch.equal(batch.seed_time, given[batch.input_id])
        start, end = batch.seed_time[batch.batch[batch.edge_index[1]]].unbind(1)
        time = batch.time[batch.edge_index[0]] if attr == "time" else data.edge_time[batch.e_id]
        assert ((start <= time) & (time <= end)).all()
        edges += time.numel()
    assert edges > 20


def test_a_window_of_all_seeds_is_the_same(data):
    """``time_window`` is that of windows that all have the same length."""
    one = NeighborLoader(data, [4, 3], input_time=data.time, time_attr="time", time_window=3, **OPTIONS)
    given = torch.stack([data.time - 3, data.time], 1)
    each = NeighborLoader(data, [4, 3], input_time=given, time_attr="time", **OPTIONS)
    for a, b in zip(one, each, strict=True):
        assert torch.equal(a.edge_index, b.edge_index)
        assert torch.equal(a.n_id, b.n_id)


@pytest.mark.parametrize("window", [10, 10.0, 10.5, torch.tensor(10)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.uint8])
def test_a_window_begins_exactly(window, dtype):
    now = 5 if dtype is torch.uint8 else 1_700_000_000
    time = (now + torch.arange(-15, 5)).clamp(min=0)
    edges = torch.stack([torch.arange(20), torch.zeros(20, dtype=torch.int64)])
    data = Data(edge_index=edges, edge_time=time.to(dtype), num_nodes=30)
    given = torch.tensor([now], dtype=torch.int64 if dtype is torch.float64 else dtype)
    loader = NeighborLoader(data, [-1], torch.tensor([0]), given, time_attr="edge_time", time_window=window)
    (batch,) = loader
    assert batch.num_edges == (16 if dtype is torch.uint8 else 11)
    assert loader.state_dict()["loader"]["time_window"] == window


@pytest.mark.parametrize("negatives", [None, "binary", "triplet", GivenNegatives(torch.arange(300).view(-1, 1) % 60)])
@pytest.mark.parametrize("pad", [None, "auto"])
def test_links(data, negatives, pad):
    given = windows(300)
    loader = LinkNeighborLoader(
        data, [4, 3], edge_label_time=given, time_attr="edge_time", neg_sampling=negatives, pad=pad, **OPTIONS
    )
    for batch in loader:
        n = 9 if pad is None else int(batch.seed_mask.sum()) // (2 if negatives == "binary" else 1)
        times = batch.edge_label_time if negatives in (None, "binary") else batch.seed_time
        n = min(n, len(batch.input_id))
        assert torch.equal(times[:n], given[batch.input_id[:n]])
        if negatives == "binary":
            assert torch.equal(times[n : 2 * n], given[batch.input_id[:n]])
        kept = batch.edge_mask if pad else slice(None)
        start, end = given[batch.input_id][batch.batch[batch.edge_index[1, kept]]].unbind(1)
        time = data.edge_time[batch.e_id[kept]]
        assert ((start <= time) & (time <= end)).all()


@pytest.mark.parametrize("replace", [False, True])
def test_weights_and_times(data, replace):
    data.edge_weight = (data.edge_weight > 0.3) * data.edge_weight
    given = windows(60)
    loader = NeighborLoader(
        data, [4, 3], input_time=given, time_attr="edge_time", weight_attr="edge_weight", replace=replace, **OPTIONS
    )
    edges = 0
    for batch in loader:
        check_batch(batch, data)
        start, end = batch.seed_time[batch.batch[batch.edge_index[1]]].unbind(1)
        time = data.edge_time[batch.e_id]
        assert ((start <= time) & (time <= end)).all()
        assert (data.edge_weight[batch.e_id] > 0).all()
        edges += batch.num_edges
    assert edges > 20


def test_types(hetero):
    hetero["paper"].time = torch.arange(40) % 15
    hetero["author"].time = torch.arange(30) % 15
    given = {"paper": windows(40), "author": windows(30)}
    loader = NeighborLoader(hetero, [4, 3], dict.fromkeys(given), input_time=given, time_attr="time", **OPTIONS)
    for batch in loader:
        of_tree = torch.cat([given[t][batch[t].input_id] for t in given])
        for t in given:
            n = batch[t].batch_size
            assert torch.equal(batch[t].seed_time, given[t][batch[t].input_id])
            start, end = of_tree[batch[t].batch[n:]].unbind(1)
            assert ((start <= batch[t].time[n:]) & (batch[t].time[n:] <= end)).all()


@pytest.mark.parametrize(
    ("time", "options", "message"),
    [
        (windows(60).flip(1), {}, r"Expected times \[start, end\] of each seed, got \["),
        (windows(60), {"time_window": 3}, "got start and end. Pass one of them"),
        (windows(60)[:, :1], {}, r"or \[60, 2\] for start and end, got torch.int64 of shape \[60, 1\]"),
    ],
    ids=["swapped", "window", "shape"],
)
def test_wrong_windows(data, time, options, message):
    with pytest.raises(InputError, match=message):
        NeighborLoader(data, [3], input_time=time, time_attr="time", **options)
