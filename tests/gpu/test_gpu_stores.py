"""Memory over GPUs belongs to the data, not to loaders: a rank for each GPU."""

import os

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import manyhop
import manyhop_dgl
from manyhop.errors import InputError
from manyhop.features.whole_memory import communicators
from manyhop_pyg import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader

pytestmark = [pytest.mark.multigpu, pytest.mark.needs("pylibwholegraph")]

NUM_NODES, WIDTH = 200_000, 512


def make_data():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NUM_NODES, (2, 400_000), generator=generator)
    x = torch.randn(NUM_NODES, WIDTH, generator=generator)
    return Data(x=x, y=torch.arange(NUM_NODES), edge_index=edge_index)


def make_loader(data, begin=0, end=NUM_NODES, **how):
    how = {"distributed": True, "seed": 1, "batch_size": 512, "device": "cuda"} | how
    return NeighborLoader(data, [5, 3], torch.arange(begin, end), **how)


def right(batches, data):
    found = [torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()]) for batch in batches]
    return all(found) and len(found) > 0


def used():
    """Bytes of this GPU that are in use, by this process or others."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def num_memories():
    """How many tensors there are in WholeGraph's memory."""
    return sum(len(each.memories) for each in communicators._communicators.values())


def three_loaders(placement):
    data = make_data()
    train = make_loader(data, placement=placement)
    results, before, memories = [right(train, data)], used(), num_memories()
    links = LinkNeighborLoader(
        data, [3], edge_label_index=data.edge_index[:, :5000], batch_size=500, distributed=True, device="cuda",
        placement=placement, seed=1,
    )  # fmt: skip
    loaders = [make_loader(data, 0, 4000, placement=placement), links, make_loader(data, 4000, 6000)]
    g = manyhop_dgl.Graph(tuple(data.edge_index), NUM_NODES)
    g.ndata["x"] = data.x
    sampler = manyhop_dgl.NeighborSampler([5, 3], prefetch_node_feats=["x"])
    dgl = manyhop_dgl.DataLoader(
        g, torch.arange(4000), sampler, batch_size=500, use_ddp=True, device="cuda", placement=placement,
        output="tensors",
    )  # fmt: skip
    results += [right(loader, data) for loader in loaders]
    results += [torch.equal(b.node_features["x"].cpu(), data.x[b.input_nodes.cpu()]) for b in dgl]
    places = [loader._gpu.memory.placement.place_of("x") for loader in loaders]
    return results, places, used() - before, num_memories() - memories


@pytest.mark.whole_gpu
@pytest.mark.parametrize("placement", ["sharded", "distributed"])
def test_further_loaders_take_no_more_memory(run_on_gpus, placement):
    pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
    for results, places, more, memories in run_on_gpus(three_loaders, placement):
        assert all(results)
        assert places == [placement] * 3
        assert memories == 0
        assert more < NUM_NODES * WIDTH * 4  # four loaders would have needed half of it each
        print(f"{placement}: {more >> 20} MiB for four further loaders")


def evaluate_alone():
    data = make_data()
    with pytest.raises(InputError, match="on all ranks"):
        make_loader(data, placement="sharded", distributed=False)
    train = make_loader(data, placement="sharded")
    found = []
    if manyhop.init().rank == 0:  # the other rank does nothing meanwhile
        for placement in ("sharded", None):
            alone = make_loader(data, 0, 5000, placement=placement, distributed=False)
            found += [right(alone, data), alone._gpu.memory.placement.place_of("x")]
    return found, right(train, data)


def test_one_rank_evaluates_over_what_is_sharded(run_on_gpus):
    first, second = run_on_gpus(evaluate_alone)
    assert first == ([True, "sharded"] * 2, True)
    assert second == ([], True)


PLACES = [("pinned", None), ("device", None), ("sharded", "cuda"), ("distributed", None)]


def use_store(place, device, how, path):
    world, data = manyhop.init(), make_data()
    store, edges = FeatureStore(placement=place, device=device), GraphStore()
    edges.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    begin, end = [(NUM_NODES // 3, NUM_NODES), (0, NUM_NODES // 3)][world.rank]
    attr = {"group_name": None, "attr_name": "x"}
    if how == "whole":
        store.put_tensor(data.x, **attr, index=None)
    elif how == "parts":
        store.put_tensor(data.x[begin:end], **attr, index=slice(begin, end))
    else:
        store.put_tensor(manyhop.files.open(path), **attr, index=None)
    index = torch.tensor([7, 0, NUM_NODES - 1, 7])[world.rank :]
    results = [torch.equal(store.get_tensor(**attr, index=index).cpu(), data.x[index])]
    memories = num_memories()
    loaders = [make_loader((store, edges)) for _ in range(3)]
    results += [right(loader, data) for loader in loaders]
    places = {loader._gpu.memory.placement.place_of("'x'") for loader in loaders}
    if place == "distributed":
        with pytest.raises(InputError, match="distributed=True"):
            make_loader((store, edges), distributed=False)
    elif world.rank == 0:
        results.append(right(make_loader((store, edges), 0, 5000, distributed=False), data))
    return results, places, num_memories() - memories


@pytest.mark.parametrize("how", ["whole", "parts", "files"])
@pytest.mark.parametrize(("place", "device"), PLACES)
def test_a_store_of_every_place_gives_the_right_rows(run_on_gpus, tmp_path, place, device, how):
    if how == "files":
        np.save(tmp_path / "x.npy", make_data().x.numpy())
    for results, places, more in run_on_gpus(use_store, place, device, how, str(tmp_path / "x.npy")):
        assert all(results)
        assert (places, more) == ({place}, 0)


def use_dgl(place, device):
    world, data = manyhop.init(), make_data()
    mine = data.edge_index[:, :100_000] if world.rank == 0 else data.edge_index[:, 100_000:]
    g = manyhop_dgl.Graph(tuple(mine), NUM_NODES, placement=place, device=device)
    g.ndata["x"] = data.x
    memories = num_memories()

    def load(**how):
        sampler = manyhop_dgl.NeighborSampler([5, 3], prefetch_node_feats=["x"])
        how |= {"batch_size": 512, "device": "cuda", "output": "tensors"}
        loader = manyhop_dgl.DataLoader(g, torch.arange(20_000), sampler, **how)
        found = [torch.equal(b.node_features["x"].cpu(), data.x[b.input_nodes.cpu()]) for b in loader]
        return found, [loader.placement.topology.place, *[choice.place for choice in loader.placement.features]]

    results = [load(use_ddp=True, ddp_seed=1) for _ in range(2)]
    if place != "distributed" and world.rank == 0:
        results.append(load())
    return results, num_memories() - memories


@pytest.mark.parametrize(("place", "device"), PLACES)
def test_a_graph_of_dgl_in_every_place(run_on_gpus, place, device):
    pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
    topology = "device" if place == "distributed" else place
    for results, made in run_on_gpus(use_dgl, place, device):
        for found, places in results:
            assert all(found)
            assert places == [topology, place]
        assert made == (place == "sharded")  # the topology, once


def use_graphbolt(place, device):
    import manyhop_dgl.graphbolt as gb

    world, data = manyhop.init(), make_data()
    src, dst = data.edge_index
    order, ends = dst.sort(stable=True).indices, dst.bincount(minlength=NUM_NODES).cumsum(0)
    graph = gb.fused_csc_sampling_graph(torch.cat([ends.new_zeros(1), ends]), src[order])
    feature = gb.TorchBasedFeature(data.x, placement=place, device=device)
    index = torch.tensor([7, 0, NUM_NODES - 1, 7])[world.rank :]
    results = [torch.equal(feature.read(ids).cpu(), data.x[index]) for ids in (index, index.cuda())]
    memories, places = num_memories(), []
    for _ in range(2):
        pipe = gb.DistributedItemSampler(gb.ItemSet(torch.arange(20_000), names="seeds"), 500, seed=1).copy_to("cuda")
        store = gb.BasicFeatureStore({("node", None, "x"): feature})
        loader = gb.DataLoader(pipe.sample_neighbor(graph, [5, 3]).fetch_feature(store, ["x"]))
        results += [torch.equal(b.node_features["x"].cpu(), data.x[b.input_nodes.cpu()]) for b in loader]
        places += [choice.place for choice in loader.placement.features]
    return results, places, num_memories() - memories


@pytest.mark.parametrize(("place", "device"), PLACES)
def test_features_of_graphbolt_in_every_place(run_on_gpus, place, device):
    for results, places, more in run_on_gpus(use_graphbolt, place, device):
        assert results == [True] * (2 + 2 * 20)
        assert (places, more) == ([place] * 2, 0)


def use_topology(place):
    world, data = manyhop.init(), make_data()
    store, edges = FeatureStore(), GraphStore(placement=place)
    store.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    edges.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    loaders = [make_loader((store, edges), 0, 20_000) for _ in range(2)]
    if world.rank == 0:
        loaders.append(make_loader((store, edges), 0, 5000, distributed=False))
    places = {loader.placement.topology.place for loader in loaders}
    return [right(loader, data) for loader in loaders], places, num_memories()


@pytest.mark.parametrize("place", ["pinned", "device", "sharded"])
def test_a_topology_in_every_place(run_on_gpus, place):
    for results, places, memories in run_on_gpus(use_topology, place):
        assert all(results)
        assert (places, memories) == ({place}, int(place == "sharded"))


def split_by_hand():
    os.environ["MANYHOP_PLACEMENT"] = "sharded"
    world, data = manyhop.init(), make_data()
    begin = world.rank * 10_000
    train = make_loader(data, begin, begin + 10_000, distributed=False)
    results = [right(train, data)]
    if world.rank == 0:
        results.append(right(make_loader(data, 20_000, 30_000, distributed=False), data))
    return results, {choice.place for choice in train.placement.features}, num_memories()


def test_a_script_that_splits_seeds_by_hand_shards(run_on_gpus):
    for results, places, memories in run_on_gpus(split_by_hand):
        assert all(results)
        assert (places, memories) == ({"sharded"}, 2)
