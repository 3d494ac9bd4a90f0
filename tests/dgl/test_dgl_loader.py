"""What a loader hands out: DGL's batches, with their data, in a keyed order."""

import pytest
import torch
from test_dgl_loader_tensors import graph

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
DataLoader = manyhop_dgl.DataLoader
NeighborSampler = manyhop_dgl.NeighborSampler


def sampler(**kwargs):
    names = {"prefetch_node_feats": ["x"], "prefetch_labels": ["y"], "prefetch_edge_feats": ["w"]}
    return NeighborSampler([4, 3], **(names | kwargs))


def flat(batch):
    """All ids of a batch of blocks, to compare batches by."""
    nodes, seeds, blocks = batch
    edges = [part.tolist() for block in blocks for part in (*block.edges(), block.edata[dgl.EID])]
    return [nodes.tolist(), seeds.tolist(), *edges]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_hold_what_the_sampler_prefetches(num_workers):
    g = graph("plain")
    loader = DataLoader(g, torch.arange(90), sampler(), batch_size=32, shuffle=True, num_workers=num_workers)
    seen = []
    for input_nodes, output_nodes, blocks in loader:
        assert torch.equal(blocks[0].srcdata["x"], g.ndata["x"][input_nodes])
        assert torch.equal(blocks[-1].dstdata["y"], output_nodes)
        for block in blocks:
            assert torch.equal(block.edata["w"], g.edata["w"][block.edata[dgl.EID]])
            src, dst = block.edges()
            found = g.find_edges(block.edata[dgl.EID])
            assert torch.equal(block.srcdata[dgl.NID][src], found[0])
            assert torch.equal(block.dstdata[dgl.NID][dst], found[1])
        seen += output_nodes.tolist()
    assert sorted(seen) == list(range(90))
    assert seen != sorted(seen)


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning", "ignore::ResourceWarning")  # DGL's METIS
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["full", "shadow", "saint", "cluster"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samplers_of_dgl_run_in_threads(name, num_workers, tmp_path):
    g = graph("plain")
    data = {"prefetch_ndata": ["x"], "prefetch_edata": ["w"]} if name in ("saint", "cluster") else {}
    make = {
        "full": lambda: dgl.dataloading.MultiLayerFullNeighborSampler(2, prefetch_node_feats=["x"]),
        "shadow": lambda: dgl.dataloading.ShaDowKHopSampler([4, 3], prefetch_node_feats=["x"]),
        "saint": lambda: dgl.dataloading.SAINTSampler(mode="node", budget=40, **data),
        "cluster": lambda: dgl.dataloading.ClusterGCNSampler(g, 8, cache_path=str(tmp_path / "parts"), **data),
    }
    seeds = torch.arange(8)
    loader = DataLoader(g, seeds, make[name](), batch_size=2, num_workers=num_workers)
    batches = list(loader)
    assert len(batches) == 4
    for batch in batches:
        inner = batch[-1] if isinstance(batch, tuple) else batch
        sub = inner[0] if isinstance(inner, list) else inner
        data, ids = (sub.srcdata, sub.srcdata[dgl.NID]) if sub.is_block else (sub.ndata, sub.ndata[dgl.NID])
        assert torch.equal(data["x"], g.ndata["x"][ids])


def test_seeds_of_several_types():
    g = graph("typed")
    seeds = {"paper": torch.arange(50), "author": torch.arange(10, 30)}
    names = {"paper": ["x"], "author": ["x"]}
    sampler = NeighborSampler([3, 2], prefetch_node_feats=names, prefetch_edge_feats={"writes": ["w"]})
    seen = {"paper": [], "author": []}
    for input_nodes, output_nodes, blocks in DataLoader(g, seeds, sampler, batch_size=16, shuffle=True, num_workers=1):
        assert sum(ids.numel() for ids in output_nodes.values()) in (16, 6)
        for node_type, ids in output_nodes.items():
            seen[node_type] += ids.tolist()
        for node_type in g.ntypes:
            expected = g.nodes[node_type].data["x"][input_nodes[node_type]]
            assert torch.equal(blocks[0].srcnodes[node_type].data["x"], expected)
        for block in blocks:
            ids = block.edges["writes"].data[dgl.EID]
            assert torch.equal(block.edges["writes"].data["w"], g.edges["writes"].data["w"][ids])
    assert {node_type: sorted(ids) for node_type, ids in seen.items()} == {k: v.tolist() for k, v in seeds.items()}


def test_edge_prediction():
    g = graph("plain")
    negative = dgl.dataloading.negative_sampler.Uniform(2)
    edges = dgl.dataloading.as_edge_prediction_sampler(
        sampler(prefetch_labels=None), negative_sampler=negative, prefetch_labels=["w"]
    )
    loader = DataLoader(g, torch.arange(60), edges, batch_size=20, num_workers=1)
    for input_nodes, pair_graph, neg_pair_graph, blocks in loader:
        assert torch.equal(blocks[0].srcdata["x"], g.ndata["x"][input_nodes])
        assert torch.equal(pair_graph.edata["w"], g.edata["w"][pair_graph.edata[dgl.EID]])
        assert neg_pair_graph.num_edges() == 40
    assert loader.stats().seeds == 60


class GivenBatches:
    """Indices of batches, with an order of their own."""

    def __init__(self):
        self.batches = [torch.arange(5), torch.arange(5, 12), torch.arange(12, 14)]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, i):
        return self.batches[i]

    def shuffle(self):
        self.batches.reverse()


def test_a_dataset_of_batches():
    loader = DataLoader(graph("plain"), GivenBatches(), sampler(), num_workers=1)
    assert [batch[1].numel() for batch in loader] == [5, 7, 2]
    assert len(loader) == 3
    shuffled = DataLoader(graph("plain"), GivenBatches(), sampler(), shuffle=True)
    assert [batch[1].numel() for batch in shuffled] == [2, 7, 5]
    assert [batch[1].numel() for batch in DataLoader(graph("plain"), iter(GivenBatches().batches), sampler())] == [
        5,
        7,
        2,
    ]


class Endless(torch.utils.data.Dataset):
    """A map-style dataset that no number is too large for."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return self.item(i)


def test_a_map_style_dataset_ends_with_its_length():
    loader = DataLoader(graph("plain"), Endless(lambda i: torch.arange(4) + 4 * i), sampler())
    assert [batch[1].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    ids = Endless(lambda i: 2 * i)
    assert [batch[1].tolist() for batch in DataLoader(graph("plain"), ids, sampler(), batch_size=2)] == [[0, 2], [4]]
    by_type = DataLoader(graph("plain"), {"_N": ids}, sampler(), batch_size=2)
    assert [batch[1]["_N"].tolist() for batch in by_type] == [[0, 2], [4]]
    assert sampler().sample(graph("plain"), ids)[1].tolist() == [0, 2, 4]


def test_resume_in_a_dataset_of_batches():
    first = DataLoader(graph("plain"), GivenBatches(), sampler(), seed=2)
    whole = [flat(batch) for batch in DataLoader(graph("plain"), GivenBatches(), sampler(), seed=2)]
    iterator = iter(first)
    assert flat(next(iterator)) == whole[0]
    again = DataLoader(graph("plain"), GivenBatches(), sampler(), num_workers=1)
    again.load_state_dict(first.state_dict())
    assert [flat(batch) for batch in again] == whole[1:]


def test_a_loader_is_one_of_torchs_and_of_dgls():
    loader = DataLoader(graph("plain"), torch.arange(20), sampler(), batch_size=8, drop_last=True)
    assert isinstance(loader, dgl.dataloading.DataLoader)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (loader.batch_size, loader.drop_last, len(loader)) == (8, True, 2)
