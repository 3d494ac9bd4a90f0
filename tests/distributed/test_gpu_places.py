"""Stores in every place that GPUs read, filled in every way. Ranks without GPUs: their memory is that of the host."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import manyhop
import manyhop_pyg
from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, WholeMemory

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
ENV = {"TRITON_INTERPRET": "1"}
PLACES = [("pinned", None), ("device", None), ("sharded", "cuda"), ("distributed", None)]
NUM_NODES = 301


def tensors():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_NODES, 12, generator=generator)
    return {"x": x, "y": torch.arange(NUM_NODES), "edges": torch.randint(0, NUM_NODES, (2, 3000), generator=generator)}


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


def right(loader, given):
    checks = []
    for batch in loader:
        checks += [torch.equal(batch.x, given["x"][batch.n_id]), torch.equal(batch.y, given["y"][batch.n_id])]
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
        manyhop_pyg.NeighborLoader((store, edges), [4, 3], distributed=True, rank_timeout=20.0, **options)
        for _ in range(3)
    ]
    results += [right(loader, given) for loader in loaders]
    places = {loader._gpu.memory.placement.place_of("'x'") for loader in loaders}
    links = manyhop_pyg.LinkNeighborLoader(
        (store, edges), [3], edge_label_index=(None, given["edges"][:, :100]), distributed=True, batch_size=10, seed=1
    )
    results.append(right(links, given))
    if place != "distributed" and rank == 0:
        results.append(right(manyhop_pyg.NeighborLoader((store, edges), [4], **options), given))
    error = ""
    if place == "distributed":
        try:
            manyhop_pyg.NeighborLoader((store, edges), [4], **options)
        except InputError as found:
            error = str(found)
    return results, places, made == binding.made, error


@pytest.mark.parametrize("how", ["whole", "parts", "files"])
@pytest.mark.parametrize(("place", "device"), PLACES)
def test_every_place_gives_the_right_rows(launcher, tmp_path, place, device, how):
    given = tensors()
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", given[name].numpy())
    for results, places, no_copies, error in launcher.run(
        use_store, place, device, how, str(tmp_path), world_size=2, env=ENV
    ):
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
    chunked = WholeMemory(tuple(x.shape), x.dtype, kind="chunked", name="chunks")
    try:
        store.put_tensor(chunked, group_name=None, attr_name="chunks", index=None)
    except FeatureError as error:
        found.append("'continuous' or 'distributed'" in str(error))
    return found


def test_what_is_in_its_place_already(launcher):
    for found in launcher.run(put_as_they_are, world_size=2, env=ENV):
        assert found == [True] * 7


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
        ({"placement": "mapped", "rank_timeout": 3.0}, "only where ranks share"),
        ({"placement": "sharded", "device": "cuda", "cache": 0.1}, "Expected cache only"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match=message):
        manyhop_pyg.FeatureStore(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_places_of_gpus_need_one():
    with pytest.raises(InputError, match="Expected a GPU for placement='pinned'"):
        manyhop_pyg.FeatureStore(placement="pinned")
