"""Seed edges of the GPU backend equal those of the CPU, bit for bit; in triton's interpreter where there is no GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_cases import OnHost, assert_equal, times, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.errors import InputError
from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import (
    BatchKey,
    CPUSampler,
    EdgeRequest,
    EdgeSampler,
    GPUEdgeSampler,
    GPUSampler,
    NegativeSpec,
    NeighborSpec,
    SampledEdges,
)
from manyhop.sampling.gpu.lookup import GPUEdgeLookup
from manyhop.sampling.lookup import EdgeLookup

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RATES, RATED = ("user", "rates", "item"), ("item", "rated_by", "user")

INDICES = ("src_index", "dst_index", "dst_neg_index", "time_max")


@st.composite
def edge_cases(draw, *, timed=False):
    """A graph, one of its edge types, options of a sampler for it; in dense graphs, negatives are often edges."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_types = draw(st.integers(1, 2))
    names = ["_N"] if num_types == 1 else ["a", "b"]
    num_nodes = {name: draw(st.sampled_from([2, 9, 40])) for name in names}
    edge_types = [("_N", "_E", "_N")] if num_types == 1 else [("a", "x", "b"), ("b", "y", "a")]
    edges = {}
    for edge_type in edge_types:
        n = draw(st.sampled_from([0, 30, 300]))
        row, col = rng.integers(0, num_nodes[edge_type[0]], n), rng.integers(0, num_nodes[edge_type[2]], n)
        edges[edge_type] = EdgeInput(row=torch.from_numpy(row), col=torch.from_numpy(col))
    node_time = None
    if timed:
        node_time = {name: torch.from_numpy(times(rng, num_nodes[name])) for name in names}
    graph = build_graph(num_nodes, edges, node_time=node_time)
    if draw(st.booleans()):
        graph = replace(graph, csc={t: replace(c, row=c.row.long()) for t, c in graph.csc.items()})
    edge_type = draw(st.sampled_from(edge_types))
    mode = draw(st.sampled_from([None, "binary", "triplet"]))
    options = {}
    if mode is not None:
        amount = draw(st.sampled_from([1, 3] if mode == "triplet" else [0.3, 1, 2.5]))
        if mode == "triplet" and draw(st.booleans()):
            return graph, edge_type, {"negatives": NegativeSpec(mode=mode, amount=amount, given=True)}
        options["negatives"] = NegativeSpec(mode=mode, amount=amount, exclude_true=draw(st.booleans()))
        for name, end in (("src_weight", 0), ("dst_weight", 2)):
            if draw(st.booleans()) and not (mode == "triplet" and end == 0):
                weight = weights(rng, num_nodes[edge_type[end]])
                weight[rng.integers(weight.size)] = 1.0
                options[name] = torch.from_numpy(weight)
    return graph, edge_type, options


@st.composite
def edge_requests(draw, graph, edge_type, *, negatives=None, timed=False, window=False):
    """One to three batches of different lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    requests = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.sampled_from([0, 1, 7, 200]))
        shape = None if negatives is None or not negatives.given else (n, int(negatives.amount))
        drawn = rng.integers(0, graph.num_nodes[edge_type[2]], shape or 0)
        src, dst, late, early = (
            torch.from_numpy(x)
            for x in (
                rng.integers(0, graph.num_nodes[edge_type[0]], n),
                rng.integers(0, graph.num_nodes[edge_type[2]], n),
                times(rng, n),
                times(rng, n),
            )
        )
        requests.append(
            EdgeRequest(
                key=BatchKey(draw(st.integers(-3, 2**65)), draw(st.integers(0, 3)), draw(st.integers(0, 2**40))),
                edge_type=edge_type,
                src=src,
                dst=dst,
                time_max=late if timed else None,
                time_min=early if timed and window else None,
                neg_dst=None if shape is None else torch.from_numpy(drawn),
            )
        )
    return requests


def assert_equal_edges(got: SampledEdges, expected: SampledEdges) -> None:
    """Equal in every field; ``got`` may lie on a device."""
    assert got.num_pos == expected.num_pos
    for name in INDICES:
        a, b = getattr(got, name), getattr(expected, name)
        assert (a is None) == (b is None), name
        if b is not None:
            assert a.dtype == torch.int64, name
            assert a.shape == b.shape, name
            assert a.is_contiguous(), name
            assert a.tolist() == b.tolist(), name
    assert_equal(got.subgraph, expected.subgraph)


def both(graph, edge_type, *, temporal=None, disjoint=False, **options):
    spec = NeighborSpec(fanouts={t: (3, 2) for t in graph.edge_types}, temporal=temporal, disjoint=disjoint)
    nodes = CPUSampler(graph, spec)
    return (
        GPUEdgeSampler(OnHost(nodes), graph, edge_type, disjoint=disjoint, device=DEVICE, **options),
        EdgeSampler(nodes, graph, edge_type, disjoint=disjoint, **options),
    )


def outcome(sample):
    """What a call gives, or the message of its error."""
    try:
        return sample()
    except InputError as error:
        return str(error)


def check(sampler, reference, requests):
    with torch.device("meta"):  # as if torch's default device were another one
        expected = [outcome(lambda r=r: reference.sample(r)) for r in requests]
        got = outcome(lambda: sampler.begin(requests).finish())
    errors = [e for e in expected if isinstance(e, str)]
    if errors:
        assert got in errors
        return
    assert len(got) == len(expected)
    for ((a,), _), b in zip(got, expected, strict=True):
        assert_equal_edges(a, b)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), disjoint=st.booleans())
def test_equals_the_cpu(data, disjoint):
    graph, edge_type, options = data.draw(edge_cases())
    requests = data.draw(edge_requests(graph, edge_type, negatives=options.get("negatives")))
    check(*both(graph, edge_type, disjoint=disjoint, **options), requests)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), window=st.booleans())
@pytest.mark.slow
def test_in_time(data, window):
    graph, edge_type, options = data.draw(edge_cases(timed=True))
    requests = data.draw(edge_requests(graph, edge_type, negatives=options.get("negatives"), timed=True, window=window))
    check(*both(graph, edge_type, temporal="uniform", disjoint=True, **options), requests)


@pytest.mark.parametrize("disjoint", [False, True])
def test_with_the_gpu_sampler_inside(disjoint):
    graph = bipartite()
    spec = NeighborSpec(fanouts={RATES: (2, 1), RATED: (3, 0)}, disjoint=disjoint)
    options = {"negatives": NegativeSpec(mode="triplet", amount=2), "disjoint": disjoint}
    gpu = GPUEdgeSampler(GPUSampler(place(graph, DEVICE), spec, device=DEVICE), graph, RATES, device=DEVICE, **options)
    cpu = EdgeSampler(CPUSampler(graph, spec), graph, RATES, **options)
    requests = [request([1, 2, 5], [3, 4, 3], batch=b) for b in range(2)]
    for ((got,), _), one in zip(gpu.begin(requests).finish(), requests, strict=True):
        assert_equal_edges(got, cpu.sample(one))


def bipartite(num_items=40):
    """Every user rates all items but the one with its own number."""
    row, col = (x.ravel() for x in torch.meshgrid(torch.arange(30), torch.arange(num_items), indexing="ij"))
    row, col = row[row != col], col[row != col]
    edges = {RATES: EdgeInput(row=row, col=col), RATED: EdgeInput(row=col, col=row)}
    return build_graph({"user": 30, "item": num_items}, edges)


def request(src, dst, *, batch=0, edge_type=RATES, **times):
    src, dst = (torch.tensor(x, dtype=torch.int64) for x in (src, dst))
    return EdgeRequest(key=BatchKey(1, 0, batch), edge_type=edge_type, src=src, dst=dst, **times)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_what_no_attempt_finds_is_chosen_exactly(mode, disjoint):
    graph = bipartite()
    negatives = NegativeSpec(mode=mode, amount=2, exclude_true=True)
    gpu, cpu = both(graph, RATES, negatives=negatives, disjoint=disjoint)
    requests = [request(list(range(20)), list(range(20)), batch=b) for b in range(3)]
    pending = gpu.begin(requests)
    assert (pending._ends._late.wait()[1] > 0).item()  # some were left over
    for ((got,), _), one in zip(pending.finish(), requests, strict=True):
        assert_equal_edges(got, cpu.sample(one))


def test_ids_that_are_negative_views():
    gpu, cpu = both(bipartite(), RATES, negatives=NegativeSpec(mode="binary", amount=2, exclude_true=True))
    plain = request(list(range(20)), list(range(20)))
    given = replace(plain, src=torch._neg_view(-plain.src), dst=torch._neg_view(-plain.dst))
    assert_equal_edges(gpu.sample(given), cpu.sample(plain))


def test_ids_of_64_bits():
    """What graphs of more than 2^31 nodes need; a small one takes it, too."""
    gpu, cpu = both(bipartite(), RATES, negatives=NegativeSpec(mode="binary", amount=2, exclude_true=True))
    gpu._edges.destination = gpu._edges.destination.long()
    gpu._about[-1] = gpu._edges.destination.data_ptr()
    gpu._wide = True
    gpu._modes["EDGES_WIDE"] = True
    one = request(list(range(20)), list(range(20)))
    assert_equal_edges(gpu.sample(one), cpu.sample(one))


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [([1], [40], r"in \[0, 40\), got 40"), ([5, -1], [2, 2], "source nodes .* got -1"), ([2**40], [2], f"got {2**40}")],
)
def test_wrong_ids(disjoint, src, dst, message):
    """The kernel finds them; the error comes with the counts, from ``finish`` at the latest."""
    gpu, _ = both(bipartite(), RATES, negatives=NegativeSpec(mode="triplet", exclude_true=True), disjoint=disjoint)
    with pytest.raises(InputError, match=message):
        gpu.begin([request([1], [39]), request(src, dst)]).finish()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_lookup_equals_that_of_the_cpu(data):
    graph, edge_type, _ = data.draw(edge_cases())
    csc = graph.csc[edge_type]
    row = csc.row.clone()
    gpu, cpu = GPUEdgeLookup(csc, DEVICE), EdgeLookup(csc)
    assert csc.row.equal(row)
    for a, b in zip(gpu.tables(), cpu.tables(), strict=True):
        assert a.dtype == b.dtype
        assert a.tolist() == b.tolist()


class TestErrors:
    def test_times_with_some_batches_only(self):
        gpu, _ = both(bipartite(), RATES, disjoint=True)
        with pytest.raises(InputError, match="with all of the requests"):
            gpu.begin([request([1], [1], time_max=torch.tensor([3])), request([1], [1])])

    def test_no_requests(self):
        gpu, _ = both(bipartite(), RATES, negatives=NegativeSpec(mode="binary"))
        with pytest.raises(InputError, match="at least one request"):
            gpu.begin([])

    def test_no_gpu(self, monkeypatch):
        monkeypatch.setattr("triton.knobs.runtime.interpret", False)
        with pytest.raises(InputError, match="CUDA device, got cpu"):
            GPUEdgeSampler(None, bipartite(), RATES, device="cpu")
