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
