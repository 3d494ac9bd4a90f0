"""Seed edges of several types in one batch: those of the GPU are those of the CPU, bit for bit."""

from dataclasses import replace

import pytest
import torch
from test_gpu_edges import assert_equal_edges

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
)
from manyhop.sampling.gpu.edges import PendingEdges
from manyhop.sampling.seed_edges import sample_together

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LIKES, KNOWS, BY = ("user", "likes", "item"), ("user", "knows", "user"), ("item", "by", "user")
SIZES = {LIKES: (9, 0, 5), KNOWS: (4, 0, 0), BY: (0, 3, 1)}


def typed():
    g = torch.Generator().manual_seed(2)

    def edges(num_src, num_dst, n):
        return EdgeInput(
            row=torch.randint(0, num_src, (n,), generator=g), col=torch.randint(0, num_dst, (n,), generator=g)
        )

    time = {"user": torch.randint(0, 9, (12,), generator=g), "item": torch.randint(0, 9, (7,), generator=g)}
    of_types = {LIKES: edges(12, 7, 60), KNOWS: edges(12, 12, 40), BY: edges(7, 12, 300)}
    return build_graph({"user": 12, "item": 7}, of_types, node_time=time)


def requests_of(graph, batch, negatives, *, timed=False):
    g = torch.Generator().manual_seed(batch)
    found = []
    for edge_type, sizes in SIZES.items():
        n = sizes[batch]
        ends = [torch.randint(0, graph.num_nodes[edge_type[end]], (n,), generator=g) for end in (0, 2)]
        late = torch.randint(3, 9, (n,), generator=g) if timed else None
        neg_dst = None
        if negatives is not None and negatives.given:
            neg_dst = torch.randint(0, graph.num_nodes[edge_type[2]], (n, int(negatives.amount)), generator=g)
        found.append(
            EdgeRequest(
                key=BatchKey(5, 1, batch),
                edge_type=edge_type,
                src=ends[0],
                dst=ends[1],
                time_max=late,
                time_min=None if late is None else late - 3,
                neg_dst=neg_dst,
            )
        )
    if negatives is None:
        found[0] = replace(found[0], exclude={LIKES: torch.arange(0, 60, 3), BY: torch.arange(100)})
    return found


@pytest.mark.parametrize(
    ("options", "negatives"),
    [
        ({}, None),
        ({}, NegativeSpec(mode="binary", amount=1.5, exclude_true=True)),
        ({}, NegativeSpec(mode="triplet", amount=2)),
        ({}, NegativeSpec(mode="triplet", amount=2, given=True)),
        ({"disjoint": True}, NegativeSpec(mode="binary", amount=1)),
        ({"disjoint": True, "temporal": "uniform"}, NegativeSpec(mode="triplet", amount=2)),
    ],
    ids=str,
)
def test_as_on_the_cpu(options, negatives):
    graph = typed()
    spec = NeighborSpec(fanouts={t: (2, 2) for t in graph.edge_types}, **options)
    disjoint = "disjoint" in options
    on_cpu = [EdgeSampler(CPUSampler(graph, spec), graph, t, negatives=negatives, disjoint=disjoint) for t in SIZES]
    placed = place(graph, DEVICE)
    engine = GPUSampler(placed, spec, device=DEVICE)
    on_gpu = [GPUEdgeSampler(engine, placed, t, negatives=negatives, disjoint=disjoint, device=DEVICE) for t in SIZES]
    batches = [requests_of(graph, b, negatives, timed="temporal" in options) for b in range(3)]
    pending = PendingEdges(on_gpu, batches)
    if negatives is not None and negatives.exclude_true:
        assert (pending._ends._late.wait()[1] > 0).item()  # what no attempt has found
    results = pending.finish()
    for (found, trees), requests in zip(results, batches, strict=True):
        expected, expected_trees = sample_together(on_cpu, requests)
        assert (trees is None) == (expected_trees is None)
        assert trees is None or torch.equal(trees.cpu(), expected_trees)
        for ours, theirs in zip(found, expected, strict=True):
            assert_equal_edges(ours, theirs)


def test_wrong_seeds():
    graph = place(typed(), DEVICE)
    engine = GPUSampler(graph, NeighborSpec(fanouts={t: (2,) for t in graph.edge_types}), device=DEVICE)
    samplers = [GPUEdgeSampler(engine, graph, t, device=DEVICE) for t in SIZES]
    likes, *others = requests_of(graph, 0, None)
    with pytest.raises(InputError, match=r"in \[0, 7\), got 9"):
        PendingEdges(samplers, [[replace(likes, dst=torch.full_like(likes.dst, 9)), *others]])
