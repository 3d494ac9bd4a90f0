"""Generated graphs, specs and requests, samplers on another device, and the comparison of two samples."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, Graph, build_graph
from manyhop.sampling import BatchKey, NeighborSpec, NodeRequest, SampledSubgraph

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MODES = {
    "uniform": ({}, {}, {}),
    "weighted": ({"weighted": True}, {"weighted": True}, {}),
    "temporal uniform": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True}),
    "temporal last": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True}),
    "window": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True, "window": True}),
    "last in a window": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True, "window": True}),
    "weighted in time": (
        {"timed": True, "weighted": True},
        {"temporal": "uniform", "weighted": True, "disjoint": True},
        {"timed": True},
    ),
    "weighted in a window": (
        {"timed": True, "weighted": True},
        {"temporal": "uniform", "weighted": True, "disjoint": True},
        {"timed": True, "window": True},
    ),
}
"""Options of graphs, specs and requests."""


@st.composite
def graphs(draw, *, weighted=False, timed=False):
    """Graphs of one to three node types: parallel edges, self loops, empty types, isolated nodes, any id width."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_types = draw(st.integers(1, 3))
    names = [HOMOGENEOUS_NODE] if num_types == 1 else list("abc"[:num_types])
    num_nodes = {name: draw(st.integers(1, 12)) for name in names}
    edge_types = [HOMOGENEOUS_EDGE]
    if num_types > 1:
        pair = st.tuples(st.sampled_from(names), st.sampled_from(["x", "y"]), st.sampled_from(names))
        edge_types = draw(st.lists(pair, min_size=1, max_size=5, unique=True))
    edges = {}
    for i, edge_type in enumerate(edge_types):
        n = draw(st.sampled_from([0, 3, 20, 60, 200]))
        src, dst = num_nodes[edge_type[0]], num_nodes[edge_type[2]]
        skewed = np.minimum(rng.integers(0, dst, n), rng.integers(0, dst, n))
        plain = i > 0 and draw(st.booleans())  # an edge type without weights and times
        edges[edge_type] = EdgeInput(
            row=torch.from_numpy(rng.integers(0, src, n)),
            col=torch.from_numpy(skewed),
            weight=torch.from_numpy(weights(rng, n)) if weighted and not plain else None,
            time=torch.from_numpy(times(rng, n)) if timed and not plain else None,
        )
    graph = build_graph(num_nodes, edges)
    if draw(st.booleans()):
        wide = {
            t: replace(c, row=c.row.long(), perm=None if c.perm is None else c.perm.long())
            for t, c in graph.csc.items()
        }
        graph = replace(graph, csc=wide)
    return graph


def weights(rng, n):
    """Weights with zeros, equal ones, and some that are so large that the scan of what is left is needed."""
    kinds = [
        rng.random(n),
        np.ones(n),
        10.0 ** rng.integers(-12, 12, n),
        np.where(rng.random(n) < 0.5, 0.0, 1e9 ** rng.random(n)),
    ]
    return kinds[rng.integers(4)] * (rng.random(n) < 0.8)


def times(rng, n):
    """Times with many ties, and the extreme ones."""
    return np.where(rng.random(n) < 0.05, rng.choice([INT64_MIN, INT64_MAX], n), rng.integers(-5, 6, n))


@st.composite
def specs(draw, graph: Graph, **fixed):
    """Fanouts of 0 to 3 hops, with -1, 0, and more than any degree."""
    num_hops = draw(st.integers(0, 3))
    fanout = st.tuples(*[st.sampled_from([-1, 0, 1, 2, 3, 5, 17, 33, 70])] * num_hops)
    options = {
        "replace": draw(st.booleans()),
        "disjoint": draw(st.booleans()),
        "expand": draw(st.sampled_from(["new", "all"])),
        "subgraph": draw(st.sampled_from(["directional", "directional", "induced"])),
    }
    return NeighborSpec(fanouts={t: draw(fanout) for t in graph.edge_types}, **(options | fixed))


@st.composite
def requests(draw, graph: Graph, *, timed=False, window=False):
    """Seeds of up to three types, with duplicates, perhaps none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    types = draw(st.lists(st.sampled_from(graph.node_types), max_size=3, unique=True))
    seeds = {
        t: torch.from_numpy(rng.integers(0, graph.num_nodes[t], draw(st.sampled_from([0, 1, 2, 5, 12])))) for t in types
    }
    time_max = {t: torch.from_numpy(times(rng, len(s))) for t, s in seeds.items()}
    time_min = {t: torch.from_numpy(times(rng, len(s))) for t, s in seeds.items()}
    key = BatchKey(draw(st.integers(-3, 2**65)), draw(st.integers(0, 3)), draw(st.integers(0, 2**40)))
    return NodeRequest(
        key=key, seeds=seeds, time_max=time_max if timed else None, time_min=time_min if timed and window else None
    )


E, N = HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE


def one_type(num_nodes, row, col, **columns):
    """A graph without types."""
    row, col, columns["weight"], columns["time"] = (
        None if x is None else torch.as_tensor(x) for x in (row, col, columns.get("weight"), columns.get("time"))
    )
    return build_graph({N: num_nodes}, {E: EdgeInput(row=row, col=col, **columns)})


def spec_of(*fanouts, **options):
    return NeighborSpec(fanouts={E: fanouts}, **options)


def request_of(seeds, batch=0, **others):
    seeds = seeds if isinstance(seeds, dict) else {N: torch.as_tensor(seeds)}
    return NodeRequest(**{"key": BatchKey(3, 1, batch), "seeds": seeds} | others)


def some_edges(draw, graph: Graph):
    """Ids of edges to exclude, of some edge types: none, few, all, repeated, and some that no edge has."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    exclude = {}
    for edge_type in draw(st.lists(st.sampled_from(graph.edge_types), unique=True)):
        n = graph.csc[edge_type].num_edges
        ids = rng.integers(-2, n + 2, draw(st.sampled_from([0, 1, max(n // 3, 1), 2 * n])))
        exclude[edge_type] = torch.from_numpy(ids)
    return exclude


def moved(tensors, device):
    """Tensors by type, on a device."""
    return None if tensors is None else {t: x.to(device) for t, x in tensors.items()}


class OnHost:
    """A sampler on the CPU for requests on a device."""

    def __init__(self, sampler):
        self.sampler = sampler

    def sample(self, request):
        names = ("seeds", "time_max", "time_min")
        return self.sampler.sample(replace(request, **{name: moved(getattr(request, name), "cpu") for name in names}))


def assert_equal_on_gpu(got: SampledSubgraph, expected: SampledSubgraph) -> None:
    """Equal in every field, on a GPU."""
    tensors = [x for name in ("node", "row", "col", "edge_id", "tree") for x in (getattr(got, name) or {}).values()]
    assert all(x.is_cuda for x in tensors if x is not None)
    assert_equal(got, expected)


def assert_equal(got: SampledSubgraph, expected: SampledSubgraph) -> None:
    """Equal in every field, order of keys included."""
    for name in ("node", "row", "col", "edge_id", "tree"):
        a, b = getattr(got, name), getattr(expected, name)
        assert (a is None) == (b is None), name
        if a is None:
            continue
        assert list(a) == list(b), name
        for key in b:
            if b[key] is None:
                assert a[key] is None
                continue
            assert a[key].dtype == torch.int64, (name, key)
            assert torch.equal(a[key].cpu(), b[key].cpu()), (name, key, a[key], b[key])
    assert got.num_sampled_nodes == expected.num_sampled_nodes
    assert got.num_sampled_edges == expected.num_sampled_edges
    for edge_type in got.row:
        pair = got.edge_index(edge_type)
        assert pair.data_ptr() == got.row[edge_type].data_ptr() or pair.numel() == 0


def check_equal(sampler, reference, requests, same=assert_equal):
    """One sampler for all batches, so that each meets what the ones before have left."""
    for request in requests:
        same(sampler.sample(request), reference.sample(request))
