"""Batches as tensors, and the way of GPUs: equal to the blocks that the CPU makes."""

import contextlib
import pickle
from types import SimpleNamespace

import pytest
import torch

import manyhop_dgl
from manyhop.errors import InputError
from manyhop.features import RowRequest
from manyhop.pipeline import OnStream
from manyhop.placement import Hardware
from manyhop.sampling import CPUSampler

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
DataLoader = manyhop_dgl.DataLoader
NeighborSampler = manyhop_dgl.NeighborSampler
CPU = torch.device("cpu")


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
    assert made.stats().seeds == (70 if kind == "typed" else 50)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("importance", [0, 1])
def test_layer_neighbour_sampling(device, importance):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
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


def test_data_replaced_between_batches_are_seen():
    g = graph("plain")
    for i, batch in enumerate(loader("plain", g, output="tensors", num_workers=1)):
        assert torch.equal(batch.node_features["x"], g.ndata["x"][batch.input_nodes])
        if i == 0:
            g.ndata["x"] = torch.randn(100, 5)
        if i == 1:
            g.ndata["x"].zero_()


@pytest.mark.parametrize("kind", ["plain", "ours"])
@pytest.mark.parametrize("output", ["blocks", "tensors"])
def test_loaders_can_be_pickled(kind, output):
    made = loader(kind, output=output)
    again = pickle.loads(pickle.dumps(made))
    for ours, theirs in zip(again, made, strict=True):
        nodes = [batch.input_nodes if output == "tensors" else batch[0] for batch in (ours, theirs)]
        assert torch.equal(*nodes)


def test_a_batch_of_tensors_as_blocks():
    from manyhop_dgl._loader_tensors import as_blocks

    for kind in ("plain", "typed"):
        g = graph(kind)
        for ours, theirs in zip(loader(kind, g, output="tensors"), loader(kind, g), strict=True):
            nodes, _, blocks = as_blocks(ours)
            same(nodes, theirs[0])
            for mine, block in zip(blocks, theirs[2], strict=True):
                for edge_type in block.canonical_etypes:
                    assert torch.equal(mine.edges[edge_type].data["w"], block.edges[edge_type].data["w"])
            for node_type in g.ntypes:
                expected = theirs[2][0].srcnodes[node_type].data["x"]
                assert torch.equal(blocks[0].srcnodes[node_type].data["x"], expected)


def test_what_tensors_cannot_be_made_of():
    g = graph("plain")
    full = dgl.dataloading.MultiLayerFullNeighborSampler(1)

    class Changed(NeighborSampler):
        def sample(self, g, seeds, exclude_eids=None):
            return super().sample(g, seeds, exclude_eids)

    for sampler in (full, manyhop_dgl.as_edge_prediction_sampler(full), Changed([2])):
        with pytest.raises(InputError, match="with its own methods, for output='tensors'"):
            DataLoader(g, torch.arange(9), sampler, output="tensors")
    with pytest.raises(InputError, match="output_device"):
        DataLoader(g, torch.arange(9), NeighborSampler([2], output_device="cpu"), output="tensors")
    with pytest.raises(InputError, match="output to be"):
        DataLoader(g, torch.arange(9), NeighborSampler([2]), output="graphs")


class NoStreams:
    """Where there is no GPU, everything is in order by itself."""

    def __init__(self, device, stats, *, backlog): ...
    def begin(self): ...
    def settle(self): ...
    def synchronize(self): ...
    def take_times(self): ...
    def forget_times(self): ...
    def mark(self): ...
    def took(self, *what): ...

    def here(self):
        return contextlib.nullcontext()

    def hand_over(self, value, timed=False):
        return OnStream(value, None)

    def adopt(self, made):
        return made.value

    def receive(self, made, tensors_of, times):
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors_of(made.value))
        return made.value


class StandIn:
    """Begins by noting the requests, and samples on the CPU when they are finished."""

    groups: list[int] = []  # noqa: RUF012

    def __init__(self, graph, spec, device=None):
        self._sampler = CPUSampler(graph, spec)

    def begin(self, requests):
        StandIn.groups.append(len(requests))
        return SimpleNamespace(finish=lambda: [self._sampler.sample(request) for request in requests])


@pytest.fixture
def on_gpu(monkeypatch):
    """``on_gpu(True)``: loaders take the way of GPUs."""
    import manyhop.graph.placed
    import manyhop_dgl._loader_gpu as way

    memory = SimpleNamespace(
        topology="device",
        placed=lambda r: r,
        keep_hot=lambda *a: None,
        take_cache_counts=lambda: (0, 0),
        reads_all=False,
    )
    monkeypatch.setattr(way, "Streams", NoStreams)
    monkeypatch.setattr(way, "GPUMemory", lambda *args, **kwargs: memory)
    monkeypatch.setattr(way.OnGPU, "plan", lambda self, topology: fake_plan(self, topology))
    monkeypatch.setattr(manyhop.graph.placed, "place_graph", lambda graph, *others: graph)
    monkeypatch.setitem(vars(manyhop.sampling), "GPUSampler", StandIn)
    StandIn.groups = []

    def fake_plan(gpu, topology):
        from manyhop_dgl._samplers_plan import Plan

        plan = Plan(topology, gpu._sampler.arguments(), CPU, "device")
        plan.device = torch.device("meta")  # is not asked to sample by itself
        plan._engine = StandIn(topology.graph, plan._spec)
        return plan

    return lambda on: monkeypatch.setattr(DataLoader, "_samples_on_gpu", lambda self: on)


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"use_prefetch_thread": False, "num_workers": 1}])
def test_groups_change_nothing(on_gpu, kind, options):
    g = graph(kind)
    on_gpu(False)
    expected = [list(loader(kind, g, batch_size=b)) for b in (7, 60)]
    on_gpu(True)
    for batch_size, batches in zip((7, 60), expected, strict=True):
        made = loader(kind, g, batch_size=batch_size, output="tensors", **options)
        for ours, batch in zip(made, batches, strict=True):
            same_data(ours, batch, g)
        assert made.stats().seeds == 60
    assert max(StandIn.groups) == 9


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_groups_of_seed_edges(on_gpu, kind):
    g = graph(kind)
    on_gpu(False)
    expected = list(links(kind, g))
    on_gpu(True)
    for ours, batch in zip(links(kind, g, output="tensors"), expected, strict=True):
        same_links(ours, batch, g)
    assert max(StandIn.groups) > 1


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


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
@pytest.mark.parametrize("use_uva", [False, True])
def test_where_data_go(monkeypatch, kind, use_uva):
    import manyhop_dgl._loader_gpu_memory as gpu

    there = torch.device("meta")
    monkeypatch.setattr(gpu._cuda, "hardware", lambda *args, **kwargs: Hardware(gpu_memory=10**11, host_memory=10**12))
    g = graph(kind)
    sampler = loader(kind, g).graph_sampler
    memory = gpu.GPUMemory(g, sampler, there, NoStreams(there, None, backlog=0), use_uva=use_uva)
    assert memory.topology == ("pinned" if use_uva else "device")
    assert len(memory.placement.features) == (5 if kind == "typed" else 3)
    node_type = g.ntypes[0]
    rows = g.nodes[node_type].data["x"]
    request = RowRequest(rows, torch.arange(3), 0, f"'x' of node type {node_type!r}", 100)
    first = memory.placed(request)
    assert first.source.device == there  # what is small is copied, not pinned
    assert (first.index is request.index, first.bound) == (True, 100)
    assert memory.placed(request).source is first.source
    rows.zero_()
    assert memory.placed(request).source is not first.source
    other = torch.randn(7, 2)
    assert memory.placed(RowRequest(other, torch.arange(3), 0, request.name)).source.shape == (7, 2)
    memory.keep_hot({"node": {"x": 5}}, [], None)
    assert memory.take_cache_counts() == (0, 0)
