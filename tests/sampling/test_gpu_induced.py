"""All edges among the nodes of batches, found by the GPU backend, equal the reference's; in triton's interpreter
where there is no GPU."""

from dataclasses import replace

import torch
from cpu_cases import assert_equal, graphs, moved, one_type, request_of, requests, spec_of, specs
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.graph import place
from manyhop.sampling import CPUSampler
from manyhop.sampling.gpu.induced import Inducer

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def check(graph, spec, batches, inducer=None):
    """The nodes of the CPU sampler, with the edges that the GPU finds among them."""
    nodes = CPUSampler(graph, replace(spec, subgraph="directional"))
    both = CPUSampler(graph, replace(spec, subgraph="induced"))
    inducer = inducer or Inducer(place(graph, DEVICE), DEVICE)
    samples = [nodes.sample(request) for request in batches]
    on_device = [replace(s, node=moved(s.node, DEVICE), tree=moved(s.tree, DEVICE)) for s in samples]
    inducer.replace_edges(on_device)
    for a, request in zip(on_device, batches, strict=True):
        assert_equal(a, both.sample(request))
    return inducer


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_the_reference(data):
    graph = data.draw(graphs())
    spec = data.draw(specs(graph))
    check(graph, spec, [data.draw(requests(graph)) for _ in range(data.draw(st.integers(1, 3)))])


def test_more_than_there_was_room_for():
    """A hub of many tiles; edges and tiles beyond the first room; the next call has it."""
    generator = torch.Generator().manual_seed(0)
    n = 300
    row = torch.randint(0, n, (2500,), generator=generator)
    col = torch.where(torch.arange(2500) < 1200, 7, torch.randint(0, n, (2500,), generator=generator))
    graph, spec = one_type(n, row, col), spec_of(-1)
    inducer = Inducer(place(graph, DEVICE), DEVICE)
    inducer.tile_capacity, inducer.edge_capacity = 2, 100
    batches = [request_of([7, 3 + b, 7, 11], b) for b in range(3)]
    check(graph, spec, batches, inducer)
    assert inducer.tile_capacity >= 10
    assert inducer.edge_capacity >= 5000
    room = inducer.tile_capacity, inducer.edge_capacity
    check(graph, spec, batches, inducer)
    assert room == (inducer.tile_capacity, inducer.edge_capacity)


def test_no_batches():
    Inducer(place(one_type(3, [0], [0]), DEVICE), DEVICE).replace_edges([])
