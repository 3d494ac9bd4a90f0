"""``pad="auto"`` of the DataLoader: blocks of fixed sizes, on which DGL's layers compute the same."""

import pickle

import pytest
import torch
from test_dgl_loader_tensors import graph, links, loader, on_gpu  # noqa: F401
from torch_graphs import on_torch

import manyhop_dgl
from manyhop.errors import FeatureError, InputError

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
nn = dgl.nn.pytorch


def by_type(value, kind):
    return value[kind] if isinstance(value, dict) else value


def shapes(graphs):
    """Numbers of nodes and edges of blocks or graphs."""
    return [
        [
            [g.num_src_nodes(t) for t in g.srctypes],
            [g.num_dst_nodes(t) for t in g.dsttypes],
            [g.num_edges(t) for t in g.canonical_etypes],
        ]
        for g in graphs
    ]


def check_block(plain, padded):
    """Real nodes, edges and rows are those without padding; the others are zeros and join padding only."""
    for side, plain_side, kinds in (
        (padded.srcnodes, plain.srcnodes, plain.srctypes),
        (padded.dstnodes, plain.dstnodes, plain.dsttypes),
    ):
        for t in kinds:
            mask = side[t].data["node_mask"]
            for name in side[t].data.keys() & plain_side[t].data.keys():
                value = plain_side[t].data[name]
                assert torch.equal(side[t].data[name][mask], value), name
                assert not side[t].data[name][~mask].any(), name
    for t in plain.canonical_etypes:
        mask, data = padded.edges[t].data["edge_mask"], padded.edges[t].data
        for name in data.keys() & plain.edges[t].data.keys():
            value = plain.edges[t].data[name]
            assert torch.equal(data[name][mask], value), name
            assert not data[name][~mask].any(), name
        src, dst = padded.edges(etype=t)
        real = padded.srcnodes[t[0]].data["node_mask"][src], padded.dstnodes[t[2]].data["node_mask"][dst]
        assert torch.equal(real[0], mask)
        assert torch.equal(real[1], mask)
        ends = plain.edges(etype=t)
        for nodes, mine, theirs, kind in ((padded.srcnodes, src, ends[0], t[0]), (padded.dstnodes, dst, ends[1], t[2])):
            number = nodes[kind].data["node_mask"].cumsum(0) - 1
            assert torch.equal(number[mine[mask]], theirs)


def check_nodes(plain, padded):
    """A batch with padding, in any form, against blocks without it."""
    for t in plain[2][-1].dsttypes:
        mask = padded[2][-1].dstnodes[t].data["node_mask"]
        ids = plain[2][-1].dstnodes[t].data[dgl.NID]
        assert torch.equal(by_type(padded[1], t)[mask], ids)
        assert mask.nonzero().view(-1).tolist() == list(range(ids.numel()))  # seeds are the first rows
    for block, other in zip(plain[2], padded[2], strict=True):
        check_block(block, other)


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
@pytest.mark.parametrize("groups", [False, True])
def test_blocks(on_gpu, kind, groups):  # noqa: F811
    g = graph(kind)
    on_gpu(False)
    expected = list(loader(kind, g))
    on_gpu(groups)
    made = loader(kind, g, pad="auto", num_workers=1)
    batches = list(made)
    assert all(shapes(batch[2]) == shapes(batches[0][2]) for batch in batches)
    for plain, padded in zip(expected, batches, strict=True):
        check_nodes(plain, padded)
    stats = made.stats()
    assert (stats.seeds, stats.pad_fit_rate) == (60, 1.0)
    assert stats.edges == sum(block.num_edges() for batch in expected for block in batch[2])


def test_tensors_are_the_blocks():
    for kind in ("plain", "typed"):
        g = graph(kind)
        for ours, (_, _, blocks) in zip(
            loader(kind, g, pad="auto", output="tensors"), loader(kind, g, pad="auto"), strict=True
        ):
            for mine, block in zip(ours.blocks, blocks, strict=True):
                for t in block.canonical_etypes:
                    assert torch.equal(by_type(mine.edge_mask, t), block.edges[t].data["edge_mask"])
            for t in g.ntypes:
                assert torch.equal(by_type(ours.node_mask, t), blocks[0].srcnodes[t].data["node_mask"])
                assert torch.equal(by_type(ours.to("cpu").node_features["x"], t), blocks[0].srcnodes[t].data["x"])


LAYERS = {
    "sage": lambda: nn.SAGEConv(3, 4, "mean"),
    "pool": lambda: nn.SAGEConv(3, 4, "pool"),
    "gcn": lambda: nn.GraphConv(3, 4, norm="right", allow_zero_in_degree=True),
    "gat": lambda: nn.GATConv(3, 4, 2, allow_zero_in_degree=True),
    "gin": lambda: nn.GINConv(torch.nn.Linear(3, 4), "sum"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_compute_the_same(layer):
    torch.manual_seed(0)
    net, g = LAYERS[layer](), graph("plain")
    for (_, _, plain), (_, _, padded) in zip(loader("plain", g), loader("plain", g, pad="auto"), strict=True):
        expected = net(plain[0], plain[0].srcdata["x"])
        for block in (padded[0], on_torch(padded[0])):
            got = net(block, block.srcdata["x"])
            assert torch.allclose(got[block.dstdata["node_mask"]], expected, atol=1e-6)


def test_typed_layers_compute_the_same():
    torch.manual_seed(0)
    net, g = nn.HeteroGraphConv({t: nn.SAGEConv(3, 4, "mean") for t in ("cites", "writes")}), graph("typed")
    for (_, _, plain), (_, _, padded) in zip(loader("typed", g), loader("typed", g, pad="auto"), strict=True):
        expected = net(plain[0], plain[0].srcdata["x"])["paper"]
        got = net(padded[0], padded[0].srcdata["x"])["paper"]
        assert torch.allclose(got[padded[0].dstnodes["paper"].data["node_mask"]], expected, atol=1e-6)


def test_weights_of_layer_neighbour_sampling():
    g = graph("plain")
    sampler = manyhop_dgl.LaborSampler([4, 3], prob="w", prefetch_node_feats=["x"], seed=1)
    plain, padded = (
        manyhop_dgl.DataLoader(g, torch.arange(60), sampler, batch_size=16, seed=3, **options)
        for options in ({}, {"pad": "auto"})
    )
    for both in zip(plain, padded, strict=True):
        check_nodes(*both)
        assert "edge_weights" in both[1][2][0].edata


@pytest.mark.parametrize("kind", ["plain", "typed"])
@pytest.mark.parametrize("groups", [False, True])
def test_seed_edges(on_gpu, kind, groups):  # noqa: F811
    g = graph(kind)
    on_gpu(False)
    expected = list(links(kind, g))
    on_gpu(groups)
    made = links(kind, g, pad="auto")
    batches = list(made)
    assert all(
        [shapes(batch[1:3]), shapes(batch[3])] == [shapes(batches[0][1:3]), shapes(batches[0][3])] for batch in batches
    )
    for plain, padded in zip(expected, batches, strict=True):
        for block, other in zip(plain[3], padded[3], strict=True):
            check_block(block, other)
        for pairs, other in zip(plain[1:3], padded[1:3], strict=True):
            for t in g.canonical_etypes:
                mask, data = other.edges[t].data["edge_mask"], other.edges[t].data
                ends, real = other.edges(etype=t, order="eid"), pairs.edges(etype=t, order="eid")
                for k in (0, 1):
                    side = 2 * k
                    nodes, own = other.nodes[t[side]].data, pairs.nodes[t[side]].data
                    assert torch.equal(nodes[dgl.NID][ends[k][mask]], own[dgl.NID][real[k]])
                    assert not nodes["node_mask"][ends[k][~mask]].any()
                for name in [name for name in data if name in pairs.edges[t].data]:
                    assert torch.equal(data[name][mask], pairs.edges[t].data[name])
                    assert not data[name][~mask].any()
    assert made.stats().seeds == (70 if kind == "typed" else 50)


def test_sizes_survive_pickling_and_data_that_change():
    g = graph("plain")
    made = loader("plain", g, pad="auto")
    again = pickle.loads(pickle.dumps(made))
    assert [shapes(batch[2]) for batch in again] == [shapes(batch[2]) for batch in made]
    for i, (_, _, blocks) in enumerate(made):
        mask = blocks[0].srcdata["node_mask"]
        assert not blocks[0].srcdata["x"][~mask].any()
        if i == 0:
            g.ndata["x"] = torch.randn(100, 5)  # read once more, and cleared once more
        else:
            assert torch.equal(blocks[0].srcdata["x"][mask], g.ndata["x"][blocks[0].srcdata[dgl.NID][mask]])


def test_wrong_arguments():
    g = graph("plain")
    sampler = manyhop_dgl.NeighborSampler([2])

    def make(sampler=sampler, indices=range(9), pad="auto"):
        return manyhop_dgl.DataLoader(g, indices, sampler, pad=pad)

    with pytest.raises(InputError, match="pad to be None or 'auto', got 3"):
        make(pad=3)
    with pytest.raises(InputError, match="with its own methods, for pad='auto'"):
        make(dgl.dataloading.MultiLayerFullNeighborSampler(1))
    with pytest.raises(InputError, match="output_device for pad='auto'"):
        make(manyhop_dgl.NeighborSampler([2], output_device="cpu"))
    with pytest.raises(InputError, match="that the loader cuts into batches with pad='auto', got a list of batches"):
        make(indices=[torch.arange(2), torch.arange(3)])
    g.ndata["node_mask"] = torch.ones(100)
    with pytest.raises(FeatureError, match="attribute 'node_mask'"):
        make(manyhop_dgl.NeighborSampler([2], prefetch_node_feats=["node_mask"]))
    assert list(make(indices=torch.arange(0))) == []


def test_edge_data_against_the_direction_of_edges():
    draw = torch.Generator().manual_seed(0)
    ends = {"a": torch.randint(0, 20, (80,), generator=draw), "b": torch.randint(0, 30, (80,), generator=draw)}
    g = dgl.heterograph({("a", "r", "b"): (ends["a"], ends["b"]), ("b", "r", "a"): (ends["b"].flip(0), ends["a"])})
    for t in g.canonical_etypes:
        g.edges[t].data["w"] = torch.rand(80, generator=draw)
    names = {t: ["w"] for t in g.canonical_etypes}
    sampler = manyhop_dgl.NeighborSampler([3, 3], edge_dir="out", prefetch_edge_feats=names)
    batches = list(manyhop_dgl.DataLoader(g, {"a": torch.arange(20)}, sampler, batch_size=5, seed=1, pad="auto"))
    assert len(batches) == 4
    for _, _, blocks in batches:
        for block in blocks:
            for src, relation, dst in block.canonical_etypes:
                data = block.edges[src, relation, dst].data
                expected = g.edges[dst, relation, src].data["w"][data[dgl.EID]] * data["edge_mask"]
                assert torch.equal(data["w"], expected)
