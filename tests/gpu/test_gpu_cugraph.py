"""The cuGraph engine with cuGraph itself: on one GPU, and on two. Ranks start once: that takes longest."""

import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import manyhop
import manyhop_pyg
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph
from manyhop.sampling import NeighborSpec

sys.path[:0] = [str(Path(__file__).parents[1] / "sampling")]

pytestmark = [pytest.mark.gpu, pytest.mark.needs("pylibcugraph", "raft_dask")]
SIZES = [1, pytest.param(2, marks=pytest.mark.multigpu)]


def everything():
    """What each function returned on this rank, by its name and argument."""
    found = {}
    for function, *arguments in (
        (check_structure,),
        (interleave,),
        (load_parts,),
        (frequencies, False),
        (frequencies, True),
        (temporal, "uniform"),
        (temporal, "last"),
        (train, False),
        (train, True),
    ):
        began = time.monotonic()
        found[function.__name__, *arguments] = function(*arguments)
        print(f"{function.__name__}{tuple(arguments)}: {time.monotonic() - began:.1f} s", flush=True)
    return found


@pytest.fixture(scope="module", params=SIZES)
def found(request, gpu_launcher):
    """What :func:`everything` returned, by rank."""
    return gpu_launcher.run(everything, world_size=request.param, fresh=True)


def sampler_of(graph, spec):
    from manyhop_cugraph.engine import CuGraphSampler
    from manyhop_cugraph.graph import SpreadGraph

    device = torch.device("cuda", torch.cuda.current_device())
    return CuGraphSampler(SpreadGraph(graph, device, timeout=60), spec)


def on_host(sample):
    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.cpu()
        return {k: moved(v) for k, v in value.items()} if isinstance(value, dict) else value

    return type(sample)(**{one.name: moved(getattr(sample, one.name)) for one in fields(sample)})


def check_structure():
    from reference_worlds import SEEDS, SPECS, check, fanouts, make_world, request

    rank = manyhop.init().rank
    mine = SEEDS[rank:]  # ranks sample different batches, and not equally many
    for kind, options in SPECS.items():
        world = make_world(1, weights=kind == "weighted")
        for fan in [(2, 3), (-1, 2), (0, 2), (3, 0, 1)]:
            spec = NeighborSpec(fanouts=fanouts(*fan), **options)
            asked = [request(seeds, batch) for batch, seeds in enumerate(mine)]
            for one, sample in zip(asked, sampler_of(world.graph, spec).begin(asked).finish(), strict=True):
                check(world, spec, one.seeds, on_host(sample))
    return sorted({name.partition(".")[0] for name in sys.modules} & {"dask", "distributed", "ucxx", "dask_cuda"})


def test_structure_and_no_dask(found):
    assert [rank["check_structure",] for rank in found] == [[]] * len(found)


def homogeneous(num_nodes, num_edges, **columns):
    generator = torch.Generator().manual_seed(1)
    row, col = torch.randint(0, num_nodes, (2, num_edges), generator=generator)
    edges = EdgeInput(row=row, col=col, **columns)
    return col, build_graph({HOMOGENEOUS_NODE: num_nodes}, {HOMOGENEOUS_EDGE: edges})


def frequencies(weighted):
    from reference_worlds import request

    rank = manyhop.init().rank
    weight = torch.arange(1, 401) % 7 if weighted else None
    col, graph = homogeneous(20, 400, weight=weight)
    spec = NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (1 if weighted else 3,)}, weighted=weighted)
    sampler = sampler_of(graph, spec)
    counts, rounds = np.zeros(400), 20
    for k in range(rounds):
        asked = [request({HOMOGENEOUS_NODE: list(range(20))}, 100 * k + b) for b in range(100 + rank)]
        for sample in sampler.begin(asked).finish():
            np.add.at(counts, sample.edge_id[HOMOGENEOUS_EDGE].cpu().numpy(), 1)
    share = np.ones(400) if weight is None else weight.numpy().astype(float)
    total = np.bincount(col.numpy(), weights=share, minlength=20)[col.numpy()]
    expected = rounds * (100 + rank) * (1 if weighted else 3) * share / total
    used = expected > 0
    assert not counts[~used].any()
    chi = float(((counts[used] - expected[used]) ** 2 / expected[used]).sum())
    return chi, int(used.sum()) - 20


@pytest.mark.parametrize("weighted", [False, True])
def test_frequencies_of_picks(found, weighted):
    for rank in found:
        chi, freedom = rank["frequencies", weighted]
        assert chi < freedom + 6 * np.sqrt(2 * freedom)
        assert chi > 0.2 * freedom


def temporal(strategy):
    from reference_worlds import request

    rank = manyhop.init().rank
    time = torch.arange(400) * 7919 % 1000
    col, graph = homogeneous(20, 400, time=time)
    spec = NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (3, 2)}, temporal=strategy, disjoint=True)
    seeds, latest, earliest = [1 + rank, 1, 2], [500, 100, 999], [300, 0, 0]
    asked = request(
        {HOMOGENEOUS_NODE: seeds}, 0, time_max={HOMOGENEOUS_NODE: latest}, time_min={HOMOGENEOUS_NODE: earliest}
    )
    sample = on_host(sampler_of(graph, spec).sample(asked))
    ids, tree = sample.edge_id[HOMOGENEOUS_EDGE], sample.tree[HOMOGENEOUS_NODE]
    of_edge = tree[sample.col[HOMOGENEOUS_EDGE]]
    inside = (time[ids] <= torch.tensor(latest)[of_edge]) & (time[ids] >= torch.tensor(earliest)[of_edge])
    first = torch.arange(len(ids)) < sample.num_sampled_edges[HOMOGENEOUS_EDGE][0]
    there = (col == 2) & (time <= 999)
    best = time[there].sort().values[-3:].tolist()
    return (
        bool(inside.all()),
        len(ids) > 6,
        strategy != "last" or sorted(time[ids[first & (of_edge == 2)]].tolist()) == best,
    )


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_times(found, strategy):
    assert [rank["temporal", strategy] for rank in found] == [(True, True, True)] * len(found)


def train(distributed):
    world = manyhop.init()
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator().manual_seed(0)
    num_nodes = 20_000
    label = torch.randint(0, 4, (num_nodes,), generator=generator)
    col = torch.randint(0, num_nodes, (200_000,), generator=generator)
    row = torch.randint(0, num_nodes, (200_000,), generator=generator)
    x = torch.nn.functional.one_hot(label, 4).float() + torch.randn(num_nodes, 4, generator=generator)
    target = torch.zeros(num_nodes, 4).index_add_(0, col, x[row]).argmax(1)
    data = Data(x=x, y=target, edge_index=torch.stack([row, col]))
    seeds = torch.arange(num_nodes) if distributed else torch.arange(5000 + 2500 * world.rank)
    options = {"input_nodes": seeds, "batch_size": 256, "shuffle": True, "seed": 1, "device": "cuda"}
    loader = manyhop_pyg.NeighborLoader(data, [5, 5], engine="cugraph", distributed=distributed, **options)
    model = torch.nn.ModuleList([SAGEConv(4, 32), SAGEConv(32, 4)]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, right = [], True
    for _ in range(3):
        for batch in loader:
            right &= torch.equal(batch.n_id[batch.edge_index].cpu(), data.edge_index[:, batch.e_id.cpu()])
            hidden = model[0](batch.x, batch.edge_index).relu()
            loss = torch.nn.functional.cross_entropy(
                model[1](hidden, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return right, float(np.mean(losses[:5])), float(np.mean(losses[-5:])), loader.placement.topology.place


def load_parts():
    world = manyhop.init()
    generator = torch.Generator().manual_seed(0)
    edges, n = torch.randint(0, 5000, (2, 60_000), generator=generator), world.world_size
    mine = slice(60_000 * world.rank // n, 60_000 * (world.rank + 1) // n)
    graph, features = manyhop_pyg.GraphStore(placement="distributed"), manyhop_pyg.FeatureStore()
    graph.put_edge_index(tuple(edges[:, mine]), edge_type=None, layout="coo", size=(5000, 5000))
    features.put_tensor(torch.arange(5000), group_name=None, attr_name="x", index=None)
    loader = manyhop_pyg.NeighborLoader((features, graph), [4, 4], batch_size=100, device="cuda", distributed=True)
    checks = [torch.equal(b.n_id[b.edge_index].cpu(), edges[:, b.e_id.cpu()]) for b in loader]
    return all(checks), len(checks), loader.placement.topology.place


def test_each_rank_has_a_part_of_the_edges(found):
    assert [rank["load_parts",] for rank in found] == [(True, 50 // len(found), "distributed")] * len(found)


@pytest.mark.parametrize("distributed", [False, True])
def test_losses_fall_and_uneven_ranks_end(found, distributed):
    for rank in found:
        right, first, last, place = rank["train", distributed]
        assert right
        assert last < 0.8 * first
        assert place == "distributed"


def interleave():
    from manyhop_cugraph.engine import CuGraphSampler

    rank, device = manyhop.init().rank, torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 5000, (2, 60_000), generator=generator)
    data = Data(x=torch.arange(5000.0), edge_index=edges)
    options = {"batch_size": 100, "seed": 1, "device": device, "engine": "cugraph"}
    loaders = [
        manyhop_pyg.NeighborLoader(data, [4, 4], input_nodes=torch.arange(3000 + 500 * rank), **options),
        manyhop_pyg.NeighborLoader(data, [4, 4], input_nodes=torch.arange(1000 - 200 * rank), **options),
        manyhop_pyg.LinkNeighborLoader(data, [4, 4], edge_label_index=edges[:, :900], **options),
    ]
    for loader in loaders:
        loader._gpu.group_size = 4
    calls, right, taken = [], True, 0
    call = CuGraphSampler.call
    CuGraphSampler.call = lambda self, works: calls.append(len(works)) or call(self, works)
    iterators = [iter(loader) for loader in loaders]
    while iterators:
        for iterator in list(iterators):
            batch = next(iterator, None)
            if batch is None:
                iterators.remove(iterator)
                continue
            taken += 1
            right &= torch.equal(batch.n_id[batch.edge_index].cpu(), edges[:, batch.e_id.cpu()])
            right &= torch.equal(batch.x, batch.n_id.float())
    for iterator in (iter(loaders[0]), iter(loaders[1])):  # left by all ranks in mid-epoch
        right &= torch.equal(next(iterator).n_id[:100].cpu(), torch.arange(100))
    CuGraphSampler.call = call
    return right, taken, calls


def test_loaders_share_calls(found):
    for number, rank in enumerate(found):
        right, taken, calls = rank["interleave",]
        assert right
        assert taken == 30 + 5 * number + 10 - 2 * number + 9
        assert sum(calls) >= 8 + 2 + 3  # requests of four batches
        assert len(calls) <= 12, "each loader by itself would make 18"
        assert max(calls) > 2, "no loader has more than two requests at a time"
