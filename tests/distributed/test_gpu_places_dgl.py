"""Graphs of DGL and datasets of GraphBolt in every place that GPUs read; as test_gpu_places.py, without GPUs."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ENV, NUM_NODES, PLACES, tensors

import manyhop
from manyhop.errors import FeatureError, InputError

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]


def use_dgl(place, device, how, folder):
    import whole_graph_stand_in

    import manyhop_dgl
    from manyhop_dgl.loader import loader as loaders

    binding = whole_graph_stand_in.install()
    loaders.DataLoader._samples_on_gpu = lambda self: True
    given, world = tensors(), manyhop.init()
    begin, end = [(200, NUM_NODES), (0, 200)][world.rank]
    mine = given["edges"][:, :1000] if world.rank == 0 else given["edges"][:, 1000:]
    g = manyhop_dgl.Graph(tuple(mine), NUM_NODES, placement=place, device=device)
    if how == "whole":
        g.ndata["x"] = given["x"]
    elif how == "parts":
        g.put_rows("x", given["x"][begin:end], begin=begin)
    else:
        g.ndata["x"] = manyhop.files.open(f"{folder}/x.npy")
    made, results, places = binding.made, [], []

    def loader(**options):
        sampler = manyhop_dgl.NeighborSampler([4, 3], prefetch_node_feats=["x"])
        options |= {"output": "tensors", "batch_size": 50}
        return manyhop_dgl.DataLoader(g, torch.arange(NUM_NODES), sampler, **options)

    for _ in range(2):
        each = loader(use_ddp=True, ddp_seed=1)
        results += [torch.equal(b.node_features["x"], given["x"][b.input_nodes]) for b in each]
        places.append([each.placement.topology.place, *[choice.place for choice in each.placement.features]])
    if place != "distributed" and world.rank == 0:
        results += [torch.equal(b.node_features["x"], given["x"][b.input_nodes]) for b in loader()]
    return results, places, binding.made - made


@pytest.mark.parametrize(("place", "device"), PLACES)
def test_a_graph_of_dgl_in_every_place(launcher, tmp_path, place, device):
    np.save(tmp_path / "x.npy", tensors()["x"].numpy())
    topology = place if place != "distributed" else "device"
    cases = [(place, device, how, str(tmp_path)) for how in ("whole", "parts", "files")]
    for results, places, made in itertools.chain.from_iterable(launcher.run_each(use_dgl, cases, env=ENV)):
        assert all(results)
        assert len(results) > 6
        assert places == [[topology, place]] * 2
        assert made == (place == "sharded")  # the topology, once


def share_dgl(place, device):
    import whole_graph_stand_in

    import manyhop_dgl
    from manyhop.memory.stores import is_held
    from manyhop_dgl.loader import loader as loaders

    whole_graph_stand_in.install()
    loaders.DataLoader._samples_on_gpu = lambda self: (place, device) != ("sharded", None)
    given = tensors()

    def load():
        g = manyhop_dgl.Graph(tuple(given["edges"]), NUM_NODES)
        g.ndata["x"], g.ndata["y"] = given["x"], given["y"]
        return g, "split"

    g, split = manyhop_dgl.share(load, placement=place, device=device)
    sampler = manyhop_dgl.NeighborSampler([4, 3], prefetch_node_feats=["x"])
    loader = manyhop_dgl.DataLoader(
        g, torch.arange(NUM_NODES), sampler, batch_size=50, output="tensors", use_ddp=True, ddp_seed=1
    )
    right = [torch.equal(b.node_features["x"], given["x"][b.input_nodes]) for b in loader]
    x = g.ndata["x"]
    return right, type(x).__name__, is_held(x), split, torch.equal(g.ndata["y"], given["y"])


SHARED = [
    ("sharded", None, "Tensor", False),  # over one node
    ("pinned", None, "Tensor", True),
    ("device", None, "Tensor", True),
    ("sharded", "cuda", "Tensor", True),
    ("distributed", None, "DistributedRows", True),
]


def test_a_shared_graph_of_dgl_in_a_place(launcher):
    found = launcher.run_each(share_dgl, [case[:2] for case in SHARED], env=ENV)
    for (*_, kind, held), ranks in zip(SHARED, found, strict=True):
        for right, *others in ranks:
            assert all(right)
            assert len(right) > 2
            assert others == [kind, held, "split", True]


def test_what_is_shared_has_a_graph_to_place():
    import manyhop_dgl

    with pytest.raises(InputError, match=r"Expected a manyhop_dgl.Graph.*got dict.*Graph.from_dgl"):
        manyhop_dgl.share(dict, placement="sharded")
    with pytest.raises(InputError, match="a placement that ranks share, got 'mapped'"):
        manyhop_dgl.share(dict, placement="mapped")


def make_dataset(folder):
    given = tensors()
    folder.mkdir()
    np.save(folder / "x.npy", given["x"].numpy())
    np.save(folder / "y.npy", given["y"].numpy())
    np.save(folder / "edges.npy", given["edges"].numpy())
    torch.save(given["x"].flip(0), folder / "z.pt")
    (folder / "metadata.yaml").write_text(
        f"""
dataset_name: small
graph:
  nodes: [{{num: {NUM_NODES}}}]
  edges: [{{format: numpy, path: edges.npy}}]
feature_data:
  - {{domain: node, name: x, format: numpy, path: x.npy}}
  - {{domain: node, name: y, format: numpy, path: y.npy, in_memory: false}}
  - {{domain: node, name: z, format: torch, path: z.pt}}
"""
    )


def use_graphbolt(place, device, folder):
    import whole_graph_stand_in

    import manyhop_dgl.graphbolt as gb
    from manyhop.memory.stores import is_held, topology_place

    binding = whole_graph_stand_in.install()
    dataset = gb.OnDiskDataset(folder, placement=place, device=device).load()
    given, index = tensors(), torch.tensor([7, 0, 300])
    given |= {"y": given["y"].view(-1, 1), "z": given["x"].flip(0)}
    features = [dataset.feature["node", None, name] for name in ("x", "y", "z")]
    results = [torch.equal(f.read(index), given[name][index]) for f, name in zip(features, "xyz", strict=True)]
    results += [is_held(feature.table()) for feature in features]
    places = [topology_place(graph.topology().graph).place for graph in (dataset.graph, remade(dataset.graph, place))]
    return results, places, binding.made


def remade(graph, place):
    """The same graph, of its tensors, by way of a file of torch."""
    import io

    import manyhop_dgl.graphbolt as gb

    made = gb.fused_csc_sampling_graph(graph.csc_indptr, graph.indices, placement=place)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(("place", "device"), PLACES[:3])
def test_a_dataset_of_graphbolt_in_its_place(launcher, tmp_path, place, device):
    make_dataset(tmp_path / "small")
    for results, places, made in launcher.run(
        use_graphbolt, place, device, str(tmp_path / "small"), world_size=2, env=ENV
    ):
        assert results == [True] * 6
        assert places == [place] * 2
        assert made == (3 if place == "sharded" else 0)


def share_graphbolt(folder):
    import manyhop_dgl.graphbolt as gb
    from manyhop.memory.mapped_files import identity

    dataset = gb.OnDiskDataset(folder, placement="shared").load()
    shared = [dataset.graph.indices, *[dataset.feature["node", None, name].table() for name in ("x", "y", "z")]]
    given, index = tensors(), torch.tensor([7, 0, 300])
    torch.distributed.barrier()  # a rank that ends takes the memory with it that nobody has asked for yet
    return [identity(tensor) for tensor in shared], torch.equal(shared[1][index], given["x"][index])


def test_a_dataset_of_graphbolt_once_per_node(launcher, tmp_path):
    make_dataset(tmp_path / "small")
    (first, right_first), (second, right_second) = launcher.run(share_graphbolt, str(tmp_path / "small"), world_size=2)
    assert first == second
    assert None not in first
    assert right_first
    assert right_second


def test_files_of_graphbolt_stay_files(tmp_path):
    from manyhop.memory.mapped_files import reside_in_files
    from manyhop_dgl.graphbolt import OnDiskDataset, TorchBasedFeature

    make_dataset(tmp_path / "small")
    dataset = OnDiskDataset(tmp_path / "small", placement="mapped").load()
    tables = [dataset.feature["node", None, name].table() for name in ("x", "y", "z")]
    assert reside_in_files([table.data_ptr() for table in tables]) == [True] * 3
    feature = TorchBasedFeature(manyhop.files.open(tmp_path / "small" / "x.npy"), placement="mapped")
    assert reside_in_files([feature.table().data_ptr()]) == [True]
    with pytest.raises(FeatureError, match="Expected a feature in a file"):
        TorchBasedFeature(tensors()["x"], placement="mapped")


def test_a_sampling_graph_is_not_distributed():
    import manyhop_dgl.graphbolt as gb

    with pytest.raises(InputError, match="placement to be one of"):
        gb.fused_csc_sampling_graph(torch.tensor([0, 1]), torch.tensor([0]), placement="distributed")
