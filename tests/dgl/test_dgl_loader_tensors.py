"""Batches as tensors, and the way of GPUs: equal to the blocks that the CPU makes."""

import threading

import pytest
import torch
from group_stand_ins import dgl_on_stand_in

import manyhop_dgl
from manyhop.errors import GraphError, InputError
from manyhop_dgl.loader.columns import FrameColumns

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
DataLoader = manyhop_dgl.DataLoader
NeighborSampler = manyhop_dgl.NeighborSampler


def graph(kind):
    g = torch.Generator().manual_seed(0)
    if kind == "typed":
        edges = {
            ("paper", "cites", "paper"): torch.randint(0, 80, (2, 300), generator=g),
            ("author", "writes", "paper"): torch.stack(
                [torch.randint(0, 30, (300,), generator=g), torch.randint(0, 80, (300,), generator=g)]
            ),
        }
        graph = dgl.heterograph({t: tuple(e) for t, e in edges.items()}, {"paper": 80, "author": 30})
        for node_type in graph.ntypes:
            graph.nodes[node_type].data["x"] = torch.randn(graph.num_nodes(node_type), 3, generator=g)
        graph.nodes["paper"].data["y"] = torch.arange(80)
        for edge_type in graph.etypes:
            graph.edges[edge_type].data["w"] = torch.rand(300, generator=g)
    else:
        graph = dgl.graph(tuple(torch.randint(0, 100, (2, 700), generator=g)), num_nodes=100)
        graph.ndata["x"], graph.ndata["y"] = torch.randn(100, 3, generator=g), torch.arange(100)
        graph.edata["w"] = torch.rand(700, generator=g)
    return manyhop_dgl.Graph.from_dgl(graph) if kind == "ours" else graph


def loader(kind, g=None, **kwargs):
    names = {"prefetch_node_feats": ["x"], "prefetch_labels": ["y"], "prefetch_edge_feats": ["w"]}
    if kind == "typed":
        by_type = ({"paper": ["x"], "author": ["x"]}, {"paper": ["y"]}, {"cites": ["w"], "writes": ["w"]})
        names = dict(zip(names, by_type, strict=True))
    sampler = NeighborSampler([4, 3], seed=1, **names)
    seeds = {"paper": torch.arange(60)} if kind == "typed" else torch.arange(60)
    options = {"batch_size": 16, "shuffle": True, "seed": 3} | kwargs
    return DataLoader(graph(kind) if g is None else g, seeds, sampler, **options)


def same_data(tensors, batch, g):
    """Tensors and blocks are the same batch, with the graph's data in it."""
    input_nodes, output_nodes, blocks = batch
    same(tensors.input_nodes, input_nodes)
    if isinstance(output_nodes, dict):  # tensors name all types, DGL those that seeds have
        assert all(torch.equal(tensors.output_nodes[t].cpu(), ids) for t, ids in output_nodes.items())
    else:
        same(tensors.output_nodes, output_nodes)
    for i, block in enumerate(blocks):
        for edge_type in block.canonical_etypes:
            ids = tensors.blocks[i].ids[edge_type]
            assert torch.equal(ids.cpu(), block.edges[edge_type].data[dgl.EID])
            rows = tensors.edge_features[i]["w"]
            rows = rows[edge_type] if isinstance(rows, dict) else rows
            assert torch.equal(rows.cpu(), g.edges[edge_type].data["w"][ids.cpu()])
    for node_type in g.ntypes:
        rows, labels = tensors.node_features["x"], tensors.output_features["y"]
        rows = rows[node_type] if isinstance(rows, dict) else rows
        assert torch.equal(rows.cpu(), g.nodes[node_type].data["x"][tensors.node[node_type].cpu()])
        if node_type != "author":
            labels = labels[node_type] if isinstance(labels, dict) else labels
            assert torch.equal(labels.cpu(), tensors.node[node_type][: tensors.num_seeds[node_type]].cpu())


def same(ours, theirs):
    if isinstance(theirs, dict):
        assert all(torch.equal(ours[t].cpu(), ids) for t, ids in theirs.items())
    else:
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_tensors_are_the_same_batches(kind, num_workers):
    g = graph(kind)
    blocks = loader(kind, g)
    tensors = loader(kind, g, output="tensors", num_workers=num_workers)
    for _ in range(2):
        for ours, batch in zip(tensors, list(blocks), strict=True):
            same_data(ours, batch, g)
    for i, batch in enumerate(loader(kind, g)):
        same_data(tensors.batch(batch[1], key=(3, 0, i)), batch, g)
    assert tensors.stats().edges == blocks.stats().edges
    assert tensors.stats().seeds == 120


def links(kind, g, **kwargs):
    names = {"prefetch_node_feats": ["x"]}
    labels, seeds = ["w"], torch.arange(50)
    if kind == "typed":
        names = {"prefetch_node_feats": {"paper": ["x"], "author": ["x"]}}
        labels, seeds = {"writes": ["w"]}, {"writes": torch.arange(50), "cites": torch.arange(20)}
    sampler = manyhop_dgl.as_edge_prediction_sampler(
        NeighborSampler([4, 3], seed=1, **names),
        exclude="self",
        negative_sampler=manyhop_dgl.Uniform(2),
        prefetch_labels=labels,
    )
    return DataLoader(g, seeds, sampler, **({"batch_size": 16, "shuffle": True, "seed": 3} | kwargs))


def same_links(tensors, batch, g):
    """Tensors and blocks are the same batch of seed edges, with the graph's data in it."""
    input_nodes, positive, negative, blocks = batch
    same(tensors.sample.input_nodes, input_nodes)
    assert len(tensors.sample.blocks) == len(blocks)
    for edge_type in g.canonical_etypes:
        for ends, pairs in ((tensors.ends, positive), (tensors.negative_ends, negative)):
            expected = pairs.edges(etype=edge_type, order="eid")
            assert all(torch.equal(x.cpu(), y) for x, y in zip(ends[edge_type], expected, strict=True))
        ids = tensors.ids[edge_type].cpu()
        assert torch.equal(ids, positive.edges[edge_type].data[dgl.EID])
        rows = tensors.edge_features["w"]
        rows = rows.get(edge_type) if isinstance(rows, dict) else rows
        if rows is not None:
            assert torch.equal(rows.cpu(), g.edges[edge_type].data["w"][ids])
    for node_type in g.ntypes:
        rows = tensors.sample.node_features["x"]
        rows = rows[node_type] if isinstance(rows, dict) else rows
        assert torch.equal(rows.cpu(), g.nodes[node_type].data["x"][tensors.sample.node[node_type].cpu()])


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_seed_edges(kind):
    g = graph(kind)
    made = links(kind, g, output="tensors", num_workers=1)
    for ours, batch in zip(made, links(kind, g), strict=True):
        same_links(ours, batch, g)
        same_links(ours.to("cpu"), batch, g)
    for i, batch in enumerate(links(kind, g)):
        ids = {t: batch[1].edges[t].data["_ID"] for t in g.canonical_etypes}
        same_links(made.batch(ids if kind == "typed" else ids["_N", "_E", "_N"], key=(3, 0, i)), batch, g)
    assert made.stats().seeds == (70 if kind == "typed" else 50)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("importance", [0, 1])
def test_layer_neighbour_sampling(device, importance):
    g = graph("plain")
    sampler = manyhop_dgl.LaborSampler([4, 3], importance_sampling=importance, prefetch_node_feats=["x"], seed=1)
    options = {"batch_size": 16, "seed": 3}
    blocks = DataLoader(g, torch.arange(60), sampler, **options)
    tensors = DataLoader(g, torch.arange(60), sampler, device=device, output="tensors", **options)
    for ours, (input_nodes, _, theirs) in zip(tensors, blocks, strict=True):
        same(ours.input_nodes, input_nodes)
        assert torch.equal(ours.node_features["x"].cpu(), theirs[0].srcdata["x"])
        for mine, block in zip(ours.blocks, theirs, strict=True):
            if importance:
                assert torch.equal(mine.edge_weights.cpu(), block.edata["edge_weights"])


def test_what_tensors_cannot_be_made_of():
    g = graph("plain")
    full = dgl.dataloading.MultiLayerFullNeighborSampler(1)

    class Changed(NeighborSampler):
        def sample(self, g, seeds, exclude_eids=None):
            return super().sample(g, seeds, exclude_eids)

    class OfTensors(NeighborSampler):
        def sample_tensors(self, *args, **options):
            return super().sample_tensors(*args, **options)

    for sampler in (full, manyhop_dgl.as_edge_prediction_sampler(full), Changed([2]), OfTensors([2])):
        with pytest.raises(InputError, match="with its own methods, for output='tensors'"):
            DataLoader(g, torch.arange(9), sampler, output="tensors")
    with pytest.raises(InputError, match="output_device"):
        DataLoader(g, torch.arange(9), NeighborSampler([2], output_device="cpu"), output="tensors")
    with pytest.raises(InputError, match="output to be"):
        DataLoader(g, torch.arange(9), NeighborSampler([2]), output="graphs")


@pytest.fixture
def on_gpu(monkeypatch):
    """``on_gpu(True)``: loaders take the way of GPUs; ``on_gpu.groups`` are the numbers of batches begun at once."""
    return dgl_on_stand_in(monkeypatch)


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request):
    """The same, and on a GPU: the result has to be passed to the loader."""
    if request.param == "stand-in":
        return request.getfixturevalue("on_gpu")

    def switch(on):
        return {"device": "cuda"} if on else {}

    switch.groups = []
    return switch


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"use_prefetch_thread": False, "num_workers": 1}])
def test_groups_change_nothing(gpu, kind, options):
    g = graph(kind)
    gpu(False)
    blocks = [loader(kind, g, batch_size=b) for b in (7, 60)]
    expected = [[list(one) for _ in range(2)] for one in blocks]
    where = gpu(True)
    for batch_size, epochs in zip((7, 60), expected, strict=True):
        made = loader(kind, g, batch_size=batch_size, output="tensors", **where, **options)
        for batches in epochs:
            for ours, batch in zip(made, batches, strict=True):
                assert not where or ours.node[g.ntypes[0]].is_cuda
                same_data(ours, batch, g)
        assert made.stats().seeds == 120
        assert made.stats().gathered_bytes > 0
    assert max(gpu.groups, default=9) == 9


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_groups_of_seed_edges(gpu, kind):
    g = graph(kind)
    gpu(False)
    expected = list(links(kind, g))
    where = gpu(True)
    for ours, batch in zip(links(kind, g, output="tensors", **where), expected, strict=True):
        assert not where or ours.sample.blocks[0].ids[g.canonical_etypes[0]].is_cuda
        same_links(ours, batch, g)
    assert max(gpu.groups, default=2) > 1


def test_one_batch_of_a_group_fails(on_gpu):
    on_gpu(True)
    sampler = NeighborSampler([3], seed=1)
    seeds = torch.tensor([1, 2, 3, 4, 5, 6])
    made = DataLoader(graph("plain"), seeds, sampler, batch_size=2, output="tensors")
    seeds[4] = 1000
    batches = iter(made)
    assert [next(batches).output_nodes.tolist() for _ in range(2)] == [[1, 2], [3, 4]]
    with pytest.raises(InputError, match="batch 2 of epoch 0"):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_data_replaced_while_batches_are_made_ahead(gpu, num_workers):
    g = graph("ours")
    made = loader("ours", g, batch_size=4, output="tensors", num_workers=num_workers, **gpu(True))
    for i, batch in enumerate(made):
        assert torch.equal(batch.node_features["x"].cpu(), g.ndata["x"][batch.input_nodes.cpu()])
        if i == 2:
            g.ndata["x"] = torch.randn(100, 5)
        if i == 5:
            g.ndata["x"].zero_()


def test_the_user_chooses_the_rows_that_a_gpu_keeps():
    g = graph("ours")
    sampler = NeighborSampler([3], prefetch_node_feats=["x"], seed=1)
    made = DataLoader(g, torch.arange(20), sampler)
    made.gpu_cache = {"node": {"x": 5, "unknown": 7}}
    title = f"'x' of node type {g.ntypes[0]!r}"
    assert FrameColumns(made._prefetched, made.gpu_cache).kept_rows == {title: 5}
    made.gpu_cache = None
    assert FrameColumns(made._prefetched, made.gpu_cache).kept_rows is None


@pytest.mark.parametrize(
    ("placement", "message"), [("cuda-cuda", "a loader on a GPU with placement="), ("moon", "one of")]
)
def test_placements_that_cannot_be(placement, message):
    with pytest.raises(InputError, match=message):
        DataLoader(graph("ours"), torch.arange(20), NeighborSampler([3]), placement=placement)


def test_edges_that_change_while_they_are_spread_over_gpus(monkeypatch):
    from manyhop_dgl.loader import source

    monkeypatch.setattr(source, "Plan", lambda *args: "plan")
    before, after = object(), object()
    sampler = NeighborSampler([3])
    sampling = source.GPUSampling(sampler, before, torch.device("cpu"), "sharded")
    assert sampling.plan(before, sampler.arguments()) == "plan"
    with pytest.raises(GraphError, match="Create a new loader on all ranks"):
        sampling.plan(after, sampler.arguments())


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_rows_of_nothing_are_gathered_while_a_loader_is_made(on_gpu, monkeypatch, kind):
    from manyhop_dgl.loader.batches import Batches

    seen, join = [], Batches.assemble_group

    def spy(self, samples, turns):
        filled, nbytes = made = join(self, samples, turns)
        if threading.current_thread() is not threading.main_thread():
            seen.append((threading.current_thread().name, len(filled), nbytes))
        return made

    monkeypatch.setattr(Batches, "assemble_group", spy)
    on_gpu(True)
    loader(kind, graph(kind), output="tensors")
    assert seen == [("manyhop-compile", count, 0) for count in (1, 4, 16)]
