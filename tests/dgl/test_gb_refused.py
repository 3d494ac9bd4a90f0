"""What new users pass by mistake: refused at once, with what was expected and what to do."""

import itertools

import pytest
import torch
from gb_graphs import batches, random_graph
from torch.utils.data import IterDataPipe

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def nodes(items=None):
    return batches("seeds", torch.arange(8) if items is None else items)


class OtherGraph:
    """What looks like DGL's own graph."""

    canonical_etypes = (("_N", "_E", "_N"),)

    def sample_neighbors(self):
        raise NotImplementedError


GRAPH, ITEMS = random_graph(), gb.ItemSet(torch.arange(6), names="seeds")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gb.ItemSampler(ITEMS, 2, shuffle="no"), "shuffle to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2, drop_last="no"), "drop_last to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2, minibatcher=3), "minibatcher to be a function, got 3"),
        (lambda: gb.ItemSampler(ITEMS, 2, seed="x"), "seed to be an integer, got 'x'"),
        (lambda: nodes().sample_neighbor(GRAPH, [2], replace="no"), "replace to be True or False"),
        (lambda: nodes().sample_neighbor(GRAPH, [2], deduplicate="no"), "deduplicate to be True"),
        (lambda: nodes().sample_uniform_negative(GRAPH, True), "got True"),
        (lambda: nodes().exclude_seed_edges("no"), "include_reverse_edges to be True or False"),
        (lambda: gb.DataLoader(nodes(), num_workers="2"), "num_workers to be an integer of at least"),
        (lambda: gb.DataLoader(nodes(), persistent_workers="no"), "persistent_workers to be True"),
        (lambda: gb.DataLoader(nodes(), overlap_feature_fetch="no"), "overlap_feature_fetch to be"),
        (lambda: gb.OnDiskDataset(3), "path as a path, got 3"),
        (lambda: gb.preprocess_ondisk_dataset(None), "dataset_dir as a path, got None"),
        (lambda: nodes().sample_neighbor(GRAPH, 5), "at least one fanout, one per layer, got 5"),
        (lambda: nodes().sample_neighbor(GRAPH, [2], prob_name=torch.ones(400)), "prob_name as the name of an edge"),
        (lambda: nodes().sample_uniform_negative(GRAPH, "2"), "negative_ratio to be an integer of at least 1, got '2'"),
        (lambda: nodes().copy_to("cpu", extra_attrs="seeds"), "extra_attrs as a list of names, got 'seeds'"),
        (lambda: nodes().copy_to("mars"), "device to be 'cuda', 'cuda:0' or 'cpu', got 'mars'"),
        (lambda: gb.DataLoader([1, 2]), "Expected a pipe"),
        (lambda: gb.DataLoader(nodes(), num_workers=-1), "num_workers to be an integer of at least 0"),
        (lambda: gb.DataLoader(nodes(), max_uva_threads=0), "max_uva_threads to be an integer of at least 1, got 0"),
        (lambda: gb.DataLoader(nodes(), num_gpu_cached_edges="x"), "num_gpu_cached_edges to be an integer of at least"),
    ],
)
def test_arguments(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("stage", "args"),
    [
        ("sample_neighbor", ([2],)),
        ("sample_layer_neighbor", ([2],)),
        ("temporal_sample_neighbor", ([2],)),
        ("sample_uniform_negative", (2,)),
    ],
)
def test_what_is_no_graph(stage, args):
    with pytest.raises(InputError, match=r"Expected a FusedCSCSamplingGraph.* got a NoneType"):
        getattr(nodes(), stage)(None, *args)


def test_graphs_of_dgl_itself():
    with pytest.raises(InputError, match=r"got a OtherGraph\. Pass gb\.from_dglgraph\(g\)"):
        nodes().sample_neighbor(OtherGraph(), [2])
    with pytest.raises(InputError, match=r"a dgl\.DGLGraph, got a NoneType"):
        gb.from_dglgraph(None)


@pytest.mark.parametrize("store", [None, torch.rand(60, 2), {("node", None, "feat"): torch.rand(60, 2)}], ids=type)
def test_what_is_no_feature_store(store):
    with pytest.raises(InputError, match=r"Expected a FeatureStore.* got a .*BasicFeatureStore\(\{"):
        nodes().sample_neighbor(random_graph(), [2]).fetch_feature(store, node_feature_keys=["feat"])


def test_seeds_that_are_no_ids():
    graph = random_graph()
    for items, message in (
        (torch.ones(60, dtype=torch.bool), r"Expected seeds as ids, got torch\.bool.*mask\.nonzero"),
        (torch.ones(60, dtype=torch.uint8), r"Expected seeds as ids, got torch\.uint8.*mask\.nonzero"),
        (torch.rand(4), r"Expected seeds as ids, got torch\.float32"),
    ):
        with pytest.raises(InputError, match=message):
            next(iter(nodes(items).sample_neighbor(graph, [2])))


@pytest.mark.filterwarnings("ignore:Failed to map item list")
def test_items_without_names():
    pipe = batches(None, torch.arange(8)).sample_neighbor(random_graph(), [2])
    with pytest.raises(InputError, match=r"Expected a MiniBatch to sample for, got a Tensor.*names='seeds'"):
        next(iter(gb.DataLoader(pipe)))


def test_a_gpu_that_is_missing():
    with pytest.raises(InputError, match=r"an available device, got 'cuda:99'"):
        next(iter(gb.DataLoader(nodes().copy_to("cuda:99"))))


def test_layer_neighbours_with_replacement_on_a_gpu():
    topology = random_graph().topology_for([2])
    with pytest.raises(InputError, match=r"replace=False for layer-neighbour sampling on cuda.* after sampling"):
        topology.sampler(topology.layer_spec([2], replace=True), torch.device("cuda"))


@pytest.mark.parametrize("name", ["buffer", "wait", "sample_in_subgraph", "temporal_sample_layer_neighbor"])
def test_stages_without_users(name):
    assert not hasattr(nodes(), name)
    with pytest.raises(AttributeError, match=f"{name} is not part of manyhop's GraphBolt. Use "):
        getattr(nodes(), name)


@pytest.mark.parametrize("base", [gb.SubgraphSampler, gb.NeighborSampler])
def test_stages_of_a_samplers_layers(base):
    sampler = type("Mine", (base,), {"sampling_stages": None})
    with pytest.raises(InputError, match="Expected Mine to define sample_subgraphs, got sampling_stages"):
        sampler(nodes(), GRAPH, [2]) if base is gb.NeighborSampler else sampler(nodes())


@pytest.mark.parametrize("name", ["LegacyDataset", "index_select", "load_from_shared_memory"])
def test_names_without_users(name):
    with pytest.raises(AttributeError, match=f"{name} is not part of manyhop's GraphBolt. Use "):
        getattr(gb, name)


class Halves(IterDataPipe):
    """A pipe that drops every other minibatch."""

    def __init__(self, datapipe):
        self.before = datapipe

    def __iter__(self):
        yield from itertools.islice(self.before, 0, None, 2)


class Backwards(gb.ItemSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


@pytest.mark.parametrize(
    ("pipe", "name"),
    [
        (Halves(nodes()).sample_neighbor(random_graph(), [2]), "Halves"),
        (nodes().sample_neighbor(random_graph(), [2]).filter(bool), "FilterIterDataPipe"),
        (Backwards(gb.ItemSet(8, names="seeds"), 2), "Backwards"),
    ],
    ids=["pipe", "filter", "sampler"],
)
def test_chains_of_pipes_that_change_minibatches(pipe, name):
    with pytest.raises(InputError, match=f"stages that handle minibatches one by one, got a {name}. Use transform"):
        gb.DataLoader(pipe)
    assert len(list(pipe)) > 0  # without a loader


LINKS = torch.arange(8).view(2, 4)


def test_hyperlinks_and_other_names_that_are_not_supported():
    for seeds, shape in ((LINKS, r"\[2, 4\]"), (LINKS.view(2, 2, 2), r"\[2, 2, 2\]")):
        with pytest.raises(InputError, match=rf"or \[n, 2\] \(edges\), got {shape}. Cut hyperlinks into pairs"):
            list(batches("seeds", seeds).sample_neighbor(random_graph(), [2]))
    with pytest.raises(InputError, match=r"\[num_pairs, 2\] to draw negatives for, got \[2, 4\]"):
        list(batches("seeds", LINKS).sample_uniform_negative(random_graph(), 1))
    with pytest.raises(InputError, match=r"'source:relation:destination', got \['user', 'likes', 'item'\]"):
        gb.etype_str_to_tuple(["user", "likes", "item"])
    with pytest.raises(AttributeError, match=r"has no 'OnDiskMetaData'. docs/dgl/graphbolt-names.md lists"):
        gb.OnDiskMetaData  # noqa: B018
