"""HGT sampling and induced edges on a GPU: larger graphs, against the CPU backend."""

from dataclasses import replace

import pytest
import torch
from gpu_graphs import to_cuda

from manyhop.errors import InputError
from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, CPUHGTSampler, CPUSampler, HGTSpec, NeighborSpec, NodeRequest

pytestmark = pytest.mark.gpu
NUM_NODES = {"paper": 100_000, "author": 40_000, "venue": 200}


def make_graph():
    """Skewed degrees, a type of hubs, edges in both directions."""
    generator = torch.Generator().manual_seed(0)

    def edges(src, dst, n):
        row = (torch.rand(n, generator=generator) ** 3 * NUM_NODES[src]).long()
        col = (torch.rand(n, generator=generator) ** 2 * NUM_NODES[dst]).long()
        return EdgeInput(row=row, col=col)

    inputs = {
        ("paper", "cites", "paper"): edges("paper", "paper", 2_000_000),
        ("author", "writes", "paper"): edges("author", "paper", 400_000),
        ("paper", "written", "author"): edges("paper", "author", 400_000),
        ("paper", "in", "venue"): edges("paper", "venue", 100_000),
        ("venue", "has", "paper"): edges("venue", "paper", 100_000),
    }
    return build_graph(NUM_NODES, inputs)


@pytest.fixture(scope="module")
def graph():
    return make_graph()


def assert_same(got, expected):
    for name in ("node", "row", "col", "edge_id", "tree"):
        a, b = getattr(got, name), getattr(expected, name)
        assert (a is None) == (b is None), name
        for t in b or {}:
            assert a[t].is_cuda
            assert torch.equal(a[t].cpu(), b[t]), (name, t)
    assert got.num_sampled_nodes == expected.num_sampled_nodes


def requests(num_batches, size):
    generator = torch.Generator().manual_seed(1)
    for b in range(num_batches):
        seeds = {t: torch.randint(0, NUM_NODES[t], (size,), generator=generator) for t in ("paper", "venue")}
        yield NodeRequest(key=BatchKey(3, 0, b), seeds=seeds)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    ("num_samples", "limit"), [((512, 256, 512), 50), ((3000, 1), 50), ((512, 256), 1000), ((512, 256), None)]
)
def test_hgt_equals_the_cpu(graph, num_samples, limit, on_device):
    from manyhop.sampling import GPUHGTSampler

    spec = HGTSpec(num_samples=dict.fromkeys(NUM_NODES, num_samples), max_neighbors=limit)
    gpu, cpu = GPUHGTSampler(to_cuda(graph), spec, device="cuda"), CPUHGTSampler(graph, spec)
    batches = list(requests(5, 600))
    given = [replace(r, seeds={t: s.cuda() for t, s in r.seeds.items()}) if on_device else r for r in batches]
    for got, request in zip(gpu.begin(given).finish(), batches, strict=True):
        assert_same(got, cpu.sample(request))


def test_wrong_seeds_on_the_device(graph):
    from manyhop.sampling import GPUHGTSampler

    gpu = GPUHGTSampler(to_cuda(graph), HGTSpec(num_samples=dict.fromkeys(NUM_NODES, (5,))), device="cuda")
    pending = gpu.begin([NodeRequest(key=BatchKey(0, 0, 0), seeds={"venue": torch.tensor([5, 200], device="cuda")})])
    with pytest.raises(InputError, match="got 200"):
        pending.finish()


@pytest.mark.parametrize("disjoint", [False, True])
def test_induced_equals_the_cpu(graph, disjoint):
    from manyhop.sampling.gpu.induced import Inducer

    spec = NeighborSpec(fanouts=dict.fromkeys(graph.edge_types, (10, 5)), disjoint=disjoint)
    nodes, both = CPUSampler(graph, spec), CPUSampler(graph, replace(spec, subgraph="induced"))
    inducer = Inducer(to_cuda(graph), torch.device("cuda", 0))
    batches = list(requests(3, 100))
    samples = [nodes.sample(request) for request in batches]
    move = lambda tensors: None if tensors is None else {t: x.cuda() for t, x in tensors.items()}  # noqa: E731
    samples = [replace(s, node=move(s.node), tree=move(s.tree)) for s in samples]
    for got, request in zip(inducer.replace_edges(samples), batches, strict=True):
        assert_same(got, both.sample(request))


@pytest.mark.parametrize("subgraph", ["induced", "bidirectional"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_subgraph_types_of_the_gpu_sampler(graph, subgraph, disjoint):
    from manyhop.sampling import GPUSampler

    reverse = None
    if subgraph == "bidirectional":
        cites, writes, written, *_ = graph.edge_types
        reverse = {cites: cites, writes: written, written: writes}
    spec = NeighborSpec(
        fanouts=dict.fromkeys(graph.edge_types, (4, 3)), disjoint=disjoint, subgraph=subgraph, reverse=reverse
    )
    gpu, cpu = GPUSampler(to_cuda(graph), spec, device="cuda"), CPUSampler(graph, spec)
    batches = list(requests(3, 100))
    for got, request in zip(gpu.begin(batches).finish(), batches, strict=True):
        expected = cpu.sample(request)
        assert_same(got, replace(expected, edge_id={t: x for t, x in expected.edge_id.items() if x is not None}))
        assert [t for t, x in got.edge_id.items() if x is None] == [t for t, x in expected.edge_id.items() if x is None]
