"""Random walks on a GPU are those of the reference bit for bit, in every mode; here by triton's interpreter."""

import pytest
import torch
from test_walks import BY, EDGE, KEY, LIKES, graph_of, typed

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_NODE as NODE
from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import GPUWalkSampler, ReferenceWalkSampler, WalkRequest, WalkSpec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check(graph, spec, start, key=KEY):
    request = WalkRequest(key=key, start=start)
    found = GPUWalkSampler(place(graph, DEVICE), spec, device=DEVICE).sample(request)
    expected = ReferenceWalkSampler(graph, spec).sample(request)
    assert found.node.device.type == DEVICE
    assert torch.equal(found.node.cpu(), expected.node)
    if spec.edge_ids:
        assert torch.equal(found.edge_id.cpu(), expected.edge_id)
    else:
        assert found.edge_id is None
    return found.node.cpu()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"p": 0.25, "q": 4.0},
        {"p": 1000.0, "q": 1000.0},  # steps that are accepted rarely: the scan
        {"stop": (0.0, 0.5, 0.1)},
        {"weighted": True},
        {"weighted": True, "p": 1000.0, "q": 0.5, "stop": (0.2, 0.0, 0.2)},
    ],
    ids=str,
)
def test_as_the_reference(options):
    graph = graph_of(weighted=options.get("weighted", False))
    node = check(graph, WalkSpec(steps=(EDGE,) * 3, edge_ids="p" not in options, **options), torch.arange(150) % 40)
    assert bool((node[:, -1] >= 0).any())


def test_the_scan_is_as_the_reference():
    hub = torch.arange(1, 40)  # all others are neighbours of 0, and nobody's
    graph = build_graph({NODE: 41}, {EDGE: EdgeInput(row=torch.cat([hub, hub * 0]), col=torch.cat([hub * 0, hub]))})
    node = check(graph, WalkSpec(steps=(EDGE,) * 2, p=1e-9, q=1.0), torch.arange(1, 40))
    assert torch.equal(node[:, 0], node[:, 2])


def test_types_of_edges_with_and_without_weights():
    graph = typed()
    check(graph, WalkSpec(steps=(LIKES, BY, LIKES), edge_ids=True), torch.arange(30))
    likes, by = (
        torch.stack([csc.row, torch.arange(csc.num_dst).repeat_interleave(csc.colptr.diff())])
        for csc in (graph.csc[LIKES], graph.csc[BY])
    )
    weight = torch.rand(likes.size(1)) * (torch.rand(likes.size(1)) < 0.5)
    weighted = build_graph(
        graph.num_nodes,
        {LIKES: EdgeInput(row=likes[0], col=likes[1], weight=weight), BY: EdgeInput(row=by[0], col=by[1])},
    )
    node = check(weighted, WalkSpec(steps=(LIKES, BY, LIKES), weighted=True), torch.arange(30).repeat(3))
    assert bool((node[:, 1] == -1).any())


def test_keys_of_any_size_and_no_walks():
    graph, spec = graph_of(), WalkSpec(steps=(EDGE,) * 2)
    for seed in (0, 1 << 31, (1 << 63) + 5, -3):
        check(graph, spec, torch.arange(40), KEY._replace(seed=seed))
    assert check(graph, spec, torch.arange(0)).shape == (0, 3)


def test_wrong_starts_and_devices():
    graph = place(graph_of(), DEVICE)
    sampler = GPUWalkSampler(graph, WalkSpec(steps=(EDGE,)), device=DEVICE)
    with pytest.raises(InputError, match=r"in \[0, 40\), got 40"):
        sampler.sample(WalkRequest(key=KEY, start=torch.tensor([3, 40], device=DEVICE)))
    with pytest.raises(InputError, match="the same edge type"):
        GPUWalkSampler(place(typed(), DEVICE), WalkSpec(steps=(LIKES, BY), p=2.0), device=DEVICE)
