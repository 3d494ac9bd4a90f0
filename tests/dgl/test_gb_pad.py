"""``pad="auto"`` of GraphBolt's loader: minibatches of fixed sizes, on which layers compute the same."""

import pytest
import torch
from gb_graphs import batches, random_graph, random_hetero_graph
from test_gb_loader_groups import sizes as on_gpu  # noqa: F401

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError
from manyhop_graphbolt.types import columns_of_edges

GRAPH, TYPED = random_graph(), random_hetero_graph()
X = {None: torch.rand(60, 3) + 1, "user": torch.rand(30, 3) + 1, "item": torch.rand(20, 3) + 1}
W = {None: torch.rand(400, 1) + 1, "user:likes:item": torch.rand(120, 1) + 1}
STORE = gb.BasicFeatureStore(
    {("node", t, "x"): gb.TorchBasedFeature(x) for t, x in X.items()}
    | {("edge", t, "w"): gb.TorchBasedFeature(w) for t, w in W.items()}
)
TYPED_KEYS = {"user": ["x"], "item": ["x"]}, {"user:likes:item": ["w"]}


def nodes(fanouts=(3, 2), **options):
    items = (torch.arange(50), torch.arange(50) + 1)
    pipe = batches(("seeds", "labels"), items, batch_size=16, shuffle=True, seed=5, **options).copy_to("cpu")
    return pipe.sample_neighbor(GRAPH, list(fanouts)).fetch_feature(STORE, ["x"], ["w"])


def shared_neighbours():
    pipe = batches("seed_nodes", torch.arange(50), batch_size=16, seed=5).copy_to("cpu")
    return pipe.sample_layer_neighbor(GRAPH, [3, 2]).fetch_feature(STORE, ["x"], ["w"])


def typed(fanouts=(3, 2)):
    by_type = {
        t: gb.ItemSet((torch.arange(n), torch.arange(n)), ("seeds", "labels")) for t, n in (("user", 30), ("item", 20))
    }
    pipe = gb.ItemSampler(gb.HeteroItemSet(by_type), batch_size=12, shuffle=True, seed=5).copy_to("cpu")
    return pipe.sample_neighbor(TYPED, list(fanouts)).fetch_feature(STORE, *TYPED_KEYS)


def typed_by_type():
    return typed([torch.tensor([2, 3, 2]), torch.tensor([1, 2, 3])])


def links():
    pipe = batches("seeds", torch.arange(80).view(40, 2) % 60, batch_size=15, seed=5).copy_to("cpu")
    return pipe.sample_uniform_negative(GRAPH, 2).sample_neighbor(GRAPH, [3, 2]).fetch_feature(STORE, ["x"], ["w"])


def typed_links():
    ends = torch.stack([torch.arange(40) % 30, torch.arange(40) % 20], dim=1)
    items = gb.HeteroItemSet(
        {"user:likes:item": gb.ItemSet(ends, "seeds"), "item:liked:user": gb.ItemSet(ends.flip(1) % 20, "seeds")}
    )
    pipe = gb.ItemSampler(items, batch_size=15, shuffle=True, seed=5).copy_to("cpu").sample_uniform_negative(TYPED, 1)
    return pipe.sample_neighbor(TYPED, [3, 2]).fetch_feature(STORE, *TYPED_KEYS)


def parts(value, kind=None):
    """Values by type; untyped ones have the type ``None``."""
    return value if isinstance(value, dict) else {kind: value}


def of_type(value, kind):
    return value[kind] if isinstance(value, dict) else value


def shape_of(minibatch):
    layers = [
        (
            {t: len(r) for t, r in parts(one.original_row_node_ids).items()},
            {t: len(e) for t, e in parts(one.edge_mask).items()},
        )
        for one in minibatch.sampled_subgraphs
    ]
    return layers, {t: len(mask) for t, mask in parts(minibatch.seed_mask).items()}


def check_layer(plain, padded):
    rows, masks = parts(padded.original_row_node_ids), parts(padded.row_mask)
    for t, mask in masks.items():
        assert torch.equal(rows[t][mask], of_type(plain.original_row_node_ids, t))
        assert not rows[t][~mask].any()
    for t, csc in parts(padded.sampled_csc).items():
        src, _, dst = (None,) * 3 if t is None else t.split(":")
        mask, ids, theirs = (
            of_type(padded.edge_mask, t),
            of_type(padded.original_edge_ids, t),
            of_type(plain.sampled_csc, t),
        )
        assert torch.equal(ids[mask], of_type(plain.original_edge_ids, t))
        assert not ids[~mask].any()
        for kind, mine, other in (
            (src, csc.indices, theirs.indices),
            (dst, columns_of_edges(csc), columns_of_edges(theirs)),
        ):
            assert torch.equal(masks[kind][mine], mask)
            assert torch.equal((masks[kind].cumsum(0) - 1)[mine[mask]], other)
        columns = of_type(padded.original_column_node_ids, dst)
        assert torch.equal(columns, rows[dst][: len(columns)])
        assert len(csc.indptr) == len(columns) + 1


def check_rows(plain, padded, mask):
    assert torch.equal(padded[mask], plain)
    assert not padded[~mask].any()


def check_seeds(plain, padded):
    last, own = padded.sampled_subgraphs[-1], plain.sampled_subgraphs[-1]
    for t, mask in parts(padded.seed_mask).items():
        for name in ("seeds", "labels", "indexes"):
            if getattr(plain, name) is not None:
                check_rows(of_type(getattr(plain, name), t), of_type(getattr(padded, name), t), mask)
        ends = t.split(":") if t is not None and ":" in t else (t, t)
        both = [of_type(minibatch.compacted_seeds, t) for minibatch in (padded, plain)]
        mine, theirs = (places.unbind(1) if places.dim() == 2 else (places,) for places in both)
        for one, other, kind in zip(mine, theirs, (ends[0], ends[-1]), strict=False):
            ids, masks = of_type(last.original_column_node_ids, kind), of_type(last.row_mask, kind)
            assert torch.equal(ids[one[mask]], of_type(own.original_column_node_ids, kind)[other])
            assert masks[one[mask]].all()
            assert not masks[one[~mask]].any()


def links_left_out(leave_out=True):
    dst = torch.arange(60).repeat_interleave(GRAPH.csc_indptr.diff())
    ends = torch.stack([GRAPH.indices[:40].long(), dst[:40]], dim=1)  # edges of the graph
    pipe = batches("seeds", ends, batch_size=15, shuffle=True, seed=5).copy_to("cpu").sample_uniform_negative(GRAPH, 2)
    pipe = pipe.sample_neighbor(GRAPH, [-1, -1])
    pipe = pipe.exclude_seed_edges(include_reverse_edges=True) if leave_out else pipe
    return pipe.fetch_feature(STORE, ["x"], ["w"])


def typed_links_left_out(leave_out=True):
    ends = torch.stack([torch.arange(40) % 30, torch.arange(40) % 20], dim=1)
    items = gb.HeteroItemSet({"user:likes:item": gb.ItemSet(ends, "seeds")})
    pipe = gb.ItemSampler(items, batch_size=15, shuffle=True, seed=5).copy_to("cpu").sample_neighbor(TYPED, [-1, -1])
    pipe = pipe.exclude_seed_edges(True, {"user:likes:item": "item:liked:user"}) if leave_out else pipe
    return pipe.fetch_feature(STORE, *TYPED_KEYS)


LEFT_OUT = [links_left_out, typed_links_left_out]
CHAINS = [
    nodes,
    shared_neighbours,
    typed,
    typed_by_type,
    links,
    typed_links,
    *LEFT_OUT,
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("groups", [False, True])
def test_only_padding_is_added(request, chain, groups):
    if groups:
        request.getfixturevalue("on_gpu")
    expected, made = list(gb.DataLoader(chain())), gb.DataLoader(chain(), pad="auto", num_workers=1)
    found = list(made)
    assert len(found) == len(expected)
    assert all(shape_of(one) == shape_of(found[0]) for one in found)
    for plain, padded in zip(expected, found, strict=True):
        assert padded.padding is None
        for one, other in zip(plain.sampled_subgraphs, padded.sampled_subgraphs, strict=True):
            check_layer(one, other)
        for t, mask in parts(padded.node_mask).items():
            key = "x" if t is None else (t, "x")
            check_rows(plain.node_features[key], padded.node_features[key], mask)
        for one, other, layer in zip(plain.edge_features, padded.edge_features, padded.sampled_subgraphs, strict=True):
            for key in one:
                check_rows(one[key], other[key], layer.edge_mask if key == "w" else layer.edge_mask[key[0]])
        check_seeds(plain, padded)
    stats, without = made.stats(), gb.DataLoader(chain())
    list(without)
    assert stats.pad_fit_rate == 1
    assert (stats.seeds, stats.nodes, stats.edges) == tuple(
        getattr(without.stats(), n) for n in ("seeds", "nodes", "edges")
    )


@pytest.mark.parametrize("chain", LEFT_OUT)
def test_seed_edges_are_left_out(chain):
    def edges(leave_out):
        layers = [layer for one in gb.DataLoader(chain(leave_out), pad="auto") for layer in one.sampled_subgraphs]
        return sum(int(mask.sum()) for layer in layers for mask in parts(layer.edge_mask).values())

    assert 0 < edges(True) < edges(False)


def test_blocks_compute_the_same():
    dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
    torch.manual_seed(0)
    net = dgl.nn.SAGEConv(3, 4, "mean")
    for plain, padded in zip(gb.DataLoader(nodes()), gb.DataLoader(nodes(), pad="auto"), strict=True):
        expected = net(plain.blocks[0], plain.node_features["x"])
        block = padded.blocks[0]
        got = net(block, padded.node_features["x"])
        assert torch.allclose(got[block.dstdata["node_mask"]], expected, atol=1e-6)
        assert torch.equal(block.edata["edge_mask"], padded.sampled_subgraphs[0].edge_mask)
        assert len(padded.labels) == padded.blocks[-1].num_dst_nodes()


class Own(gb.SubgraphSampler):
    """A user's sampler."""


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda: links().exclude_seed_edges(), "exclude_seed_edges before these, got a SeedEdgesExcluder"),
        (lambda: batches("seeds", torch.arange(9)), "sample_layer_neighbor in a chain"),
        (lambda: Own(batches("seeds", torch.arange(9))), "sample_layer_neighbor in a chain"),
    ],
    ids=["excluder", "no sampler", "own sampler"],
)
def test_what_cannot_be_padded(chain, message):
    with pytest.raises(InputError, match=message):
        gb.DataLoader(chain(), pad="auto")
    with pytest.raises(InputError, match="pad to be None or 'auto', got 3"):
        gb.DataLoader(nodes(), pad=3)
