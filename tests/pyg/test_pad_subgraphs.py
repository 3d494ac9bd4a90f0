"""``pad="auto"`` of the loaders of subgraphs: batches of fixed sizes, with the rows of those without padding."""

import pytest
import torch
from grouped import StandIn, compare
from helpers_pyg import all_same
from padded import both
from test_pad_loader import check
from torch_geometric.nn import SAGEConv, global_add_pool

from manyhop_pyg import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    PPRLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
)


def clusters(data, **options):
    return ClusterLoader(ClusterData(data, 7, cluster=torch.arange(60) % 7), batch_size=2, shuffle=True, **options)


def edges(data, **options):
    return GraphSAINTEdgeSampler(data, 9, 6, 3, **options)


def nodes(data, **options):
    return GraphSAINTNodeSampler(data, 9, 6, 3, **options)


def walks(data, **options):
    return GraphSAINTRandomWalkSampler(data, 6, 2, 6, 3, **options)


def parts(data, **options):
    return RandomNodeLoader(data, 4, shuffle=True, **options)


def ranked(data, **options):
    return PPRLoader(data, 5, torch.arange(30), eps=0.06, batch_size=8, shuffle=True, **options)


def hops(data, **options):
    return ShaDowKHopSampler(data, 2, 3, batch_size=8, **options)


SETS, GRAPHS = [clusters, edges, nodes, walks, parts, ranked], [hops]


@pytest.mark.parametrize("make", SETS)
def test_only_padding_is_added(data, make):
    for plain, padded in both(make, data, seed=3):
        check(plain, padded)
        seeds = "n_id" if make is parts else "input_id"
        assert torch.equal(padded[seeds][: padded.seed_mask.numel()][padded.seed_mask], plain[seeds])
        for norm, mask in (("node_norm", padded.node_mask), ("edge_norm", padded.edge_mask)):
            if norm in plain:
                assert torch.equal(padded[norm][mask], plain[norm])
                assert not padded[norm][~mask].any()


@pytest.mark.parametrize("make", GRAPHS)
def test_graphs_of_seeds(data, make):
    conv = SAGEConv(4, 3)
    for plain, padded in both(make, data, seed=3):
        number, mask = plain.num_graphs, padded.seed_mask
        assert mask.tolist() == [True] * number + [False] * (8 - number)
        for name in ("n_id", "x", "batch"):
            assert torch.equal(padded[name][padded.node_mask], plain[name])
        assert torch.equal(padded.e_id[padded.edge_mask], plain.e_id)
        assert torch.equal(padded.y[mask], plain.y)
        assert torch.equal(padded.ptr[: number + 1], plain.ptr)
        assert torch.equal(padded.root_n_id[mask], plain.root_n_id)
        assert not padded.node_mask[padded.root_n_id[~mask]].any()
        expected = global_add_pool(conv(plain.x, plain.edge_index), plain.batch)
        pooled = global_add_pool(conv(padded.x, padded.edge_index), padded.batch, size=padded.num_graphs + 1)
        assert torch.allclose(pooled[:number], expected, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [*SETS, *GRAPHS])
def test_on_a_gpu_as_on_the_cpu(data, make):
    cpu, gpu = (list(make(data, seed=3, pad="auto", device=device)) for device in ("cpu", "cuda"))
    assert all(batch.edge_index.is_cuda for batch in gpu)
    assert all_same(cpu, [batch.cpu() for batch in gpu])


@pytest.mark.parametrize("make", [edges, parts, hops])
def test_where_a_gpu_samples(data, on_gpu, make):
    compare(on_gpu, lambda: make(data, seed=3, pad="auto"), epochs=1)
    assert max(StandIn.groups) > 1
