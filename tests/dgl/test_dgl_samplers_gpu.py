"""Sampling and gathering on a GPU, without DGL: equal to the CPU, bit for bit."""

import pytest
import sampler_graphs
import torch
from sampler_graphs import same_tensors

import manyhop.sampling
import manyhop_dgl
from manyhop.graph import PlacedGraph
from manyhop.sampling import BatchKey, GPUSampler, NodeRequest
from manyhop_dgl.samplers.labor import LaborArguments
from manyhop_dgl.samplers.plan import CPU, Arguments, cut_all

KEY = BatchKey(3, 1, 4)
ON_CPU = pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off"))
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def graph(*args):
    return manyhop_dgl.Graph.from_dgl(sampler_graphs.graph(*args))


@pytest.mark.parametrize("device", [ON_CPU, ON_GPU])
@pytest.mark.parametrize("typed", [False, True])
def test_samples_of_a_gpu_are_cut_alike(device, typed):
    """The engine for GPUs (in the interpreter without one), and the columns that are made there."""
    arguments = Arguments((2, 2))
    topology = arguments.topology(manyhop_dgl.Graph.from_dgl(sampler_graphs.typed_graph()) if typed else graph())
    request = NodeRequest(key=KEY, seeds={"user" if typed else "_N": torch.arange(3)})
    plan = arguments.plan(topology, CPU)
    there = PlacedGraph.of(topology.graph, torch.device(device), "device").graph
    sample = GPUSampler(there, arguments.spec(topology), device=device).sample(request)
    assert same_tensors(cut_all([sample])[0], plan.sample(request))


class StandIn:
    def __init__(self, graph, spec, device):
        self.device = device


def test_what_samples_on_a_gpu_makes_no_sampler_for_the_cpu(monkeypatch):
    monkeypatch.setitem(vars(manyhop.sampling), "CPUSampler", lambda *args, **kwargs: pytest.fail("it was made"))
    monkeypatch.setitem(vars(manyhop.sampling), "GPUSampler", StandIn)
    arguments, there = Arguments((2, 2)), torch.device("meta")
    assert arguments.plan(arguments.topology(graph()), there).engine.device == there


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"prob": "weight"}, {"mask": "keep"}, {"replace": True}, {"edge_dir": "out"}])
def test_sampling_and_gathering_on_a_gpu(options):
    g = graph(2000, 30000)
    seeds = torch.arange(100)
    names = {"node_features": ["feat"], "edge_features": ["weight"]}
    here = manyhop_dgl.sample_tensors(g, seeds, [5, 5], key=KEY, **options, **names)
    for where in (seeds, seeds.cuda()):
        there = manyhop_dgl.sample_tensors(g, where, [5, 5], key=KEY, device="cuda", **options, **names)
        assert there.input_nodes.is_cuda
        assert there.node_features["feat"].is_cuda
        assert same_tensors(here, there)
        assert torch.equal(here.node_features["feat"], there.node_features["feat"].cpu())
        for a, b in zip(here.edge_features, there.edge_features, strict=True):
            assert torch.equal(a["weight"], b["weight"].cpu())


@pytest.mark.gpu
def test_typed_graphs_on_a_gpu():
    g = manyhop_dgl.Graph.from_dgl(sampler_graphs.typed_graph())
    seeds = {"user": torch.arange(5), "game": torch.tensor([1, 1])}
    here = manyhop_dgl.sample_tensors(g, seeds, [2, -1, 3], key=KEY, node_features=["feat"])
    there = manyhop_dgl.sample_tensors(g, seeds, [2, -1, 3], key=KEY, node_features=["feat"], device="cuda")
    assert same_tensors(here, there)
    for t, rows in here.node_features["feat"].items():
        assert torch.equal(rows, there.node_features["feat"][t].cpu())


@pytest.mark.gpu
def test_excluded_edges_on_a_gpu():
    g = graph(2000, 30000)
    exclude = torch.arange(0, 30000, 3)
    here, there = (
        manyhop_dgl.sample_tensors(g, torch.arange(100), [5, 5], key=KEY, exclude_eids=exclude, device=device)
        for device in ("cpu", "cuda")
    )
    assert same_tensors(here, there)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"prob": "weight"}])
def test_labor_on_a_gpu(options):
    arguments = LaborArguments((4, 4), **options)
    topology = arguments.topology(graph(2000, 30000))
    here, there = (arguments.plan(topology, torch.device(device)) for device in ("cpu", "cuda"))
    exclude = {("_N", "_E", "_N"): torch.arange(0, 30000, 5)}
    request = NodeRequest(key=KEY, seeds={"_N": torch.arange(100)}, exclude=exclude)
    assert same_tensors(here.sample(request), there.sample(request))
    assert same_tensors(here.sample(request), there.begin([request])(None)[0])


@pytest.mark.gpu
def test_groups_of_batches_on_a_gpu():
    arguments = Arguments((3, 3))
    plan = arguments.plan(arguments.topology(graph()), torch.device("cuda"))
    requests = [NodeRequest(key=KEY._replace(batch=i), seeds={"_N": torch.arange(i, i + 5)}) for i in range(4)]
    for request, tensors in zip(requests, plan.begin(requests)(None), strict=True):
        assert same_tensors(tensors, plan.sample(request))
