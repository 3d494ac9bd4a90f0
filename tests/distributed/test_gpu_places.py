"""Stores in every place that GPUs read, filled in every way. Ranks without GPUs: their memory is that of the host."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ENV, NUM_NODES, PLACES, tensors

import manyhop
import manyhop_pyg
from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, WholeMemory

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]


def make_store(place, device, how, folder=None):
    world, given = manyhop.init(), tensors()
    store = manyhop_pyg.FeatureStore(placement=place, device=device)
    begin, end = [(200, NUM_NODES), (0, 200), (0, 0)][world.rank]
    for name in ("x", "y"):
        attr = {"group_name": None, "attr_name": name}
        if how == "whole":
            store.put_tensor(given[name], **attr, index=None)
        elif how == "parts":
            store.put_tensor(given[name][begin:end], **attr, index=slice(begin, end))
        else:
            store.put_tensor(manyhop.files.open(f"{folder}/{name}.npy"), **attr, index=None)
    edges = manyhop_pyg.GraphStore()
    edges.put_edge_index(tuple(given["edges"]), edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    return store, edges, given


def right(loader, given, *, same_ids=False):
    checks = []
    for batch in loader:
        checks += [torch.equal(batch.x, given["x"][batch.n_id]), torch.equal(batch.y, given["y"][batch.n_id])]
        if same_ids:  # edges have their places in what was given
            checks += [torch.equal(batch.n_id[batch.edge_index], given["edges"][:, batch.e_id]), "input_id" in batch]
    return all(checks) and len(checks) > 0


def use_store(place, device, how, folder):
    import whole_graph_stand_in

    binding = whole_graph_stand_in.install()
    store, edges, given = make_store(place, device, how, folder)
    made, results = binding.made, []
    rank = manyhop.init().rank
    index = torch.tensor([7, 0, 300, 7])[rank:]
    for name in ("x", "y"):
        got = store.get_tensor(group_name=None, attr_name=name, index=index)
        results.append(torch.equal(got, given[name][index]))
        results.append(torch.equal(store.get_tensor(group_name=None, attr_name=name, index=5), given[name][5]))
        results.append(store.get_tensor_size(group_name=None, attr_name=name, index=None) == given[name].shape)
    options = {"seed": 1, "batch_size": 20, "input_nodes": torch.arange(NUM_NODES)}
    loaders = [
        manyhop_pyg.NeighborLoader((store, edges), [4, 3], distributed=True, rank_timeout=100.0, **options)
        for _ in range(3)
    ]
    results += [right(loader, given, same_ids=True) for loader in loaders]
    results.append(loaders[0]._adapter().assembler.hands_out == (place == "distributed"))  # what is no exchange
    places = {loader._gpu.memory.placement.place_of("'x'") for loader in loaders}
    links = manyhop_pyg.LinkNeighborLoader(
        (store, edges), [3], edge_label_index=(None, given["edges"][:, :100]), distributed=True, batch_size=10, seed=1
    )
    results.append(right(links, given, same_ids=True))
    if place != "distributed" and rank == 0:
        results.append(right(manyhop_pyg.NeighborLoader((store, edges), [4], **options), given))
    error = ""
    if place == "distributed":
        try:
            manyhop_pyg.NeighborLoader((store, edges), [4], **options)
        except InputError as found:
            error = str(found)
    return results, places, made == binding.made, error


@pytest.mark.parametrize(("place", "device"), PLACES)
def test_every_place_gives_the_right_rows(launcher, tmp_path, place, device):
    given = tensors()
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", given[name].numpy())
    cases = [(place, device, how, str(tmp_path)) for how in ("whole", "parts", "files")]
    found = launcher.run_each(use_store, cases, env=ENV)
    for results, places, no_copies, error in itertools.chain.from_iterable(found):
        assert all(results)
        assert no_copies  # loaders read where the rows are
        assert places == {place}
        assert ("Expected distributed=True" in error) == (place == "distributed")


def put_as_they_are():
    import whole_graph_stand_in

    whole_graph_stand_in.install()
    x = tensors()["x"]
    found, store = [], manyhop_pyg.FeatureStore()
    for kind in ("continuous", "distributed"):
        memory = WholeMemory(tuple(x.shape), x.dtype, kind=kind, name=kind)
        memory.copy_from(x)
        store.put_tensor(memory, group_name=None, attr_name=kind, index=None)
        found.append(torch.equal(store.get_tensor(group_name=None, attr_name=kind, index=None), x))
    store.put_tensor(memory.rows(), group_name=None, attr_name="rows", index=None)
    found.append(all(isinstance(rows, DistributedRows) for rows in store.distributed_rows))
    found.append(torch.equal(store.get_tensor(group_name=None, attr_name="rows", index=torch.tensor([3])), x[[3]]))

    class Other:
        def __dlpack__(self, **_):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    store.put_tensor(Other(), group_name=None, attr_name="other", index=None)
    found.append(store.get_tensor(group_name=None, attr_name="other", index=None).data_ptr() == x.data_ptr())
    store.put_tensor(x.__dlpack__(), group_name=None, attr_name="capsule", index=None)
    found.append(torch.equal(store.get_tensor(group_name=None, attr_name="capsule", index=None), x))
    return found


def test_what_is_in_its_place_already(launcher):
    for found in launcher.run(put_as_they_are, world_size=2, env=ENV):
        assert found == [True] * 6


def test_files_stay_files(tmp_path):
    x = tensors()["x"]
    np.save(tmp_path / "x.npy", x.numpy())
    store = manyhop_pyg.FeatureStore(placement="mapped")
    store.put_tensor(manyhop.files.open(tmp_path / "x.npy"), group_name=None, attr_name="x", index=None)
    store.put_tensor(np.load(tmp_path / "x.npy", mmap_mode="r"), group_name=None, attr_name="z", index=None)
    for name in ("x", "z"):
        rows = store.get_tensor(group_name=None, attr_name=name, index=torch.tensor([4, 2]))
        assert torch.equal(torch.as_tensor(rows), x[[4, 2]])
    with pytest.raises(FeatureError, match="in files"):
        store.put_tensor(x, group_name=None, attr_name="w", index=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"placement": "moon"}, "placement to be one of"),
        ({"placement": "process", "device": "cuda"}, "Expected device='cuda' with placement='pinned'"),
        ({"placement": "device", "device": "cpu"}, "got placement='device' and device='cpu'"),
        ({"placement": "mapped", "rank_timeout": 3.0}, "rank_timeout only if ranks share"),
        ({"placement": "sharded", "device": "cuda", "cache": 0.1}, "Expected cache only"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match=message):
        manyhop_pyg.FeatureStore(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize("store", [manyhop_pyg.FeatureStore, manyhop_pyg.GraphStore])
def test_places_of_gpus_need_one(store):
    with pytest.raises(InputError, match="Expected a GPU for placement='pinned'"):
        store(placement="pinned")


def edges_in_their_place(place):
    import whole_graph_stand_in

    binding = whole_graph_stand_in.install()
    store, _, given = make_store("shared", None, "whole")
    edges = manyhop_pyg.GraphStore(placement=place)
    edges.put_edge_index(tuple(given["edges"]), edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    options = {"seed": 1, "batch_size": 50, "input_nodes": torch.arange(NUM_NODES)}
    message = ""
    if place == "sharded":
        try:
            manyhop_pyg.NeighborLoader((store, edges), [4], **options)
        except InputError as error:
            message = str(error)
    results, places, made = [], set(), []
    for _ in range(2):  # the store keeps the topology of a loader that is gone
        loader = manyhop_pyg.NeighborLoader((store, edges), [4, 3], distributed=True, rank_timeout=100.0, **options)
        results.append(right(loader, given))
        places.add(loader.placement.topology.place)
        assert "placement: topology" in str(loader.stats())
        made.append(binding.made)
        del loader
    if manyhop.init().rank == 0:
        alone = manyhop_pyg.NeighborLoader((store, edges), [4], **options)
        results.append(right(alone, given))
        places.add(alone.placement.topology.place)
    return results, places, made, message


@pytest.mark.parametrize("place", ["pinned", "device", "sharded", "auto"])
def test_a_topology_in_every_place(launcher, place):
    for results, places, made, message in launcher.run(edges_in_their_place, place, world_size=2, env=ENV):
        assert all(results)
        assert places == {"device" if place == "auto" else place}
        assert made == ([1, 1] if place == "sharded" else [0, 0])
        assert ("that all ranks have sharded" in message) == (place == "sharded")


def share_and_open(place, device, folder):
    import whole_graph_stand_in
    from torch_geometric.data import Data

    whole_graph_stand_in.install()
    given = tensors()
    data = Data(x=given["x"], y=given["y"], edge_index=given["edges"])
    if manyhop.init().rank == 0:
        manyhop_pyg.save(data, folder)
    options = {"seed": 1, "batch_size": 50, "input_nodes": torch.arange(NUM_NODES), "distributed": True}
    manyhop.ranks.control.exchange("saved", {}, timeout=200)
    stores = manyhop_pyg.open(folder, placement=place, device=device)
    loader = manyhop_pyg.NeighborLoader(stores, [4, 3], rank_timeout=100.0, **options)
    results, places = [right(loader, given)], {loader.placement.place_of("'x'")}
    ours, edges = manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    for name in ("x", "y"):
        ours.put_tensor(given[name], group_name=None, attr_name=name, index=None)
    edges.put_edge_index(tuple(given["edges"]), edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    shared = [manyhop_pyg.share(lambda: (ours, edges), placement=place, device=device)]
    if place != "distributed":
        shared.append(manyhop_pyg.share(lambda: data, placement=place, device=device))
    topologies = []
    for each in shared:
        loader = manyhop_pyg.NeighborLoader(each, [4, 3], rank_timeout=100.0, **options)
        results.append(right(loader, given))
        places.add(next(c.place for c in loader.placement.features if c.item.name.strip("'") == "x"))
        topologies.append(loader.placement.topology.place)
    whole = shared[0][0].get_tensor(group_name=None, attr_name="y", index=None)
    results.append(torch.equal(whole, given["y"]))  # without the other ranks
    return results, places, topologies[0]


@pytest.mark.parametrize(("place", "device"), PLACES)
def test_share_and_open(launcher, tmp_path, place, device):
    for results, places, topology in launcher.run(
        share_and_open, place, device, str(tmp_path / "g"), world_size=2, env=ENV
    ):
        assert all(results)
        assert places == {place}
        assert topology == (place if place != "distributed" else "device")


def split_by_hand():
    import os

    import whole_graph_stand_in
    from torch_geometric.data import Data

    binding = whole_graph_stand_in.install()
    os.environ["MANYHOP_PLACEMENT"] = "sharded"
    given, world = tensors(), manyhop.init()
    data = Data(x=given["x"], y=given["y"], edge_index=given["edges"])
    seeds = torch.arange(NUM_NODES).split(151)[world.rank]
    train = manyhop_pyg.NeighborLoader(data, [4, 3], input_nodes=seeds, batch_size=10, seed=1)
    results, places, made = [right(train, given)], [c.place for c in train.placement.features], binding.made
    if world.rank == 0:
        results.append(right(manyhop_pyg.NeighborLoader(data, [4], input_nodes=seeds, batch_size=50, seed=1), given))
    return results, places, made, binding.made


def test_a_script_that_splits_seeds_by_hand_shards(launcher):
    for results, places, made, at_last in launcher.run(split_by_hand, world_size=2, env=ENV):
        assert all(results)
        assert (places, made, at_last) == (["sharded"] * 2, 2, 2)


def peak_while_putting(place, how, path):
    import whole_graph_stand_in

    whole_graph_stand_in.install()
    rank, rows = manyhop.init().rank, manyhop.files.open(path)
    middle = len(rows.mapped()) // 2
    begin, end = (middle * rank, middle * (rank + 1)) if how == "parts" else (0, 2 * middle)
    given = rows if how == "files" else rows.read(begin, end)
    index = slice(begin, end) if how == "parts" else None
    store = manyhop_pyg.FeatureStore(placement=place, device="cuda" if place == "sharded" else None)
    store.put_tensor(torch.zeros(10), group_name=None, attr_name="small", index=None)  # imports all that is needed
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak_bytes()
    store.put_tensor(given, group_name=None, attr_name="x", index=index)
    after = peak_bytes()
    manyhop.ranks.control.exchange("read", {}, timeout=200)
    return after - before, rows.nbytes, store.get_tensor(group_name=None, attr_name="x", index=7).tolist()[:2]


def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """A file of 256 MiB whose number ``i`` is ``i``."""
    path = tmp_path_factory.mktemp("large") / "x.npy"
    np.save(path, np.arange(64 << 20, dtype=np.float32).reshape(-1, 64))
    return str(path)


@pytest.mark.parametrize(
    ("place", "how"),
    [("shared", "whole"), ("pinned", "parts"), ("sharded", "files")],
)
@pytest.mark.slow
def test_rows_come_into_their_place_once_per_node(launcher, large_file, place, how):
    """One rank touches all of the memory when it makes it, the other one the part that it fills: 1.5 times in all.

    What ranks have before does not count.
    """
    results = launcher.run(peak_while_putting, place, how, large_file, world_size=2, env=ENV)
    assert [row for _, _, row in results] == [[448.0, 449.0]] * 2
    nbytes = results[0][1]
    assert sum(peak for peak, _, _ in results) / nbytes < 1.75  # 2, if there were a copy for each, or one on the way
