"""Reverses of sampled edges, added to several batches at once, equal those that the CPU adds to each."""

from dataclasses import replace

import torch
from cpu_cases import assert_equal, graphs, moved, requests, specs
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.sampling import CPUSampler
from manyhop.sampling.gpu.induced import add_reverses

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def move(sample):
    ends = {t: sample.edge_index(t).to(DEVICE) for t in sample.row}
    return replace(
        sample,
        row={t: pair[0] for t, pair in ends.items()},
        col={t: pair[1] for t, pair in ends.items()},
        **{name: moved(getattr(sample, name), DEVICE) for name in ("node", "edge_id", "tree")},
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_the_cpu(data):
    graph = data.draw(graphs())
    spec = data.draw(specs(graph, subgraph="directional"))
    pairs = [(t, r) for t in graph.edge_types for r in graph.edge_types if (t[0], t[2]) == (r[2], r[0])]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique_by=lambda p: p[0])) if pairs else []
    sampler = CPUSampler(graph, spec)
    samples = [sampler.sample(data.draw(requests(graph))) for _ in range(data.draw(st.integers(1, 3)))]
    for got, sample in zip(add_reverses([move(s) for s in samples], dict(chosen)), samples, strict=True):
        assert_equal(got, sample.with_reverses(dict(chosen)))
