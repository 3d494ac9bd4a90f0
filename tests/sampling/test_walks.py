"""Random walks: those of CPU and GPU are the reference bit for bit, and walks are what the spec says.

The GPU's kernels run in triton's interpreter where there is no GPU.
"""

import pytest
import torch
from cpu_cases import one_type

from manyhop.errors import GraphError, InputError
from manyhop.graph import HOMOGENEOUS_EDGE as EDGE
from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import BatchKey, CPUWalkSampler, GPUWalkSampler, ReferenceWalkSampler, WalkRequest, WalkSpec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KEY = BatchKey(3, 1, 4)
LIKES, BY = ("user", "likes", "item"), ("item", "by", "user")


def graph_of(num_nodes=40, num_edges=150, *, weighted=False):
    g = torch.Generator().manual_seed(num_edges)
    row, col = torch.randint(0, num_nodes - 3, (2, num_edges), generator=g)  # three nodes without edges
    weight = torch.rand(num_edges, generator=g) * (torch.rand(num_edges, generator=g) < 0.7)
    return one_type(num_nodes, row, col, weight=weight if weighted else None)


def typed():
    g = torch.Generator().manual_seed(2)
    users, items = torch.randint(0, 20, (60,), generator=g), torch.randint(0, 30, (60,), generator=g)
    edges = {LIKES: EdgeInput(row=users, col=items), BY: EdgeInput(row=items, col=users)}
    return build_graph({"user": 20, "item": 30}, edges)


def on_gpu(graph, spec):
    return GPUWalkSampler(place(graph, DEVICE), spec, device=DEVICE)


def both(graph, spec, start, key=KEY):
    """Walks of the CPU and the GPU, which must be those of the reference."""
    expected, *others = [
        make(graph, spec).sample(WalkRequest(key=key, start=start))
        for make in (ReferenceWalkSampler, CPUWalkSampler, on_gpu)
    ]
    for walks, device in zip(others, ("cpu", DEVICE), strict=True):
        assert walks.node.device.type == device
        assert torch.equal(walks.node.cpu(), expected.node)
        assert (walks.edge_id is None) == (not spec.edge_ids)
        assert walks.edge_id is None or torch.equal(walks.edge_id.cpu(), expected.edge_id)
    return others[0]


def check_walks(graph, spec, walks, start):
    """Every step is an edge of its type, and ends stay ends."""
    assert torch.equal(walks.node[:, 0], start)
    for t, edge_type in enumerate(spec.steps):
        now, then, edge = walks.node[:, t], walks.node[:, t + 1], walks.edge_id[:, t]
        assert torch.equal(then < 0, edge < 0)
        assert bool((then[now < 0] == -1).all())
        csc = graph.csc[edge_type]
        perm = torch.arange(csc.num_edges) if csc.perm is None else csc.perm.long()
        col = torch.arange(csc.num_dst).repeat_interleave(csc.colptr.diff())
        ends = {e: (r, c) for e, r, c in zip(perm.tolist(), csc.row.tolist(), col.tolist(), strict=True)}
        for u, v, e in zip(now.tolist(), then.tolist(), edge.tolist(), strict=True):
            assert e < 0 or ends[e] == (v, u)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"p": 0.25, "q": 4.0},
        {"p": 1000.0, "q": 1000.0},  # steps that are accepted rarely: the scan
        {"stop": (0.0, 0.5, 0.5, 0.1, 0.0)},
        {"weighted": True},
        {"weighted": True, "p": 1000.0, "q": 0.5, "stop": (0.2,) * 5},
    ],
    ids=str,
)
def test_as_the_reference(options):
    graph, start = graph_of(weighted=options.get("weighted", False)), torch.arange(300) % 40
    spec = WalkSpec(steps=(EDGE,) * 5, edge_ids=True, **options)
    walks = both(graph, spec, start)
    check_walks(graph, spec, walks, start)
    assert bool((walks.node[:, -1] >= 0).any())
    assert bool((walks.node[start >= 37, 1:] == -1).all())


def test_the_scan_is_as_the_reference():
    hub = torch.arange(1, 40)  # all others are neighbours of 0, and nobody's
    graph = one_type(41, torch.cat([hub, hub * 0]), torch.cat([hub * 0, hub]))
    spec = WalkSpec(steps=(EDGE,) * 4, p=1e-9, q=1.0)
    node = both(graph, spec, torch.arange(1, 40)).node
    assert torch.equal(node[:, 0], node[:, 2])
    assert torch.equal(node[:, 2], node[:, 4])


def test_types():
    graph, start = typed(), torch.arange(30)
    spec = WalkSpec(steps=(LIKES, BY, LIKES), edge_ids=True)
    check_walks(graph, spec, both(graph, spec, start), start)
    ends = {
        t: torch.stack([csc.row, torch.arange(csc.num_dst).repeat_interleave(csc.colptr.diff())])
        for t, csc in graph.csc.items()
    }
    weight = torch.rand(60) * (torch.rand(60) < 0.5)
    inputs = {t: EdgeInput(row=row, col=col, weight=weight if t == LIKES else None) for t, (row, col) in ends.items()}
    node = both(build_graph(graph.num_nodes, inputs), WalkSpec(steps=(LIKES, BY, LIKES), weighted=True), start).node
    assert bool((node[:, 1] == -1).any())


def test_keys_of_any_size():
    for seed in (0, 1 << 31, (1 << 63) + 5, -3):
        both(graph_of(), WalkSpec(steps=(EDGE,) * 2), torch.arange(40), KEY._replace(seed=seed))


def test_a_walk_depends_on_key_number_and_start_only():
    graph, start = graph_of(), torch.randint(0, 37, (500,))
    spec = WalkSpec(steps=(EDGE,) * 4)
    whole = CPUWalkSampler(graph, spec).sample(WalkRequest(key=KEY, start=start)).node
    for part in (start[:1], start[:257]):
        assert torch.equal(both(graph, spec, part).node, whole[: part.numel()])
    again = CPUWalkSampler(graph, spec).sample(WalkRequest(key=KEY._replace(batch=5), start=start)).node
    assert not torch.equal(again, whole)
    assert both(graph, spec, start[:0]).node.shape == (0, 5)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (WalkSpec(steps=()), InputError, "at least one step"),
        (WalkSpec(steps=(LIKES, LIKES)), InputError, "begin where the one before leads"),
        (WalkSpec(steps=(("a", "b", "c"),)), InputError, "Unknown edge type"),
        (WalkSpec(steps=(LIKES, BY), p=2.0), InputError, "the same edge type"),
        (WalkSpec(steps=(LIKES,), q=0.0), InputError, "positive numbers"),
        (WalkSpec(steps=(LIKES,), stop=(0.1, 0.2)), InputError, "1 probabilities"),
        (WalkSpec(steps=(LIKES,), stop=(1.1,)), InputError, "1 probabilities"),
        (WalkSpec(steps=(LIKES,), weighted=True), GraphError, "need weights"),
    ],
    ids=str,
)
def test_wrong_specs(spec, error, message):
    for sampler in (CPUWalkSampler, ReferenceWalkSampler, on_gpu):
        with pytest.raises(error, match=message):
            sampler(typed(), spec)


def test_wrong_starts():
    for sampler in (CPUWalkSampler, on_gpu):
        with pytest.raises(InputError, match=r"in \[0, 30\), got 30"):
            sampler(typed(), WalkSpec(steps=(LIKES,))).sample(WalkRequest(key=KEY, start=torch.tensor([3, 30])))
