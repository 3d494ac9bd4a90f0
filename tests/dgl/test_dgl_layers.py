"""DGL's own parts on this torch, against dense computations: what ``manyhop_dgl.compat`` promises to work."""

import pytest
import torch

import manyhop_dgl  # noqa: F401  # makes `import dgl` work

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
fn = dgl.function
dglnn = pytest.importorskip("dgl.nn.pytorch")

EDGES = torch.tensor([0, 1, 2, 3, 4, 0, 2, 2, 1]), torch.tensor([1, 2, 3, 4, 0, 2, 0, 0, 1])  # one twice, one loop


def make(num_nodes=5):
    return dgl.graph(EDGES, num_nodes=num_nodes)


def dense(g):
    """``[dst, src]``: how often there is an edge."""
    src, dst = g.edges()
    return torch.zeros(g.num_dst_nodes(), g.num_src_nodes()).index_put_((dst, src), torch.ones(len(src)), True)


def same_with_gradients(ours, theirs, *inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(ours)
    found = torch.autograd.grad((ours * weight).sum(), inputs, retain_graph=True)
    expected = torch.autograd.grad((theirs * weight).sum(), inputs, retain_graph=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def features(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_graph_conv():
    g, x, layer = make(), features(5, 3), dglnn.GraphConv(3, 4, norm="both")
    a = dense(g)
    scaled = a / (a.sum(1, keepdim=True).clamp(min=1).sqrt() * a.sum(0).clamp(min=1).sqrt())
    same_with_gradients(layer(g, x), scaled @ x @ layer.weight + layer.bias, x, layer.weight)


@pytest.mark.parametrize("kind", ["mean", "gcn", "pool"])
def test_sage_conv(kind):
    g, x, layer = make(), features(5, 3), dglnn.SAGEConv(3, 4, kind)
    a = dense(g)
    if kind == "mean":
        theirs = layer.fc_self(x) + layer.fc_neigh(a @ x / a.sum(1, keepdim=True).clamp(min=1))
    elif kind == "gcn":
        theirs = layer.fc_neigh((a @ x + x) / (a.sum(1, keepdim=True) + 1)) + layer.bias
    else:
        pooled = torch.relu(layer.fc_pool(x))
        highest = torch.stack([pooled[row > 0].max(0).values for row in a])
        theirs = layer.fc_self(x) + layer.fc_neigh(highest)
    same_with_gradients(layer(g, x), theirs, x, layer.fc_neigh.weight)


def test_gat_conv():
    g, x, layer = make(), features(5, 3), dglnn.GATConv(3, 4, num_heads=2)
    projected = layer.fc(x).view(5, 2, 4)
    left, right = (projected * layer.attn_l).sum(-1), (projected * layer.attn_r).sum(-1)
    score = torch.nn.functional.leaky_relu(left[None] + right[:, None], 0.2)  # [dst, src, head]
    weight = dense(g)[..., None] * score.exp()
    weight = weight / weight.sum(1, keepdim=True)
    theirs = torch.einsum("dsh,shf->dhf", weight, projected) + layer.bias.view(1, 2, 4)
    same_with_gradients(layer(g, x), theirs, x, layer.fc.weight, layer.attn_l)


def test_rel_graph_conv():
    g, x, layer = make(), features(5, 3), dglnn.RelGraphConv(3, 4, num_rels=3, regularizer="basis", num_bases=2)
    kinds = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
    src, dst = g.edges()
    weights = layer.linear_r.get_weight()  # [relation, in, out]
    messages = torch.einsum("ei,eio->eo", x[src], weights[kinds])
    theirs = torch.zeros(5, 4).index_add(0, dst, messages) + layer.h_bias + x @ layer.loop_weight
    same_with_gradients(layer(g, x, kinds), theirs, x, layer.loop_weight)


def test_hgt_conv():
    g, x = make(), features(5, 6)
    kinds, relations = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([0, 1] * 4 + [0])
    layer = dglnn.HGTConv(6, 3, 2, num_ntypes=2, num_etypes=2, dropout=0.0)
    src, dst = g.edges()

    def typed(linear, rows, of):
        return torch.einsum("ni,nio->no", rows, linear.get_weight()[of])

    key, query, value = (
        typed(part, x, kinds).view(5, 2, 3) for part in (layer.linear_k, layer.linear_q, layer.linear_v)
    )
    heads = []
    for h in range(2):
        score = (typed(layer.relation_att[h], key[src, h], relations) * query[dst, h]).sum(1)
        score = (score * layer.relation_pri[h][relations] / 3**0.5).exp()
        weight = score / torch.zeros(5).index_add(0, dst, score)[dst]
        message = typed(layer.relation_msg[h], value[src, h], relations)
        heads.append(torch.zeros(5, 3).index_add(0, dst, message * weight[:, None]))
    share = torch.sigmoid(layer.skip[kinds])[:, None]
    theirs = typed(layer.linear_a, torch.cat(heads, 1), kinds) * share + x * (1 - share)
    same_with_gradients(layer(g, x, kinds, relations), theirs, x, layer.skip)


def test_hetero_graph_conv():
    g = dgl.heterograph({("user", "rates", "film"): ([0, 1, 2], [0, 0, 1]), ("film", "by", "user"): ([0, 1], [2, 2])})
    x = {"user": features(3, 4), "film": features(2, 4)}
    layer = dglnn.HeteroGraphConv({rel: dglnn.GraphConv(4, 4, norm="right") for rel in g.etypes}, aggregate="sum")
    out = layer(g, x)
    for src, rel, dst in g.canonical_etypes:
        a = dense(g[src, rel, dst])
        conv = layer.mods[rel]
        theirs = a @ x[src] / a.sum(1, keepdim=True).clamp(min=1) @ conv.weight + conv.bias
        same_with_gradients(out[dst], theirs, x[src], conv.weight)


def test_message_passing_and_edge_softmax():
    g, x, e = make(), features(5, 3), features(9, 1)
    src, dst = g.edges()
    with g.local_scope():
        g.ndata["x"], g.edata["e"] = x, e
        g.update_all(fn.u_mul_e("x", "e", "m"), fn.sum("m", "y"))
        same_with_gradients(g.ndata["y"], torch.zeros(5, 3).index_add(0, dst, x[src] * e), x, e)
        g.apply_edges(fn.u_dot_v("x", "x", "s"))
        same_with_gradients(g.edata["s"], (x[src] * x[dst]).sum(1, keepdim=True), x)
        g.update_all(lambda edges: {"m": edges.src["x"]}, lambda nodes: {"z": nodes.mailbox["m"].sum(1)})
        torch.testing.assert_close(g.ndata["z"], dense(g) @ x)
    assert not g.ndata
    weight = e.exp() / torch.zeros(5, 1).index_add(0, dst, e.exp())[dst]
    same_with_gradients(dgl.nn.functional.edge_softmax(g, e), weight, e)


def test_blocks():
    g, x, layer = make(), features(5, 3), dglnn.SAGEConv(3, 4, "mean")
    block = dgl.to_block(dgl.in_subgraph(g, torch.tensor([2, 0])), torch.tensor([2, 0]))
    out = layer(block, x[block.srcdata[dgl.NID]])
    torch.testing.assert_close(out, layer(g, x)[[2, 0]])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_its_data_loader(num_workers):
    g = dgl.rand_graph(50, 400)
    g.ndata["x"], g.ndata["y"] = torch.arange(50.0).view(-1, 1), torch.arange(50)
    sampler = dgl.dataloading.NeighborSampler([2, 3], prefetch_node_feats=["x"], prefetch_labels=["y"])
    loader = dgl.dataloading.DataLoader(g, torch.arange(20), sampler, batch_size=8, num_workers=num_workers)
    with pytest.warns(UserWarning, match="affinity"):
        batches = list(loader)
    assert [len(seeds) for _, seeds, _ in batches] == [8, 8, 4]
    for inputs, seeds, blocks in batches:
        assert torch.equal(blocks[0].srcdata["x"].view(-1).long(), inputs)
        assert torch.equal(blocks[-1].dstdata["y"], seeds)


def test_its_samplers():
    g = dgl.rand_graph(50, 400)
    g.edata["w"] = torch.rand(400)
    loading = dgl.dataloading
    for sampler in (
        loading.MultiLayerFullNeighborSampler(2),
        loading.LaborSampler([3, 3], importance_sampling=1),
        loading.NeighborSampler([3, 3], prob="w", replace=True),
        loading.ShaDowKHopSampler([3, 3]),
    ):
        assert sampler.sample(g, torch.arange(5)) is not None
    edges = loading.as_edge_prediction_sampler(
        loading.NeighborSampler([3]), exclude="self", negative_sampler=loading.negative_sampler.Uniform(2)
    )
    _, pairs, negatives, _ = edges.sample(g, torch.arange(10))
    assert (pairs.num_edges(), negatives.num_edges()) == (10, 20)
    assert dgl.sampling.random_walk(g, torch.arange(5), length=3)[0].shape == (5, 4)


def test_save_and_load(tmp_path):
    g = make()
    g.ndata["x"] = torch.randn(5, 2)
    dgl.save_graphs(str(tmp_path / "g.bin"), [g], {"labels": torch.arange(3)})
    (loaded,), labels = dgl.load_graphs(str(tmp_path / "g.bin"))
    assert torch.equal(loaded.ndata["x"], g.ndata["x"])
    assert torch.equal(torch.stack(loaded.edges()), torch.stack(g.edges()))
    assert labels["labels"].tolist() == [0, 1, 2]


UNCLOSED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # DGL leaves files open


@UNCLOSED
def test_metis():
    ring = torch.arange(40)
    g = dgl.to_bidirected(dgl.graph((ring, (ring + 1) % 40)))
    parts = dgl.metis_partition_assignment(g, 2)
    src, dst = g.edges()
    assert parts.bincount().tolist() == [20, 20]
    assert int((parts[src] != parts[dst]).sum()) <= 8  # of 80; at random it would be 40


def test_what_partitions_take_from_graphbolt():
    gb = dgl.graphbolt
    indptr = torch.tensor([0, 2, 2, 5])
    assert gb.expand_indptr(indptr, dtype=torch.int32, output_size=5).tolist() == [0, 0, 2, 2, 2]
    found = gb.expand_indptr(indptr, node_ids=torch.tensor([7, 8, 9]))
    assert (found.tolist(), found.dtype) == ([7, 7, 9, 9, 9], torch.int64)
    with pytest.raises(ValueError, match="dtype or node_ids"):
        gb.expand_indptr(indptr)
    assert gb.etype_tuple_to_str(("a", "b", "c")) == "a:b:c"
    with pytest.raises(TypeError, match="'ab'"):
        gb.etype_tuple_to_str("ab")


@UNCLOSED
def test_a_partition_as_a_graph_on_disk(tmp_path, monkeypatch):
    """DistGraph in its standalone mode: one partition, no servers."""
    g = dgl.rand_graph(40, 200)
    g.ndata["x"] = torch.arange(40.0)
    dgl.distributed.partition_graph(g, "small", 1, str(tmp_path), part_method="random")
    monkeypatch.setenv("DGL_DIST_MODE", "standalone")
    monkeypatch.chdir(tmp_path)
    dgl.distributed.initialize("ip.txt")
    found = dgl.distributed.DistGraph("small", part_config=str(tmp_path / "small.json"))
    assert found.num_nodes() == 40
    assert torch.equal(found.ndata["x"][torch.arange(40)].sort().values, torch.arange(40.0))
    frontier = dgl.distributed.sample_neighbors(found, torch.arange(5), 3)
    assert frontier.num_edges() > 0
    dgl.distributed.exit_client()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch, once per process
def test_transforms_and_batches():
    g = make()
    assert dgl.add_self_loop(dgl.remove_self_loop(g)).num_edges() == 13
    assert dgl.to_simple(g).num_edges() == 8
    assert dgl.reverse(g).edges()[0].tolist() == g.edges()[1].tolist()
    both = dgl.batch([g, dgl.rand_graph(3, 4)])
    assert [part.num_nodes() for part in dgl.unbatch(both)] == [5, 3]
    assert g.adj_external().to_dense().shape == (5, 5)
    assert dgl.to_networkx(g).number_of_edges() == 9
    assert dgl.from_scipy(g.adj_external(scipy_fmt="coo")).num_edges() == 9
    assert sorted(dgl.khop_in_subgraph(g, 0, 1)[0].ndata[dgl.NID].tolist()) == [0, 2, 4]
