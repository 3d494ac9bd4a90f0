"""Graphs for the tests of samplers, and what to compare of blocks."""

import torch

import manyhop_dgl  # noqa: F401  # makes dgl importable
from manyhop.loading import BatchContext


def graph(num_nodes=60, num_edges=400, *, seed=0, idtype=torch.int64):
    """A graph with multi-edges, self-loops and nodes without edges, and data of all kinds."""
    import dgl

    random = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, num_nodes - 3, (2, num_edges), generator=random)
    g = dgl.graph((src, dst), num_nodes=num_nodes, idtype=idtype)
    g.ndata["feat"] = torch.randn(num_nodes, 4, generator=random)
    g.ndata["label"] = torch.arange(num_nodes) % 5
    g.edata["weight"] = torch.rand(num_edges, generator=random)
    g.edata["keep"] = torch.rand(num_edges, generator=random) < 0.7
    return g


def typed_graph(*, idtype=torch.int64):
    """Three node types, four edge types, one of them without a way back."""
    import dgl

    random = torch.Generator().manual_seed(1)

    def edges(num_src, num_dst, n):
        return torch.randint(0, num_src, (n,), generator=random), torch.randint(0, num_dst, (n,), generator=random)

    g = dgl.heterograph(
        {
            ("user", "follows", "user"): edges(30, 30, 120),
            ("user", "plays", "game"): edges(30, 12, 90),
            ("game", "played_by", "user"): edges(12, 30, 90),
            ("dev", "makes", "game"): edges(5, 12, 20),
        },
        num_nodes_dict={"user": 30, "game": 12, "dev": 5},
        idtype=idtype,
    )
    for t in g.ntypes:
        g.nodes[t].data["feat"] = torch.randn(g.num_nodes(t), 3, generator=random)
    for t in g.canonical_etypes:
        g.edges[t].data["weight"] = torch.rand(g.num_edges(t), generator=random)
    g.nodes["game"].data["label"] = torch.arange(12)
    return g


def sample_for_key(sampler, g, seeds, key):
    """What a sampler gives in the loader's batch with a key."""
    with BatchContext(key, None):
        return sampler.sample(g, seeds)


def edges_of(block):
    """By edge type: (source, destination, edge id) of every edge, in the graph's ids, sorted."""
    import dgl

    found = {}
    for t in block.canonical_etypes:
        row, col = block.edges(etype=t, order="eid")
        src = block.srcnodes[t[0]].data[dgl.NID][row.long()]
        ids = block.edges[t].data[dgl.EID]
        found[t] = sorted(zip(src.tolist(), col.tolist(), ids.tolist(), strict=True))
    return found


def same_tensors(a, b):
    """Whether two batches of tensors are the same, bit for bit, wherever they are."""
    parts = [(a.node, b.node)]
    for x, y in zip(a.blocks, b.blocks, strict=True):
        parts += [(x.columns, y.columns), (x.sources, y.sources), (x.ids, y.ids), (x.weights or {}, y.weights or {})]
    return (
        a.num_seeds == b.num_seeds
        and [(x.num_src, x.num_dst) for x in a.blocks] == [(x.num_src, x.num_dst) for x in b.blocks]
        and all(x.keys() == y.keys() and all(torch.equal(x[t].cpu(), y[t].cpu()) for t in x) for x, y in parts)
    )


def same_batch(a, b):
    """Whether two batches of blocks are the same, bit for bit."""
    import dgl

    def nodes(batch):
        return [batch] if isinstance(batch, torch.Tensor) else [batch[t] for t in sorted(batch)]

    equal = all(torch.equal(x, y) for x, y in zip(nodes(a[0]), nodes(b[0]), strict=True))
    for x, y in zip(a[-1], b[-1], strict=True):
        for t in x.canonical_etypes:
            mine, other = ((*block.edges(etype=t), block.edges[t].data[dgl.EID]) for block in (x, y))
            equal &= len(mine[0]) == len(other[0]) and all(torch.equal(p, q) for p, q in zip(mine, other, strict=True))
    return equal


def compare(ours, theirs):
    """All but the order of new nodes and of a node's edges, which in DGL changes from call to call."""
    import dgl

    (inputs, outputs, blocks), (inputs_of_dgl, outputs_of_dgl, blocks_of_dgl) = ours, theirs
    assert type(inputs) is type(inputs_of_dgl)
    for ids, other in both(inputs, inputs_of_dgl):
        assert ids.dtype == other.dtype
        assert sorted(ids.tolist()) == sorted(other.tolist())
    for ids, other in both(outputs, outputs_of_dgl):
        assert torch.equal(ids, other)
    assert len(blocks) == len(blocks_of_dgl)
    for block, other in zip(blocks, blocks_of_dgl, strict=True):
        assert type(block) is type(other)
        assert (block.is_block, block.idtype, block.device) == (True, other.idtype, other.device)
        assert (block.srctypes, block.dsttypes) == (other.srctypes, other.dsttypes)
        assert block.canonical_etypes == other.canonical_etypes
        assert repr(block.metagraph().edges(keys=True)) == repr(other.metagraph().edges(keys=True))
        for t in block.srctypes:
            assert block.num_src_nodes(t) == other.num_src_nodes(t)
            assert block.num_dst_nodes(t) == other.num_dst_nodes(t)
            src, dst = block.srcnodes[t].data, block.dstnodes[t].data
            assert set(src) == set(other.srcnodes[t].data)
            assert set(dst) == set(other.dstnodes[t].data)
            assert torch.equal(src[dgl.NID][: block.num_dst_nodes(t)], dst[dgl.NID])
            assert set(src[dgl.NID].tolist()) == set(other.srcnodes[t].data[dgl.NID].tolist())
        for t in block.canonical_etypes:
            assert block.edges[t].data[dgl.EID].dtype == other.edges[t].data[dgl.EID].dtype
            assert set(block.edges[t].data) == set(other.edges[t].data)
    # The outermost block has the same destinations in the same order.
    assert edges_of(blocks[-1]) == edges_of(blocks_of_dgl[-1])
    for block, other in zip(blocks, blocks_of_dgl, strict=True):
        assert in_ids(block) == in_ids(other)


def both(a, b):
    if isinstance(a, dict):
        assert set(a) == set(b)
        return [(a[t], b[t]) for t in a]
    return [(a, b)]


def in_ids(block):
    """Edges with both ends in the graph's ids."""
    import dgl

    found = {}
    for t, edges in edges_of(block).items():
        dst = block.dstnodes[t[2]].data[dgl.NID].tolist()
        found[t] = sorted((s, dst[d], e) for s, d, e in edges)
    return found
