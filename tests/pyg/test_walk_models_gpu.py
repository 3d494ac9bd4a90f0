"""Node2Vec and MetaPath2Vec on GPUs: the walks are those of the CPU; triton's interpreter stands in for a GPU."""

from types import SimpleNamespace

import pytest
import torch

from manyhop.sampling import GPUWalkSampler
from manyhop.sampling.walks import Walker
from manyhop_pyg import MetaPath2Vec, Node2Vec
from manyhop_pyg.training import walk_models

EDGES = torch.tensor([[0, 0, 1, 1, 2, 3, 0], [1, 2, 0, 2, 0, 4, 3]])  # 4 and 5: no edge out
TYPED = {("a", "to", "b"): EDGES % 4, ("b", "to", "a"): EDGES.flip(0) % 4}


def node2vec():
    return Node2Vec(EDGES, 4, walk_length=6, context_size=3, walks_per_node=5, p=0.3, q=2.0, num_nodes=6)


def metapath2vec():
    return MetaPath2Vec(TYPED, 4, list(TYPED), walk_length=5, context_size=3, walks_per_node=5)


def first_batch(model, **kwargs):
    torch.manual_seed(5)
    return next(iter(model.loader(batch_size=4, **kwargs)))


def test_walks_of_the_kernel_are_those_of_the_cpu(monkeypatch):
    for make in (node2vec, metapath2vec):
        expected = first_batch(make())
        if not torch.cuda.is_available():
            monkeypatch.setattr(
                Walker, "_make", lambda self, device: (GPUWalkSampler(self.graph, self.spec, device=device), None)
            )
            assert all(map(torch.equal, first_batch(make()), expected))
            monkeypatch.undo()


def test_a_loader_beside_a_model_on_a_gpu_starts_no_processes():
    kwargs = {"batch_size": 2, "num_workers": 4, "persistent_workers": True, "pin_memory": True}
    assert walk_models._where(node2vec().embedding, kwargs) == kwargs
    on_gpu = SimpleNamespace(weight=SimpleNamespace(is_cuda=True))
    assert walk_models._where(on_gpu, kwargs) == {"batch_size": 2}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [node2vec, metapath2vec])
def test_on_a_gpu_as_on_the_cpu(make):
    model = make()
    expected = first_batch(model)[0]
    model = model.cuda()
    found = first_batch(model, num_workers=2, persistent_workers=True, pin_memory=True)
    assert all(part.is_cuda for part in found)
    assert torch.equal(found[0].cpu(), expected)
    model.loss(*found).backward()
