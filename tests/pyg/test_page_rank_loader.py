"""get_ppr as PyG's, and PPRLoader: seeds with their neighbours by personalised PageRank."""

import sys

import pytest
import torch
import torch_geometric.utils
from helpers_pyg import check_batch, stores_of
from torch_geometric.transforms import GDC
from torch_geometric.utils import subgraph, to_undirected

import manyhop_pyg
from manyhop.errors import GraphError, InputError
from manyhop_pyg import PPRLoader, get_ppr

SEEDS = torch.tensor([3, 55, 3, 12, 40, 0, 7])


@pytest.fixture(autouse=True)
def pygs_uncompiled(monkeypatch):
    """PyG's function as Python runs it: compiling it takes ten seconds."""
    module = sys.modules["torch_geometric.utils.ppr"]
    monkeypatch.setattr(module, "_get_ppr_numba", module._get_ppr)


def dense(pairs, weight):
    return torch.zeros(60, 60).index_put_(tuple(pairs), weight.float(), accumulate=True)


def test_ranks_are_pygs_within_the_bound(data):
    eps, target = 1e-4, SEEDS.unique()
    ours = get_ppr(data.edge_index, 0.15, eps, target, 60)
    theirs = torch_geometric.utils.get_ppr(data.edge_index, 0.15, eps, target, 60)
    assert ours[0].dtype == theirs[0].dtype
    assert ours[1].dtype == torch.float32
    assert torch.equal(ours[0][0].unique_consecutive(), theirs[0][0].unique_consecutive())
    assert float((dense(*ours) - dense(*theirs)).abs().max()) < eps * data.edge_index.size(1)
    every, weight = get_ppr(data.edge_index, 0.15, eps, num_nodes=60)
    assert torch.equal(dense(every, weight)[target], dense(*ours)[target])


def test_the_highest_and_defaults(data):
    pairs, weight = get_ppr(data.edge_index, target=SEEDS, num_nodes=60)
    best, weights = get_ppr(data.edge_index, target=SEEDS, num_nodes=60, top_k=4)
    assert bool((best[0].bincount(minlength=60)[SEEDS] <= 8).all())
    for seed in (3, 12):
        of_seed = weight[pairs[0] == seed]
        expected = of_seed[: of_seed.numel() // int((seed == SEEDS).sum())].topk(4).values
        assert torch.equal(weights[best[0] == seed][:4], expected)
    assert get_ppr(torch.empty(2, 0, dtype=torch.int64))[0].shape == (2, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("top_k", [None, 4])
def test_edges_on_a_gpu(data, top_k):
    many = torch.randint(0, 4000, (2, 1_200_000))  # which the GPU groups
    for num_nodes, edge_index in ((60, data.edge_index), (4000, many)):
        expected = get_ppr(edge_index, 0.15, 1e-4, SEEDS, num_nodes, top_k=top_k)
        for target in (SEEDS, SEEDS.cuda()):
            found = get_ppr(edge_index.cuda(), 0.15, 1e-4, target, num_nodes, top_k=top_k)
            assert all(tensor.is_cuda for tensor in found)
            assert torch.equal(found[0].cpu(), expected[0])
            assert torch.equal(found[1].cpu(), expected[1])


def test_gdc_takes_it_once_installed():
    edge_index = to_undirected(torch.randint(0, 60, (2, 200)))
    gdc = GDC(
        diffusion_kwargs={"method": "ppr", "alpha": 0.2, "eps": 1e-3},
        sparsification_kwargs={"method": "threshold", "avg_degree": 8},
        exact=False,
    )
    data = torch_geometric.data.Data(edge_index=edge_index, num_nodes=60)
    theirs = gdc(data.clone())
    manyhop_pyg.install()
    try:
        assert torch_geometric.utils.get_ppr is get_ppr
        ours = gdc(data.clone())
    finally:
        manyhop_pyg.uninstall()
    assert torch_geometric.utils.get_ppr is not get_ppr
    same = [dense(one.edge_index, one.edge_attr) for one in (ours, theirs)]
    assert float((same[0] - same[1]).abs().max()) < 0.05


def test_batches_have_the_nodes_of_the_highest_rank(data):
    loader = PPRLoader(data, 5, SEEDS, batch_size=3, eps=1e-4)
    reach = get_ppr(data.edge_index.flip(0), eps=1e-4, top_k=5, num_nodes=60)[0]
    assert len(loader) == 3
    for batch, seeds in zip(loader, SEEDS.split(3), strict=True):
        check_batch(batch, data)
        assert batch.batch_size == seeds.numel()
        assert torch.equal(batch.n_id[: batch.batch_size], seeds)
        others = batch.n_id[batch.batch_size :]
        assert torch.equal(others, others.unique())
        expected = reach[1][torch.isin(reach[0], seeds)].unique()
        assert torch.equal(batch.n_id.unique(), torch.cat([expected, seeds]).unique())
        inside, _ = subgraph(expected, data.edge_index, torch.arange(300), num_nodes=60)
        assert batch.num_edges >= inside.size(1)
    other = torch.tensor([44, 3])  # 44 is no input node
    assert torch.equal(loader.batch(other).n_id[:2], other)
    with pytest.raises(InputError, match=r"Expected seeds in \[0, 60\), got 60"):
        PPRLoader(data, 5, SEEDS).batch([60])
    for batch, expected in zip(PPRLoader(stores_of(data), 5, SEEDS, batch_size=3, eps=1e-4), loader, strict=True):
        assert torch.equal(batch.n_id, expected.n_id)
        assert torch.equal(batch.x, expected.x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_neighbors": 0}, "num_neighbors to be an integer of at least 1"),
        ({"alpha": 0.0}, "alpha above 0 and at most 1"),
        ({"input_time": SEEDS}, "Expected no input_time"),
    ],
)
def test_wrong_arguments(data, arguments, message):
    with pytest.raises(InputError, match=message):
        PPRLoader(data, **{"num_neighbors": 3} | arguments)


def test_wrong_graphs(hetero):
    with pytest.raises(InputError, match="without types"):
        PPRLoader(hetero, 3)
    with pytest.raises(InputError, match=r"\[2, num_edges\]"):
        get_ppr(torch.zeros(3, 2))
    with pytest.raises(GraphError, match="3"):
        get_ppr(torch.tensor([[0], [3]]), num_nodes=2)
