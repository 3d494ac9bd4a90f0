"""Subclasses of NeighborSampler that override ``_sample``, as PyG's class allows it."""

import pytest
import torch
from helpers_pyg import all_same
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from manyhop.errors import InputError
from manyhop_pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler
from manyhop_pyg.samplers.on_gpu import samples_on_gpu

WRITES = ("author", "writes", "paper")


class Forwarding(NeighborSampler):
    """Samples as its base does, and notes what it was called with."""

    def __init__(self, *args, **kwargs):
        self.calls = []
        super().__init__(*args, **kwargs)

    def _sample(self, seed, seed_time=None, **kwargs):
        self.calls.append((seed, seed_time, kwargs))
        return super()._sample(seed, seed_time, **kwargs)


class Cutting(NeighborSampler):
    """Drops all edges."""

    def _sample(self, seed, seed_time=None, **kwargs):
        out = super()._sample(seed, seed_time, **kwargs)
        if isinstance(seed, dict):
            out.row, out.col, out.edge = ({t: v[:0] for t, v in x.items()} for x in (out.row, out.col, out.edge))
        else:
            out.row, out.col, out.edge = out.row[:0], out.col[:0], out.edge[:0]
        out.num_sampled_nodes = out.num_sampled_edges = None
        return out


NODE_MODES = [
    {},
    {"replace": True, "disjoint": True},
    {"time_attr": "time"},
    {"time_attr": "edge_time", "input_time": True, "time_window": 5.0},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"weight_attr": "edge_weight"},
]


@pytest.mark.parametrize("mode", NODE_MODES, ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_subclass_forwards_is_the_same(data, mode, num_workers):
    mode = dict(mode)
    of_loader = {"input_nodes": torch.arange(40), "batch_size": 9, "seed": 3, "num_workers": num_workers}
    if mode.pop("input_time", False):
        of_loader["input_time"] = torch.arange(40)
    sampler = Forwarding(data, [3, 2], **mode)
    window = {"time_window": mode.pop("time_window")} if "time_window" in mode else {}
    expected = list(NeighborLoader(data, [3, 2], **mode, **window, **of_loader))
    of_loader |= {"time_attr": mode["time_attr"]} if "input_time" in of_loader else {}
    batches = list(NeighborLoader(data, [], neighbor_sampler=sampler, **of_loader))
    assert len(sampler.calls) == len(batches) == 5
    assert all(type(seed) is torch.Tensor and not kwargs for seed, _, kwargs in sampler.calls)
    assert all((time is None) == ("input_time" not in of_loader) for _, time, _ in sampler.calls)
    for batch in batches + expected:
        if mode.get("subgraph_type") == "bidirectional":  # PyG's way to add reverses knows no counts, nor an order
            ends, order = batch.edge_index, (batch.edge_index[1] * 100 + batch.edge_index[0]).argsort(stable=True)
            batch.edge_index = ends[:, order]
            for name in ("e_id", "edge_attr", "edge_weight", "edge_time"):
                del batch[name]
    assert all_same(batches, expected)


LINK_MODES = [{}, {"neg_sampling": "binary"}, {"neg_sampling": {"mode": "triplet", "amount": 2}}]


@pytest.mark.parametrize("mode", LINK_MODES, ids=str)
@pytest.mark.parametrize("kind", [{}, {"disjoint": True}, {"time_attr": "time"}], ids=str)
def test_seed_edges(data, mode, kind):
    of_loader = {"batch_size": 60, "seed": 3, **mode}
    if kind.get("time_attr"):
        of_loader |= {"edge_label_time": data.edge_time.double() + 0.5, "time_attr": "time"}
    sampler = Forwarding(data, [3, 2], **kind)
    expected = list(LinkNeighborLoader(data, [3, 2], **(kind | of_loader)))
    assert all_same(list(LinkNeighborLoader(data, [], neighbor_sampler=sampler, **of_loader)), expected)
    assert len(sampler.calls) == 5
    seed, time, _ = sampler.calls[0]
    if kind.get("time_attr"):
        assert torch.equal(time[:60], of_loader["edge_label_time"][:60])
        assert torch.equal(seed[:60], data.edge_index[0, :60])
    else:
        assert time is None


@pytest.mark.parametrize("mode", LINK_MODES, ids=str)
@pytest.mark.parametrize("disjoint", [False, True])
def test_seed_edges_of_types(hetero, mode, disjoint):
    of_loader = {"edge_label_index": (WRITES, None), "batch_size": 60, "seed": 3, **mode}
    sampler = Forwarding(hetero, [3, 2], disjoint=disjoint)
    expected = list(LinkNeighborLoader(hetero, [3, 2], disjoint=disjoint, **of_loader))
    assert all_same(list(LinkNeighborLoader(hetero, [], neighbor_sampler=sampler, **of_loader)), expected)
    assert set(sampler.calls[0][0]) == {"author", "paper"}


def test_what_a_subclass_changes_is_in_the_batch(data, hetero):
    loader = NeighborLoader(data, [3], neighbor_sampler=Cutting(data, [3]), batch_size=20)
    assert all(batch.num_edges == 0 and batch.num_nodes > batch.batch_size for batch in loader)
    sampler = Cutting(hetero, [3])
    loader = NeighborLoader(hetero, [3], neighbor_sampler=sampler, input_nodes="paper", batch_size=20)
    assert all(batch.num_edges == 0 and batch["paper"].batch_size == 20 for batch in loader)
    links = LinkNeighborLoader(data, [3], neighbor_sampler=Cutting(data, [3], subgraph_type="bidirectional"))
    assert next(iter(links)).num_edges == 0
    assert not samples_on_gpu(sampler, "sample_from_nodes")
    assert samples_on_gpu(NeighborSampler(data, [3]), "sample_from_nodes")


def test_an_attribute_of_the_sampler_counts(data):
    sampler = NeighborSampler(data, [3], subgraph_type="bidirectional")
    before, seeds = sampler._sample, []
    sampler._sample = lambda seed, seed_time=None: seeds.append(seed) or before(seed, seed_time)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(4)))
    assert [seed.tolist() for seed in seeds] == [[0, 1, 2, 3]]
    pairs = set(zip(out.row.tolist(), out.col.tolist(), strict=True))
    assert pairs == {(col, row) for row, col in pairs}
    sampler.sample_from_edges(EdgeSamplerInput(None, *data.edge_index[:, :4]))
    assert len(seeds) == 2


def test_sample_alone(data, hetero):
    out = NeighborSampler(data, [-1], subgraph_type="bidirectional")._sample(torch.arange(50))
    assert out.edge.numel() == 300  # without reverses
    out = NeighborSampler(hetero, [-1])._sample({"paper": torch.arange(40), "author": torch.arange(30)})
    assert out.edge[WRITES].numel() == 120
    out = NeighborSampler(data, [-1], time_attr="time")._sample(torch.arange(50), torch.zeros(50, dtype=torch.int64))
    src = data.edge_index[0, out.edge]
    assert (data.time[src] == 0).all()
    assert out.edge.numel() > 0
    with pytest.raises(InputError, match=r"got also \['colour'\]"):
        NeighborSampler(data, [-1])._sample(torch.arange(50), colour="red")
