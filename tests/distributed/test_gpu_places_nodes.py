"""Loaders on GPUs over rows that are sharded over the host memory of nodes: GPUs exchange them. Without GPUs."""

import sys
from pathlib import Path

import pytest
import torch
from places import ENV, NUM_NODES, tensors

import manyhop
import manyhop_pyg
from manyhop.errors import CapacityError, ManyhopError

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

FOUR = [0, 0, 1, 1]


def make_stores(**options):
    given = tensors()
    features = manyhop_pyg.FeatureStore(placement="sharded", rank_timeout=100.0, **options)
    for name in ("x", "y"):
        features.put_tensor(given[name], group_name=None, attr_name=name, index=None)
    edges = manyhop_pyg.GraphStore()
    edges.put_edge_index(tuple(given["edges"]), edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    return (features, edges), given


def load(data, **options):
    options = {"seed": 1, "batch_size": 40, "input_nodes": torch.arange(NUM_NODES), "shuffle": True} | options
    return manyhop_pyg.NeighborLoader(data, [4, 3], distributed=True, rank_timeout=100.0, **options)


def load_dgl(given):
    import manyhop_dgl
    from manyhop_dgl.loader import loader as loaders

    loaders.DataLoader._samples_on_gpu = lambda self: True
    world = manyhop.init()
    mine = given["edges"].tensor_split(world.world_size, 1)[world.rank]
    g = manyhop_dgl.Graph(tuple(mine), NUM_NODES, placement="sharded")
    g.ndata["x"] = given["x"]
    sampler = manyhop_dgl.NeighborSampler([4, 3], prefetch_node_feats=["x"])
    return manyhop_dgl.DataLoader(
        g, torch.arange(NUM_NODES), sampler, output="tensors", batch_size=40, use_ddp=True, ddp_seed=1
    )


def right(loader, given):
    return [torch.equal(b.x, given["x"][b.n_id]) and torch.equal(b.y, given["y"][b.n_id]) for b in loader]


def use_store(store, options):
    import whole_graph_stand_in

    from manyhop.features import Exchange

    whole_graph_stand_in.install()
    data, given = make_stores(**store)
    gathers = []
    gather = Exchange.gather
    Exchange.gather = lambda self, *args, **how: gathers.append(1) or gather(self, *args, **how)

    loaders = [load(data, **options) for _ in range(2)]
    results = [right(loader, given) for loader in loaders] + [right(loaders[0], given)]
    dgl = load_dgl(given)
    results.append([torch.equal(b.node_features["x"], given["x"][b.input_nodes]) for b in dgl])
    stats = loaders[1].stats()
    return results, str(loaders[1].placement), len(gathers), stats.exchanged_bytes, stats.cache_hit_rate


@pytest.mark.parametrize(
    ("node_of", "store", "options"),
    [
        ([0, 1], {"cache": 0}, {"placement": "sharded"}),
        (FOUR, {"cache": 0.1}, {"num_workers": 2}),
    ],
)
def test_gpus_exchange_rows(launcher, node_of, store, options):
    for results, placement, by_cpus, nbytes, hits in launcher.run(use_store, store, options, node_of=node_of, env=ENV):
        assert all(map(all, results))
        assert len(results[0]) >= 2
        assert by_cpus == 0
        assert "sharded over the memory of all nodes" in placement
        assert nbytes > 0
        assert (hits > 0.02) == (store.get("cache") != 0)


def find_the_gpu_late():
    import gpu_stand_ins
    import whole_graph_stand_in

    from manyhop.features import Exchange

    whole_graph_stand_in.install()
    gpu_stand_ins.pyg_works_on(setattr, None)
    data, given = make_stores()
    loader = load(data)
    gpu_stand_ins.pyg_works_on(setattr, torch.device("cpu"))
    gathers = []
    gather = Exchange.gather
    Exchange.gather = lambda self, *args, **how: gathers.append(1) or gather(self, *args, **how)
    return right(loader, given) + right(loader, given), len(gathers), str(loader.placement)


def test_a_gpu_that_the_process_uses_later(launcher):
    for results, by_cpus, placement in launcher.run(find_the_gpu_late, node_of=[0, 1], env=ENV):
        assert all(results)
        assert by_cpus == 0
        assert "sharded over the memory of all nodes" in placement


def refused(lacks_memory):
    import whole_graph_stand_in

    from manyhop.memory.stores import places

    def refuse(rows):
        raise CapacityError("Expected to pin.")

    whole_graph_stand_in.install()
    data, _ = make_stores()
    if lacks_memory and manyhop.init().rank == 1:
        places.page_locked = refuse
    try:
        load(data)
    except ManyhopError as error:
        return f"{type(error).__name__}: {error}"


def test_what_gpus_cannot_exchange(launcher):
    for error in launcher.run(refused, False, node_of=[0, 1, 1], env=ENV):
        assert "InputError: Expected nodes with the same number of ranks" in error
    first, second = launcher.run(refused, True, node_of=[0, 1], env=ENV)
    assert first == "RankError: rows that GPUs exchange: rank 1 failed: CapacityError: Expected to pin."
    assert second == "CapacityError: Expected to pin."
