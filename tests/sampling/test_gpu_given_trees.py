"""Given trees of seeds on a GPU: the sample of the CPU."""

import torch
from test_given_trees import check, graph, request, spec_of  # noqa: F401  # a fixture

from manyhop.graph import place
from manyhop.sampling import GPUSampler, ReferenceSampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_edges_are_those_within_a_tree(graph):  # noqa: F811
    sampler = GPUSampler(place(graph, DEVICE), spec_of(graph), device=DEVICE)
    expected = ReferenceSampler(graph, spec_of(graph)).sample(request())
    for sample in sampler.begin([request(), request()]).finish():
        check(sample, graph)
        for name in ("row", "col", "edge_id"):
            assert all(torch.equal(getattr(sample, name)[t].cpu(), ids) for t, ids in getattr(expected, name).items())
