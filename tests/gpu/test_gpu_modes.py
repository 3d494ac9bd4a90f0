"""Weighted, temporal, HGT and subgraph sampling on a GPU, and large fanouts: larger graphs, against the CPU."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from cpu_cases import assert_equal_on_gpu, moved

from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import (
    BatchKey,
    CPUHGTSampler,
    CPUPageRankSampler,
    CPUSampler,
    CPUWalkSampler,
    GPUHGTSampler,
    GPUPageRankSampler,
    GPUSampler,
    GPUWalkSampler,
    HGTSpec,
    NeighborSpec,
    NodeRequest,
    PageRankSpec,
    WalkRequest,
    WalkSpec,
)
from manyhop.sampling.walks import NegativeWalker

pytestmark = pytest.mark.gpu
NUM_NODES = {"paper": 100_000, "author": 30_000}
EDGES = {
    ("paper", "cites", "paper"): 3_000_000,
    ("author", "writes", "paper"): 300_000,
    ("paper", "written", "author"): 300_000,
    ("author", "knows", "author"): 100_000,
}
CITES, WRITES, WRITTEN, _ = EDGES
REVERSE = {CITES: CITES, WRITES: WRITTEN, WRITTEN: WRITES}
PLAIN = ("author", "writes", "paper")  # without weights and times


def make_graph(kind: str):
    """Skewed degrees, hubs of tens of thousands of edges; zero weights, and some that dwarf the others."""
    rng = np.random.default_rng(0)
    inputs = {}
    for edge_type, n in EDGES.items():
        src, _, dst = edge_type
        row = (rng.random(n) ** 3 * NUM_NODES[src]).astype(np.int64)
        col = (rng.random(n) ** 4 * NUM_NODES[dst]).astype(np.int64)
        values = {}
        if "weight" in kind and edge_type != PLAIN:
            weight = np.where(rng.random(n) < 0.01, 1e6, rng.random(n)) * (rng.random(n) < 0.9)
            values["weight"] = torch.from_numpy(weight)
        if "time" in kind and edge_type != PLAIN:
            values["time"] = torch.from_numpy(rng.integers(0, 1000, n))
        inputs[edge_type] = EdgeInput(row=torch.from_numpy(row), col=torch.from_numpy(col), **values)
    return build_graph(NUM_NODES, inputs)


GRAPHS = {}


def graph(kind: str):
    """The graph and its copy on the device; made once."""
    if kind not in GRAPHS:
        here = make_graph(kind)
        GRAPHS[kind] = here, place(here, "cuda")
    return GRAPHS[kind]


def requests(num_batches: int, size: int, *, timed=False, window=False):
    rng = np.random.default_rng(1)
    for b in range(num_batches):
        seeds, time_max, time_min = {}, {}, {}
        for name, n in NUM_NODES.items():
            count = max(1, size - 7 * b)
            seeds[name] = torch.from_numpy((rng.random(count) ** 2 * n).astype(np.int64))  # some of them twice
            time_max[name] = torch.from_numpy(rng.integers(300, 1001, count))
            time_min[name] = time_max[name] - torch.from_numpy(rng.integers(0, 400, count))
        yield NodeRequest(
            key=BatchKey(5, 1, b),
            seeds=seeds,
            time_max=time_max if timed else None,
            time_min=time_min if timed and window else None,
        )


def check(kind, fanout, *, size=200, window=False, **options):
    here, there = graph(kind)
    spec = NeighborSpec(fanouts=dict.fromkeys(EDGES, tuple(fanout)), weighted="weight" in kind, **options)
    cpu, gpu = CPUSampler(here, spec), GPUSampler(there, spec, device="cuda")
    batches = list(requests(3, size, timed="time" in kind, window=window))
    for _ in range(2):  # the second launch meets what the first left, and has learned how much room is needed
        for request, got in zip(batches, gpu.begin(batches).finish(), strict=True):
            assert_equal_on_gpu(got, cpu.sample(request))
    assert_equal_on_gpu(gpu.sample(batches[1]), cpu.sample(batches[1]))


IN_TIME = {"temporal": "uniform", "disjoint": True}
CASES = [
    *(("weight", fanout, {"replace": replace}) for fanout in ((15, 10, 5), (100, 5)) for replace in (False, True)),
    ("weight", (-1,), {}),
    *(("weight", (15, 5), {"size": 64} | how) for how in ({"expand": "all"}, {"disjoint": True})),
    ("weight", (15, 5), {"size": 64, "subgraph": "induced"}),
    *(
        ("weight and time", fanout, {"size": size, "replace": replace, "window": window} | IN_TIME)
        for fanout, size, replace in (
            ((15, 10), 64, False), ((15, 10), 64, True), ((100, 5), 64, False), ((100, 5), 64, True), ((-1,), 8, False)
        )
        for window in (False, True)
    ),
    *(
        ("time", fanout, {"size": 100, "window": window} | IN_TIME | {"temporal": temporal})
        for fanout, temporal, window in (
            ((15, 10, 5), "uniform", False), ((15, 10, 5), "uniform", True), ((15, 10, 5), "last", True),
            ((100, 5), "uniform", True), ((100, 5), "last", False), ((-1,), "uniform", True),
        )
    ),
    ("time", (15, 10, 5), {"replace": True, "window": True} | IN_TIME),
    *(("none", fanout, {}) for fanout in ((64, 5), (300, 5), (-1, 5))),
    ("none", (300, 5), {"replace": True}),
    *(
        ("none", (4, 3), {"size": 100, "disjoint": disjoint, "subgraph": "bidirectional", "reverse": REVERSE})
        for disjoint in (False, True)
    ),
    *(("none", (4, 3), {"size": 100, "disjoint": disjoint, "subgraph": "induced"}) for disjoint in (False, True)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fanout", "options"), CASES, ids=str)
def test_as_on_the_cpu(kind, fanout, options):
    check(kind, fanout, **options)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("num_samples", "limit"), [((512, 256, 512), 50), ((3000, 1), 50), ((512, 256), 1000)])
def test_hgt(num_samples, limit, on_device):
    here, there = graph("none")
    spec = HGTSpec(num_samples=dict.fromkeys(NUM_NODES, num_samples), max_neighbors=limit)
    gpu, cpu = GPUHGTSampler(there, spec, device="cuda"), CPUHGTSampler(here, spec)
    batches = list(requests(5, 600))
    given = [replace(r, seeds=moved(r.seeds, "cuda")) if on_device else r for r in batches]
    for request, got in zip(batches, gpu.begin(given).finish(), strict=True):
        assert_equal_on_gpu(got, cpu.sample(request))


@pytest.mark.parametrize("expand", ["new", "all"])
def test_a_fan_out_for_each_type(expand):
    here, there = graph("none")
    fanouts = dict(zip(EDGES, [(15, 100, 0), (0, 3, -1), (70, 0, 2), (-1, 2, 5)], strict=True))
    spec = NeighborSpec(fanouts=fanouts, expand=expand)
    cpu, gpu = CPUSampler(here, spec), GPUSampler(there, spec, device="cuda")
    batches = list(requests(2, 40))
    for request, got in zip(batches, gpu.begin(batches).finish(), strict=True):
        assert_equal_on_gpu(got, cpu.sample(request))
    sizes = [[r.numel() for r in got.row.values()] for got in gpu.begin(batches).finish()]
    assert all(a != b for a, b in pairwise(sizes))


@pytest.mark.multigpu
class TestOnAGPUThatIsNotCurrent:
    def other(self):
        return torch.device("cuda", 1 - torch.cuda.current_device())

    def test_induced(self):
        here, device = graph("none")[0], self.other()
        spec = NeighborSpec(fanouts=dict.fromkeys(EDGES, (4, 3)), subgraph="induced")
        cpu, gpu = CPUSampler(here, spec), GPUSampler(place(here, device), spec, device=device)
        for request in requests(2, 100):
            assert_equal_on_gpu(gpu.sample(request), cpu.sample(request))

    def test_walks_and_page_rank(self):
        here, device = graph("none")[0], self.other()
        there, key, start = place(here, device), BatchKey(0, 0, 0), torch.arange(300)
        walks, ranks = WalkSpec(steps=(CITES,) * 3), PageRankSpec(edge_type=CITES, eps=1e-2)
        request = WalkRequest(key=key, start=start)
        found = GPUWalkSampler(there, walks, device=device).sample(request).node
        assert torch.equal(found.cpu(), CPUWalkSampler(here, walks).sample(request).node)
        found = GPUPageRankSampler(there, ranks, device=device).sample(start).node
        assert torch.equal(found.cpu(), CPUPageRankSampler(here, ranks).sample(start).node)
        walker = NegativeWalker([9, 7])
        found = walker.sample(WalkRequest(key=key, start=start.to(device)))
        assert torch.equal(found.cpu(), walker.sample(request))
