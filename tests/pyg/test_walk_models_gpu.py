"""Node2Vec and MetaPath2Vec on GPUs: batches are those of the CPU; triton's interpreter stands in for a GPU."""

import pytest
import torch

from manyhop.sampling import GPUWalkSampler
from manyhop.sampling.gpu.walk_sampler import draw_negative_walks
from manyhop.sampling.walks import Walker
from manyhop_pyg import MetaPath2Vec, Node2Vec
from manyhop_pyg.training.walk_models import WalkLoader

EDGES = torch.tensor([[0, 0, 1, 1, 2, 3, 0], [1, 2, 0, 2, 0, 4, 3]])  # 4 and 5: no edge out
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
