"""HGT sampling and types of subgraphs on a GPU: larger graphs, against the CPU backend."""

from dataclasses import replace

import pytest
import torch
from cpu_cases import assert_equal_on_gpu, moved

from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import (
    BatchKey,
    CPUHGTSampler,
    CPUSampler,
    GPUHGTSampler,
    GPUSampler,
    HGTSpec,
    NeighborSpec,
    NodeRequest,
)

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


def requests(num_batches, size):
    generator = torch.Generator().manual_seed(1)
    for b in range(num_batches):
        seeds = {t: torch.randint(0, NUM_NODES[t], (size,), generator=generator) for t in ("paper", "venue")}
        yield NodeRequest(key=BatchKey(3, 0, b), seeds=seeds)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("num_samples", "limit"), [((512, 256, 512), 50), ((3000, 1), 50), ((512, 256), 1000)])
def test_hgt_equals_the_cpu(graph, num_samples, limit, on_device):
    spec = HGTSpec(num_samples=dict.fromkeys(NUM_NODES, num_samples), max_neighbors=limit)
    gpu, cpu = GPUHGTSampler(place(graph, "cuda"), spec, device="cuda"), CPUHGTSampler(graph, spec)
    batches = list(requests(5, 600))
    given = [replace(r, seeds=moved(r.seeds, "cuda")) if on_device else r for r in batches]
    for got, request in zip(gpu.begin(given).finish(), batches, strict=True):
        assert_equal_on_gpu(got, cpu.sample(request))


@pytest.mark.parametrize("subgraph", ["induced", "bidirectional"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_subgraph_types_of_the_gpu_sampler(graph, subgraph, disjoint):
    reverse = None
    if subgraph == "bidirectional":
        cites, writes, written, *_ = graph.edge_types
        reverse = {cites: cites, writes: written, written: writes}
    spec = NeighborSpec(
        fanouts=dict.fromkeys(graph.edge_types, (4, 3)), disjoint=disjoint, subgraph=subgraph, reverse=reverse
    )
    gpu, cpu = GPUSampler(place(graph, "cuda"), spec, device="cuda"), CPUSampler(graph, spec)
    batches = list(requests(3, 100))
    for got, request in zip(gpu.begin(batches).finish(), batches, strict=True):
        assert_equal_on_gpu(got, cpu.sample(request))
