"""Arguments of the wrong kind are errors that name them, in DGL's and in GraphBolt's interface."""

import pytest
import torch

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError
from manyhop_dgl import (
    DataLoader,
    GlobalUniform,
    Graph,
    LaborSampler,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    sample_tensors,
)

pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

EDGES = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(use_ddp="no"), "use_ddp to be True or False"),
        (dict(drop_last="no"), "drop_last to be True or False"),
        (dict(shuffle="no"), "shuffle to be True or False"),
        (dict(use_uva="no"), "use_uva to be True or False"),
        (dict(use_prefetch_thread="no"), "use_prefetch_thread to be True or False"),
        (dict(use_alternate_streams="no"), "use_alternate_streams to be True or False"),
        (dict(persistent_workers="no"), "persistent_workers to be True or False"),
        (dict(ddp_seed="x"), "ddp_seed to be an integer, got 'x'"),
        (dict(use_ddp=True, rank_timeout="5"), "rank_timeout in seconds, more than 0, got '5'"),
        (dict(use_ddp=True, rank_timeout=1e300), "rank_timeout in seconds, at most 100000000, got 1e"),
        (dict(num_workers="2"), "num_workers to be an integer of at least 0, got '2'"),
        (dict(num_workers=1, prefetch_factor=2.5), "prefetch_factor to be an integer of at least 1, got 2.5"),
        (dict(num_workers=1, timeout="5"), "timeout in seconds, at least 0, got '5'"),
        (dict(num_workers=1, worker_init_fn=3), "worker_init_fn to be a function, got 3"),
        (dict(generator=3), "generator to be a torch.Generator, got 3"),
    ],
    ids=str,
)
def test_arguments_of_the_loader(arguments, message):
    with pytest.raises(InputError, match=message):
        DataLoader(Graph(EDGES), torch.arange(6), NeighborSampler([2]), batch_size=2, **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NeighborSampler([2], replace="no"), "replace to be True or False"),
        (lambda: NeighborSampler([2], fused="no"), "fused to be True or False"),
        (lambda: MultiLayerFullNeighborSampler(True), "num_layers to be an integer, got True"),
        (lambda: LaborSampler([2], layer_dependency="no"), "layer_dependency to be True or False"),
        (lambda: LaborSampler([2], importance_sampling=True), "importance_sampling to be an integer of"),
        (lambda: GlobalUniform(2, exclude_self_loops="no"), "exclude_self_loops to be True or False"),
        (lambda: GlobalUniform(2, replace="no"), "replace to be True or False"),
        (lambda: GlobalUniform(True), "negatives per edge to be an integer of at least 0, got True"),
        (lambda: Graph(EDGES).save("never", crc32="no"), "crc32 to be True or False"),
        (lambda: sample_tensors(Graph(EDGES), [2], torch.tensor([0]), replace="no"), "replace to be True or False"),
        (lambda: Graph.open(3), "folder as a path, got 3"),
        (lambda: Graph.open("never", idtype="x"), "idtype torch.int32 or torch.int64, got 'x'"),
        (lambda: Graph(EDGES, idtype="x"), "idtype torch.int32 or torch.int64, got 'x'"),
        (lambda: NeighborSampler([2], output_device="moon"), "output_device to be 'cuda', .* got 'moon'"),
        (lambda: LaborSampler([2], output_device="moon"), "output_device to be 'cuda', .* got 'moon'"),
    ],
)
def test_arguments_of_samplers_and_graphs(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", ["loader_cores", "compute_cores"])
@pytest.mark.parametrize("cores", ["x", 3, ["0"]], ids=str)
def test_cores(name, cores):
    loader = DataLoader(Graph(EDGES), torch.arange(6), NeighborSampler([2]), num_workers=1)
    with pytest.raises(InputError, match=f"{name} as a list of cores, got"):
        loader.enable_cpu_affinity(**{name: cores}).__enter__()


ITEMS = gb.ItemSet(torch.arange(6), names="seeds")
GRAPH = gb.fused_csc_sampling_graph(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gb.ItemSampler(ITEMS, 2, shuffle="no"), "shuffle to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2, drop_last="no"), "drop_last to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2, minibatcher=3), "minibatcher to be a function, got 3"),
        (lambda: gb.ItemSampler(ITEMS, 2, seed="x"), "seed to be an integer, got 'x'"),
        (lambda: gb.ItemSampler(ITEMS, 2).sample_neighbor(GRAPH, [2], replace="no"), "replace to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2).sample_neighbor(GRAPH, [2], deduplicate="no"), "deduplicate to be True"),
        (lambda: gb.ItemSampler(ITEMS, 2).sample_uniform_negative(GRAPH, True), "got True"),
        (lambda: gb.ItemSampler(ITEMS, 2).exclude_seed_edges("no"), "include_reverse_edges to be True or False"),
        (lambda: gb.DataLoader(gb.ItemSampler(ITEMS, 2), num_workers="2"), "num_workers to be an integer of at least"),
        (lambda: gb.DataLoader(gb.ItemSampler(ITEMS, 2), persistent_workers="no"), "persistent_workers to be True"),
        (lambda: gb.DataLoader(gb.ItemSampler(ITEMS, 2), overlap_feature_fetch="no"), "overlap_feature_fetch to be"),
        (lambda: gb.OnDiskDataset(3), "path as a path, got 3"),
        (lambda: gb.preprocess_ondisk_dataset(None), "dataset_dir as a path, got None"),
    ],
)
def test_arguments_of_graphbolt(make, message):
    with pytest.raises(InputError, match=message):
        make()
