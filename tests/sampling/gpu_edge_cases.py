"""Generated seed edges, and the comparison of their samples, for tests of the GPU backend."""

from dataclasses import replace

import numpy as np
import torch
from cpu_cases import assert_equal, times, weights
from hypothesis import strategies as st

from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, EdgeRequest, NegativeSpec, SampledEdges

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
