"""Loaders whose ranks share batches: rounds, graphs that are compared, data that are spread over nodes."""

import sys
from pathlib import Path

import pytest
import torch

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
sys.path.append(str(Path(__file__).parents[1] / "distributed"))

from launch import Launcher  # noqa: E402

from manyhop.errors import InputError, RankError  # noqa: E402

NUM_NODES = 61
EDGES = torch.randint(0, NUM_NODES, (2, 400), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def launcher():
    launcher = Launcher()
    yield launcher
    launcher.close()


def loader(
    g=None, *, batch_size=8, num_seeds=NUM_NODES, drop_last=False, num_workers=0, seed=None, use_ddp=True, **more
):
    if g is None:
        g = manyhop_dgl.Graph(tuple(EDGES), NUM_NODES)
        g.ndata["x"] = torch.arange(3.0 * NUM_NODES).view(-1, 3)
    sampler = manyhop_dgl.NeighborSampler([3, 2], prefetch_node_feats=["x"], seed=0)
    options = {"batch_size": batch_size, "shuffle": True, "drop_last": drop_last, "seed": seed, "use_ddp": use_ddp}
    options |= {"ddp_seed": 5} if use_ddp and seed is None else {}
    if use_ddp:
        options["rank_timeout"] = 100.0
    return manyhop_dgl.DataLoader(g, torch.arange(num_seeds), sampler, num_workers=num_workers, **options, **more)


def batches(loader):
    return [(nodes.tolist(), blocks[0].srcdata["x"].tolist()) for nodes, _, blocks in loader]


def epoch():
    made = loader(drop_last=True)
    return batches(made), len(made)


def test_incomplete_rounds_are_dropped(launcher):
    alone = batches(loader(seed=5, use_ddp=False, drop_last=True))
    assert len(alone) == 7
    ranks = launcher.run(epoch, world_size=2)
    assert [length for _, length in ranks] == [3, 3]
    assert [rank[0][i] for i in range(3) for rank in ranks] == alone[:6]


def with_data(name, at):
    """A graph of either kind, with one number of its data or edges changed on rank 1."""
    import torch.distributed as dist

    import manyhop

    changes, data = manyhop.init().rank, {"edges": EDGES.clone(), "x": torch.zeros(NUM_NODES, 3), "w": torch.ones(400)}
    data[name].view(-1)[at] += changes
    found = []
    for make in (manyhop_dgl.Graph, lambda edges, n: dgl.graph(edges, num_nodes=n)):
        g = make(tuple(data["edges"] % NUM_NODES), NUM_NODES)
        g.ndata["x"], g.edata["w"], g.edata["x"] = data["x"], data["w"], torch.ones(400)
        for prob in (None, "w"):
            sampler = manyhop_dgl.NeighborSampler([2], prob=prob)
            try:
                manyhop_dgl.DataLoader(g, torch.arange(8), sampler, use_ddp=True, rank_timeout=100.0)
            except RankError as error:
                found.append(str(error))
        dist.barrier()
    return found


@pytest.mark.parametrize(
    ("name", "named"),
    [("edges", ["edges"] * 4), ("x", ["node data 'x'"] * 4), ("w", ["edge data 'w'", "weights"] * 2)],
)
def test_edges_weights_and_features_that_differ_are_named(launcher, name, named):
    for messages in launcher.run(with_data, name, 100):
        assert len(messages) == 4
        for message, expected in zip(messages, named, strict=True):
            assert f"expected the same {expected}" in message


def sharded():
    import manyhop

    mine = EDGES if manyhop.init().rank == 0 else EDGES[:, :0]  # ranks bring parts of the edges
    g = manyhop_dgl.Graph(tuple(mine), NUM_NODES, placement="sharded")
    g.ndata["x"] = torch.arange(3.0 * NUM_NODES).view(-1, 3)
    with pytest.raises(InputError, match="use_ddp=True"):
        loader(g, use_ddp=False, seed=5)
    made = loader(g, num_workers=1)
    got = batches(made)
    return got, made.stats().exchanged_bytes


def test_data_that_are_spread_over_nodes(launcher):
    alone = batches(loader(seed=5, use_ddp=False))
    ranks = launcher.run(sharded, node_of=[0, 1])
    assert [batch for both in zip(*(got for got, _ in ranks), strict=True) for batch in both] == alone
    assert all(received > 0 for _, received in ranks)


def on_a_gpu(placement=None):
    made = loader(output="tensors", device="cuda", num_workers=1, placement=placement)
    assert made.device.index == torch.cuda.current_device()
    return [(batch.input_nodes.tolist(), batch.node_features["x"].tolist()) for batch in made], made.device.index


@pytest.mark.multigpu
def test_each_rank_has_a_gpu(launcher):
    alone = batches(loader(seed=5, use_ddp=False))
    ranks = launcher.run(on_a_gpu, world_size=2, fresh=True)
    assert [batch for both in zip(*(got for got, _ in ranks), strict=True) for batch in both] == alone
    assert [device for _, device in ranks] == [0, 1]


@pytest.mark.multigpu
@pytest.mark.parametrize("placement", ["cuda-cuda", "pinned-cuda", "cpu-cuda", "sharded", "distributed"])
def test_placements_change_nothing(launcher, placement):
    if placement in ("sharded", "distributed"):
        pytest.importorskip("pylibwholegraph")
    alone = batches(loader(seed=5, use_ddp=False))
    ranks = launcher.run(on_a_gpu, placement, world_size=2, fresh=True)
    assert [batch for both in zip(*(got for got, _ in ranks), strict=True) for batch in both] == alone
