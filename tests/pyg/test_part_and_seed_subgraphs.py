"""RandomNodeLoader, ShaDowKHopSampler, PPRLoader and get_ppr: subgraphs of parts and of seeds, as PyG's."""

import sys

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
import torch_geometric.utils
from helpers_pyg import all_same, check_batch, check_hetero_batch, stores_of
from torch_geometric.data import Batch
from torch_geometric.transforms import GDC
from torch_geometric.utils import k_hop_subgraph, subgraph, to_undirected

import manyhop_pyg
from manyhop.errors import GraphError, InputError
from manyhop_pyg import PPRLoader, RandomNodeLoader, ShaDowKHopSampler, get_ppr


def sorted_edges(edge_index):
    return edge_index[:, (edge_index[0] * 1000 + edge_index[1]).argsort()]


def test_as_pyg(data):
    ours, theirs = RandomNodeLoader(data, 4), torch_geometric.loader.RandomNodeLoader(data, 4)
    assert isinstance(ours, torch_geometric.loader.RandomNodeLoader)
    assert len(ours) == len(theirs) == 4
    for batch, expected in zip(ours, theirs, strict=True):
        check_batch(batch, data)
        assert set(batch.keys()) == {*expected.keys(), "n_id", "e_id"}
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.y, expected.y)
        assert torch.equal(sorted_edges(batch.edge_index), sorted_edges(expected.edge_index))
        assert torch.equal(batch.edge_attr.sort(0).values, expected.edge_attr.sort(0).values)


def test_types_as_pyg(hetero):
    ours, theirs = RandomNodeLoader(hetero, 3), torch_geometric.loader.RandomNodeLoader(hetero, 3)
    for batch, expected in zip(ours, theirs, strict=True):
        check_hetero_batch(batch, hetero)
        for store, same in zip(batch.stores, expected.stores, strict=True):
            assert set(store.keys()) - {"n_id", "e_id"} == set(same.keys())
        for t in hetero.node_types:
            assert batch[t].num_nodes == expected[t].num_nodes
        for t in hetero.edge_types:
            assert torch.equal(sorted_edges(batch[t].edge_index), sorted_edges(expected[t].edge_index))


@pytest.mark.parametrize("parts", [1, 7, 60, 100])
def test_each_node_is_in_one_part(data, parts):
    epoch = list(RandomNodeLoader(data, parts, shuffle=True, seed=1))
    assert len(epoch) == min(parts, 60)
    assert torch.cat([batch.n_id for batch in epoch]).sort().values.tolist() == list(range(60))


def test_stores(data):
    def make(source=data):
        return RandomNodeLoader(source, 5, shuffle=True, seed=1)

    for batch, other in zip(make(stores_of(data)), make(), strict=True):
        assert torch.equal(batch.x, other.x)
        assert torch.equal(batch.edge_index, other.edge_index)


def test_its_own_batch_size_may_be_handed_back(data):
    assert all_same(list(RandomNodeLoader(data, 4, batch_size=15)), list(RandomNodeLoader(data, 4)))


SEEDS = torch.tensor([3, 55, 3, 12, 40, 0, 7])


def graphs_of(batch, edge_attr, n_id):
    """For each graph of a batch: its seed, its nodes, and its edges by id (the fixture's ``edge_attr``)."""
    found = []
    for i, (begin, end) in enumerate(zip(batch.ptr[:-1].tolist(), batch.ptr[1:].tolist(), strict=True)):
        inside = (batch.edge_index[0] >= begin) & (batch.edge_index[0] < end)
        ids = sorted(edge_attr[inside].view(-1).tolist())
        found.append((int(n_id[batch.root_n_id[i]]), sorted(n_id[begin:end].tolist()), ids))
    return found


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_all_neighbours(data, dtype):
    data.edge_index = data.edge_index.to(dtype)
    loader = ShaDowKHopSampler(data, 2, -1, SEEDS, batch_size=4)
    assert isinstance(loader, torch_geometric.loader.ShaDowKHopSampler)
    assert len(loader) == 2
    seeds = iter(SEEDS.tolist())
    for batch in loader:
        assert isinstance(batch, Batch)
        assert batch.edge_index.dtype == dtype
        assert batch.num_graphs == batch.batch_size == batch.input_id.numel()
        assert torch.equal(batch.batch, batch.batch.sort().values)
        assert torch.equal(batch.edge_index[1], batch.edge_index[1].sort().values)
        assert torch.equal(batch.n_id[batch.edge_index].long(), data.edge_index[:, batch.e_id].long())
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.y, data.y[batch.n_id[batch.root_n_id]])
        for seed, nodes, edges in graphs_of(batch, batch.edge_attr, batch.n_id):
            assert seed == next(seeds)
            expected, _, _, inside = k_hop_subgraph(seed, 2, data.edge_index.long(), num_nodes=60)
            assert nodes == expected.tolist()
            assert edges == inside.nonzero()[:, 0].tolist()


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="PyG's own needs torch-sparse")
def test_graphs_of_seeds_as_pyg(data):
    data.id = torch.arange(60)
    mask = torch.zeros(60, dtype=torch.bool)
    mask[SEEDS] = True
    ours = ShaDowKHopSampler(data, 2, 400, mask, batch_size=4)
    theirs = torch_geometric.loader.ShaDowKHopSampler(data, 2, 400, mask, batch_size=4)
    for batch, expected in zip(ours, theirs, strict=True):
        assert torch.equal(batch.ptr, expected.ptr)
        assert torch.equal(batch.y, expected.y)
        assert graphs_of(batch, batch.edge_attr, batch.id) == graphs_of(expected, expected.edge_attr, expected.id)


def test_numbers_of_neighbours(data):
    def make(**options):
        return ShaDowKHopSampler(data, 2, 2, batch_size=9, shuffle=True, seed=1, **options)

    expected = list(make())
    assert all(batch.num_nodes <= 9 * (1 + 2 + 4) for batch in expected)
    one = make().batch(expected[2].n_id[expected[2].root_n_id], key=(1, 0, 2))
    assert torch.equal(one.n_id, expected[2].n_id)
    assert torch.equal(one.edge_index, expected[2].edge_index)


def test_typed_data_has_other_loaders(hetero):
    with pytest.raises(InputError, match="got HeteroData"):
        ShaDowKHopSampler(hetero, 2, 3)


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
    ("make", "message"),
    [
        (lambda data: RandomNodeLoader(data, 0), "num_parts to be an integer of at least 1, got 0"),
        (lambda data: RandomNodeLoader(data, 2.5), "num_parts to be an integer"),
        (lambda data: RandomNodeLoader(data, 2, batch_size=3), "Expected no batch_size, got one: num_parts"),
        (lambda data: RandomNodeLoader(data, 2, input_nodes=[3]), "Expected no input_nodes"),
        (lambda data: ShaDowKHopSampler(data, 0, 3), "depth to be an integer of at least 1"),
        (lambda data: ShaDowKHopSampler(data, 2, [3]), "num_neighbors to be an integer"),
        (lambda data: ShaDowKHopSampler(data, 2, 3, input_nodes=SEEDS), "Expected no input_nodes"),
        (lambda data: PPRLoader(data, 0), "num_neighbors to be an integer of at least 1"),
        (lambda data: PPRLoader(data, 3, alpha=0.0), "alpha above 0 and at most 1"),
        (lambda data: PPRLoader(data, 3, input_time=SEEDS), "Expected no input_time"),
    ],
)
def test_wrong_arguments(data, make, message):
    with pytest.raises(InputError, match=message):
        make(data)


def test_wrong_graphs(hetero):
    with pytest.raises(InputError, match="without types"):
        PPRLoader(hetero, 3)
    with pytest.raises(InputError, match=r"\[2, num_edges\]"):
        get_ppr(torch.zeros(3, 2))
    with pytest.raises(GraphError, match="3"):
        get_ppr(torch.tensor([[0], [3]]), num_nodes=2)
