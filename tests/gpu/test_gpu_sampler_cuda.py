"""The GPU sampler on a real GPU, on graphs that are too large for triton's interpreter, against the CPU kernels."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from cpu_cases import assert_equal_on_gpu

from manyhop.graph import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, Graph, PlacedGraph, place
from manyhop.sampling import BatchKey, CPUSampler, GPUSampler, NeighborSpec, NodeRequest

pytestmark = pytest.mark.gpu


def graph_of(src, dst, num_nodes):
    dst, order = torch.sort(dst, stable=True)
    colptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device=dst.device)
    colptr[1:] = torch.bincount(dst, minlength=num_nodes).cumsum(0)
    csc = CSC(num_src=num_nodes, colptr=colptr, row=src[order].to(torch.int32))
    return Graph(num_nodes={HOMOGENEOUS_NODE: num_nodes}, csc={HOMOGENEOUS_EDGE: csc})


@pytest.fixture(scope="module")
def rmat():
    """An R-MAT graph of 2^20 nodes and 16 M edges on the GPU: hubs, and many nodes without neighbours."""
    scale, num_edges = 20, 1 << 24
    generator = torch.Generator("cuda").manual_seed(0)
    src, dst = (torch.zeros(num_edges, dtype=torch.int64, device="cuda") for _ in range(2))
    for _ in range(scale):
        r = torch.rand(num_edges, device="cuda", generator=generator)
        src = 2 * src + (r >= 0.76)
        dst = 2 * dst + (((r >= 0.57) & (r < 0.76)) | (r >= 0.95))
    shuffle = torch.randperm(1 << scale, device="cuda", generator=generator)
    return graph_of(shuffle[src], shuffle[dst], 1 << scale)


def request_of(num_seeds, batch=0, num_nodes=1 << 20, device="cpu"):
    generator = torch.Generator().manual_seed(batch)
    seeds = torch.randint(0, num_nodes, (num_seeds,), generator=generator)
    return NodeRequest(key=BatchKey(7, 1, batch), seeds={HOMOGENEOUS_NODE: seeds.to(device)})


def spec_of(*fanouts, **options):
    return NeighborSpec(fanouts={HOMOGENEOUS_EDGE: fanouts}, **options)


def test_a_million_nodes(rmat):
    spec = spec_of(10)
    request = request_of(1_000_000)
    assert_equal_on_gpu(
        GPUSampler(rmat, spec, device="cuda").sample(request), CPUSampler(place(rmat, "cpu"), spec).sample(request)
    )


@pytest.mark.parametrize(
    "spec",
    [
        spec_of(15, 10, 5),
        spec_of(10, 10, replace=True),
        spec_of(10, 5, disjoint=True),
        spec_of(4, 4, expand="all"),
        spec_of(50, 3),
        spec_of(-1, 2),
        spec_of(100, 2, replace=True),
        spec_of(5, 5, subgraph="induced"),
    ],
    ids=str,
)
def test_merged_batches(rmat, spec):
    """Also those that do not fill the launch, and seeds on the GPU."""
    sampler, cpu = GPUSampler(rmat, spec, device="cuda"), CPUSampler(place(rmat, "cpu"), spec)
    for launch, sizes in enumerate([(1024,), (1000, 1024, 3, 0), (900, 1024), (1024, 1024, 1024, 1024), (64,)]):
        batches = [request_of(n, 10 * launch + i) for i, n in enumerate(sizes)]
        there = [replace(b, seeds={t: s.cuda() for t, s in b.seeds.items()}) for b in batches]
        for sample, request in zip(sampler.begin(there if launch % 2 else batches).finish(), batches, strict=True):
            assert_equal_on_gpu(sample, cpu.sample(request))


@pytest.mark.parametrize("window_bits", [24, 20])
def test_pinned_topology(rmat, monkeypatch, window_bits):
    """Neighbours and edge ids, read at once and window by window; the column pointers are on the GPU."""
    monkeypatch.setattr("manyhop.sampling.gpu.launch.plan.WINDOW_BITS", window_bits)
    csc = place(rmat, "cpu").csc[HOMOGENEOUS_EDGE]
    perm = torch.randperm(csc.num_edges, generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    host = replace(rmat, csc={HOMOGENEOUS_EDGE: replace(csc, perm=perm)})
    spec, pinned = spec_of(15, 10, 5), PlacedGraph.of(host, torch.device("cuda"), "pinned").graph
    there = pinned.csc[HOMOGENEOUS_EDGE]
    assert there.colptr.is_cuda
    assert there.row.is_pinned()
    sampler, cpu = GPUSampler(pinned, spec, device="cuda"), CPUSampler(host, spec)
    assert sampler._plan.edges[0, -1] == (0 if window_bits == 24 else 16)
    for b in range(3):
        assert_equal_on_gpu(sampler.sample(request_of(1024, b)), cpu.sample(request_of(1024, b)))


def test_memory_ahead_of_sizes(rmat):
    """Of launches one by one, whose results are written by a graph of their own, and ahead of others."""
    spec = spec_of(10, 10)
    sampler, cpu = GPUSampler(rmat, spec, device="cuda"), CPUSampler(place(rmat, "cpu"), spec)
    for b in range(4):
        assert_equal_on_gpu(sampler.sample(request_of(1024, b)), cpu.sample(request_of(1024, b)))
    for _ in range(2):
        pending = [sampler.begin([request_of(1024, b)]) for b in range(4)]
        del pending[2]
        for p, b in zip(pending, (0, 1, 3), strict=True):
            assert_equal_on_gpu(p.finish()[0], cpu.sample(request_of(1024, b)))


def test_launches_ahead_of_their_ends(rmat):
    """On streams of their own, and some that nobody finishes."""
    spec = spec_of(10, 10)
    sampler, cpu = GPUSampler(rmat, spec, device="cuda"), CPUSampler(place(rmat, "cpu"), spec)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for _ in range(3):
        pending = []
        for b in range(9):
            with torch.cuda.stream(streams[b % 3]):
                pending.append(sampler.begin([request_of(1024, b)]))
        del pending[4]
        samples = [p.finish()[0] for p in pending]
        torch.cuda.synchronize()
        for sample, b in zip(samples, [0, 1, 2, 3, 5, 6, 7, 8], strict=True):
            assert_equal_on_gpu(sample, cpu.sample(request_of(1024, b)))


def test_threads_at_once(rmat):
    spec = spec_of(10, 10)
    sampler, cpu = GPUSampler(rmat, spec, device="cuda"), CPUSampler(place(rmat, "cpu"), spec)
    work = [request_of(1000 + b, b) for b in range(64)]
    expected = [cpu.sample(request) for request in work]

    def sample(request):
        with torch.cuda.stream(torch.cuda.Stream()):
            sampled = sampler.sample(request)
            torch.cuda.current_stream().synchronize()
            return sampled

    with ThreadPoolExecutor(8) as pool:
        for got, want in zip(pool.map(sample, work), expected, strict=True):
            assert_equal_on_gpu(got, want)


def test_replays_equal_the_eager_launch(rmat):
    spec, request = spec_of(15, 10, 5), request_of(1024)
    sampler = GPUSampler(rmat, spec, device="cuda")
    first, *later = [sampler.sample(request) for _ in range(4)]
    (workspace,) = next(iter(sampler._pools.values()))._free
    workspace._launched = None  # kernel by kernel, and nothing waits
    eager = sampler.begin([request])
    torch.cuda.synchronize()
    for sample in (*later, eager.finish()[0]):
        assert torch.equal(sample.row[HOMOGENEOUS_EDGE], first.row[HOMOGENEOUS_EDGE])
        assert torch.equal(sample.edge_id[HOMOGENEOUS_EDGE], first.edge_id[HOMOGENEOUS_EDGE])


def test_more_than_two_billion_edges():
    num_nodes, degree = 1 << 27, 17
    needed = 6 * num_nodes * degree + 16 * num_nodes
    if torch.cuda.mem_get_info()[0] < 2 * needed:
        pytest.skip("needs more GPU memory")
    row = torch.empty(num_nodes * degree, dtype=torch.int32, device="cuda")
    for begin in range(0, row.numel(), num_nodes):
        part = torch.arange(begin, begin + num_nodes, device="cuda")
        row[begin : begin + num_nodes] = part * 2654435761 % num_nodes
    colptr = torch.arange(num_nodes + 1, device="cuda") * degree
    csc = CSC(num_src=num_nodes, colptr=colptr, row=row)
    graph = Graph(num_nodes={HOMOGENEOUS_NODE: num_nodes}, csc={HOMOGENEOUS_EDGE: csc})
    spec = spec_of(10, 10)
    sampler = GPUSampler(graph, spec, device="cuda")
    samples = [sampler.sample(request_of(4096, b, num_nodes)) for b in range(2)]
    cpu = CPUSampler(place(graph, "cpu"), spec)
    for b, sample in enumerate(samples):
        assert int(sample.edge_id[HOMOGENEOUS_EDGE].max()) > 2**31
        assert_equal_on_gpu(sample, cpu.sample(request_of(4096, b, num_nodes)))
