"""Node2Vec and MetaPath2Vec: PyG's models, fed by the engine's walks."""

import copy
import itertools
import pickle

import pytest
import torch
import torch_geometric.nn

import manyhop_pyg
from manyhop.errors import GraphError, InputError
from manyhop.sampling import GPUWalkSampler
from manyhop.sampling.gpu.walk_sampler import draw_negative_walks
from manyhop.sampling.walks import Walker
from manyhop_pyg import MetaPath2Vec, Node2Vec
from manyhop_pyg.training.walk_models import WalkLoader

EDGES = torch.tensor([[0, 0, 1, 1, 2, 3, 0], [1, 2, 0, 2, 0, 4, 3]])  # 4 and 5: no edge out
OUT = {u: [int(v) for s, v in EDGES.t() if s == u] for u in range(6)}


def test_walks_along_the_edges():
    model = Node2Vec(EDGES, 4, walk_length=5, context_size=5, walks_per_node=3, p=0.3, q=2.0, num_nodes=6)
    assert isinstance(model, torch_geometric.nn.Node2Vec)
    walks = model.pos_sample(torch.arange(6))
    assert torch.equal(walks[:, 0], torch.arange(6).repeat(3))
    for walk in walks.tolist():
        for u, v in itertools.pairwise(walk):
            assert v in OUT[u] or (not OUT[u] and v == u)  # it stays where no edge leads on, as in PyG


def test_windows_and_seeds():
    model, whole = (Node2Vec(EDGES, 4, 6, context_size) for context_size in (3, 6))
    sampled = []
    for m in (model, whole, model):
        torch.manual_seed(7)
        sampled.append(m.sample([2, 0, 1, 1]))
    for short, long in zip(sampled[0], sampled[1], strict=True):
        assert torch.equal(short, torch.cat([long[:, j : j + 3] for j in range(4)]))
    assert all(map(torch.equal, sampled[0], sampled[2]))
    assert not torch.equal(model.pos_sample(torch.arange(3)), model.pos_sample(torch.arange(3)))


def test_it_learns():
    blocks = torch.arange(12).view(2, 6)
    edges = torch.cat([torch.combinations(block).t() for block in blocks], 1)
    torch.manual_seed(1)
    model = Node2Vec(torch.cat([edges, edges.flip(0)], 1), 8, 6, 4, walks_per_node=4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.05)
    for _ in range(30):
        for pos, neg in model.loader(batch_size=6, shuffle=True):
            optimizer.zero_grad()
            model.loss(pos, neg).backward()
            optimizer.step()
    z = model().detach()
    near = z @ z.t()
    assert near[:6, :6].mean() > near[:6, 6:].mean() + 1
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.manual_seed(2)
        walks = again.pos_sample(torch.arange(12))
        torch.manual_seed(2)
        assert torch.equal(walks, model.pos_sample(torch.arange(12)))


def along(pairs=(("a", "b"), ("b", "a")), path=None, *, edges=EDGES, nodes=None, context_size=3):
    """A model of walks of four steps along edges between such types."""
    path = [(src, "to", dst) for src, dst in pairs] if path is None else path
    return MetaPath2Vec({(s, "to", d): edges for s, d in pairs}, 4, path, 4, context_size, num_nodes_dict=nodes)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16], ids=str)
def test_metapaths_over_edges_of_other_dtypes_and_none(dtype):
    model = along(edges=EDGES.to(dtype))
    assert model.num_nodes_dict == {"a": 5, "b": 5}
    for walk in model._pos_sample(torch.tensor([0, 3])).tolist():
        first, second = (walk[0] % 5, walk[1] % 5) if walk[1] < 10 else (None, None)
        assert first is None or second in OUT[first]
    empty = along(edges=EDGES[:, :0], nodes={"a": 2, "b": 2})
    assert bool((empty._pos_sample(torch.tensor([1]))[0, 1:] == empty.dummy_idx).all())
    with pytest.raises(InputError, match="nodes to draw negatives from"):
        along(edges=EDGES[:, :0])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Node2Vec(EDGES.t(), 4, 5, 5), InputError, r"\[2, num_edges\], got \[7, 2\]"),
        (lambda: Node2Vec(EDGES, 4, 1, 1), InputError, "walk_length to be an integer of at least 2"),
        (lambda: Node2Vec(EDGES, 4, 5, 6), InputError, "context_size of at most walk_length, got 6 and 5"),
        (lambda: Node2Vec(EDGES, 4, 5, 5, p=0), InputError, "p and q to be positive"),
        (lambda: Node2Vec(EDGES, 4, 5, 5, num_nodes=4), GraphError, r"destination nodes in \[0, 4\), got 4"),
        (lambda: Node2Vec(EDGES, 4, 5, 5).pos_sample(torch.tensor([9])), InputError, r"in \[0, 5\), got 9"),
        (
            lambda: MetaPath2Vec({("a", "to", "a"): EDGES}, 4, [("a", "on", "a")], 5, 5),
            InputError,
            r"Unknown edge type \('a', 'on', 'a'\) in metapath\. edge_index_dict has: \[\('a', 'to', 'a'\)\]",
        ),
        (lambda: along([("a", "b")], []), InputError, "at least one edge type"),
        (lambda: along([("a", "b"), ("a", "b")]), InputError, "start where the last one ends"),
        (lambda: along([("a", "b")]), InputError, "walk_length=4 is more than its 1 edge types, got 'a' to 'b'"),
        (lambda: along(context_size=6), InputError, r"walk_length \+ 1, got 6 and 4"),
        (lambda: along(nodes={"a": 5}), InputError, r"all types of \('a', 'to', 'b'\), got none for 'b'"),
        (lambda: along(nodes={"a": 5, "b": "5"}), InputError, r"num_nodes_dict\['b'\] to be an integer"),
        (lambda: along(nodes={"a": 4, "b": 4}), GraphError, r"destination nodes of .*'a', 'to', 'b'.*\[0, 4\), got 4"),
        (lambda: along(nodes={"a": 3, "b": 5}), GraphError, r"source nodes of .*'a', 'to', 'b'.*\[0, 3\), got 3"),
        (lambda: along(edges=EDGES - 1), GraphError, r"source nodes of .*'a', 'to', 'b'.*, got -1"),
        (lambda: along(edges=EDGES * 10**6, nodes={"a": 5, "b": 5}), GraphError, "source nodes .* got 3000000"),
        (lambda: along(edges=EDGES.float()), GraphError, "integer tensor, got torch.float32"),
        (lambda: along(edges=EDGES.tolist()), InputError, "edge_index as a tensor .*, got list"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_install():
    manyhop_pyg.install()
    try:
        assert torch_geometric.nn.Node2Vec is Node2Vec
        assert torch_geometric.nn.models.MetaPath2Vec is MetaPath2Vec
    finally:
        manyhop_pyg.uninstall()
    assert torch_geometric.nn.Node2Vec is Node2Vec.__bases__[0]


TYPED = {("a", "to", "b"): EDGES % 4, ("b", "to", "a"): EDGES.flip(0) % 4}
gpu = pytest.mark.gpu


def node2vec():
    return Node2Vec(EDGES, 4, walk_length=6, context_size=3, walks_per_node=5, p=0.3, q=2.0, num_nodes=6)


def metapath2vec():
    return MetaPath2Vec(TYPED, 4, list(TYPED), walk_length=5, context_size=3, walks_per_node=5)


MAKES = [node2vec, metapath2vec]


def epoch(model, **kwargs):
    torch.manual_seed(5)
    return list(model.loader(batch_size=2, shuffle=True, **kwargs))


def check_alike(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", MAKES)
def test_batches_of_the_kernels_are_those_of_the_cpu(monkeypatch, make):
    expected = epoch(make())
    if not torch.cuda.is_available():
        monkeypatch.setattr(
            Walker, "_make", lambda self, device: (GPUWalkSampler(self.graph, self.spec, device=device), None)
        )
        monkeypatch.setattr(
            "manyhop.sampling.cpu.kernels.walks.negative_walk",
            lambda key, counts, node: draw_negative_walks(int(key[0]), *map(torch.from_numpy, (counts, node))),
        )
    check_alike(epoch(make()), expected)


def test_a_loader_beside_a_model_on_a_gpu_starts_no_threads(monkeypatch):
    loader = node2vec().loader(batch_size=2, num_workers=4, persistent_workers=True, timeout=5)
    assert loader._threads(loader._num_threads())["num_workers"] == 4
    monkeypatch.setattr(WalkLoader, "_is_on_gpu", lambda self: True)
    threads = loader._threads(loader._num_threads())
    assert threads["num_workers"] == 0
    assert threads["pool"] is threads["worker_init"] is threads["timeout"] is None
    assert len(list(loader)) == 3


@gpu
@pytest.mark.parametrize("make", MAKES)
def test_on_a_gpu_as_on_the_cpu(make):
    model = make()
    loader = model.loader(batch_size=2, shuffle=True, seed=3)
    expected, alone = [list(loader) for _ in range(2)], loader.batch([1, 0], key=(3, 1, 2))
    torch.manual_seed(5)
    drawn = epoch(model)
    model = model.cuda()
    loader = model.loader(batch_size=2, shuffle=True, seed=3, num_workers=2, persistent_workers=True, pin_memory=True)
    for one in expected:
        found = list(loader)
        assert all(part.is_cuda for batch in found for part in batch)
        check_alike(found, one)
    check_alike(epoch(model, num_workers=1), drawn)
    check_alike([loader.batch([1, 0], key=(3, 1, 2))], [alone])
    model.loss(*found[0]).backward()


@gpu
@pytest.mark.parametrize("make", MAKES)
def test_a_state_goes_from_a_cpu_to_a_gpu(make):
    model = make()
    loader = model.loader(batch_size=1, shuffle=True, seed=3)
    expected = list(loader)
    loader = model.loader(batch_size=1, shuffle=True, seed=3)
    next(iter(loader))
    again = model.cuda().loader(batch_size=1, shuffle=True)
    again.load_state_dict(loader.state_dict())
    check_alike(list(again), expected[1:])
    assert again.stats().batches == len(expected) - 1
