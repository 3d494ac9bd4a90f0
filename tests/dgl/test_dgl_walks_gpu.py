"""DGL's random walks from nodes on a GPU: those of the CPU; triton's interpreter stands in for a GPU."""

import dgl
import pytest
import torch
from dgl.sampling.pinsage import _select_pinsage_neighbors

import manyhop_dgl
from manyhop.sampling import GPUWalkSampler
from manyhop.sampling.walks import Walker
from manyhop_dgl.samplers.pinsage import _most_visited

G = torch.Generator().manual_seed(3)
SRC, DST = torch.randint(0, 17, (2, 60), generator=G)  # 17 to 19 have no edges
WEIGHT = torch.rand(60, generator=G)


def walks(nodes):
    """Walks and neighbours from nodes, all on their device."""
    g = dgl.graph((SRC, DST), num_nodes=20)
    g.edata["w"] = WEIGHT
    dgl.seed(4)
    found = [*manyhop_dgl.random_walk(g, nodes, length=3, prob="w", restart_prob=0.1, return_eids=True)]
    found.append(manyhop_dgl.node2vec_random_walk(g, nodes, 0.5, 2.0, 3))
    neighbors = manyhop_dgl.RandomWalkNeighborSampler(g, 2, 0.5, 4, 3)(nodes)
    return [*found, *neighbors.edges(), neighbors.edata["weights"]]


def test_walks_of_the_kernel_are_those_of_the_cpu(monkeypatch):
    expected = walks(torch.arange(20))
    if not torch.cuda.is_available():
        monkeypatch.setattr(
            Walker, "_make", lambda self, device: (GPUWalkSampler(self.graph, self.spec, device=device), None)
        )
        assert all(map(torch.equal, walks(torch.arange(20)), expected))


@pytest.mark.gpu
def test_on_a_gpu_as_on_the_cpu():
    for found, expected in zip(walks(torch.arange(20).cuda()), walks(torch.arange(20)), strict=True):
        assert found.is_cuda
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_most_visited_is_dgls(k):
    visited = torch.randint(-1, 6, (30, 12), generator=G)
    node, visits = _most_visited(visited, k)
    seed = torch.arange(30)
    found = visits > 0
    src, dst, count = _select_pinsage_neighbors(visited.reshape(-1), seed.repeat_interleave(12), 12, k)
    assert torch.equal(node[found], src)
    assert torch.equal(seed[:, None].expand_as(node)[found], dst)
    assert torch.equal(visits[found], count)
