"""Minibatches that are sampled in groups, as on a GPU; here, a stand-in samples on the CPU."""

import threading

import pytest
import torch
from gb_graphs import batches, random_graph
from gpu_stand_ins import CPU
from group_stand_ins import gb_on_stand_in

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError
from manyhop.loading.gpu.runtime import GPURuntime

GRAPH = random_graph()


@pytest.fixture
def sizes(monkeypatch):
    """Loaders take the way of GPUs: how many minibatches each launch is for."""
    return gb_on_stand_in(monkeypatch)


def noted(minibatch):
    minibatch.noted = True
    return minibatch


def links(items=None):
    items = torch.arange(160).view(80, 2) % 60 if items is None else items
    pipe = batches("seeds", items, batch_size=5, seed=3).copy_to("cuda").transform(noted)
    return pipe.sample_uniform_negative(GRAPH, 2).sample_neighbor(GRAPH, [3, 2]).exclude_seed_edges().transform(noted)


def plain(minibatch):
    layers = [layer.original_edge_ids.tolist() for layer in minibatch.sampled_subgraphs]
    return minibatch.key, minibatch.seeds.tolist(), minibatch.input_nodes.tolist(), layers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_groups_change_nothing(sizes, num_workers):
    expected = [plain(minibatch) for minibatch in links()]
    loader = gb.DataLoader(links(), num_workers=num_workers)
    sizes.clear()
    assert [plain(minibatch) for minibatch in loader] == expected
    assert sizes == [16]  # all of them
    figures = loader.stats()
    assert (figures.batches, figures.seeds) == (16, 80)
    assert min(figures.edges, figures.nodes, figures.assemble_s) > 0
    assert [plain(loader.replay(0, number)) for number in (15, 3)] == [expected[15], expected[3]]


def test_two_samplers_in_a_chain(sizes):
    def chain():
        pipe = batches("seeds", torch.arange(60), batch_size=20, seed=3).copy_to("cuda")
        return pipe.sample_neighbor(GRAPH, [3]).transform(noted).sample_neighbor(GRAPH, [2, 2])

    def both(minibatch):
        return minibatch.input_nodes.tolist(), minibatch.num_layers()

    expected = [both(minibatch) for minibatch in chain()]
    loader = gb.DataLoader(chain(), num_workers=1)
    sizes.clear()
    assert [both(minibatch) for minibatch in loader] == expected
    assert sizes == [3]  # the second sampler works by itself


def test_threads_are_for_functions_of_the_user(sizes):
    def threads(pipe):
        before = set(threading.enumerate())
        iterator = iter(gb.DataLoader(pipe, num_workers=3))
        next(iterator)
        return len(set(threading.enumerate()) - before)

    plain = batches("seeds", torch.arange(60), batch_size=20).copy_to("cuda").sample_neighbor(GRAPH, [3])
    assert threads(plain) == 0
    assert threads(plain.transform(noted)) == 3


def store(rows):
    return gb.BasicFeatureStore(
        {
            ("node", None, "feat"): gb.TorchBasedFeature(rows),
            ("edge", None, "weight"): gb.TorchBasedFeature(torch.arange(400.0).view(400, 1)),
        }
    )


def fetched(features, num_seeds=60, batch_size=4):
    pipe = batches(("seeds", "labels"), (torch.arange(num_seeds),) * 2, batch_size=batch_size, shuffle=True, seed=3)
    pipe = pipe.copy_to("cuda").sample_neighbor(GRAPH, [3, 2])
    return pipe.fetch_feature(features, node_feature_keys=["feat"], edge_feature_keys=["weight"])


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_features_of_several_minibatches_are_gathered_at_once(sizes, num_workers, functions, monkeypatch):
    def chain():
        pipe = fetched(store(torch.rand(60, 5)))
        return pipe.transform(noted) if functions else pipe

    torch.manual_seed(0)
    expected = list(chain())
    gathers = []
    gather = GPURuntime.gather
    monkeypatch.setattr(GPURuntime, "gather", lambda self, *args: gathers.append(1) or gather(self, *args))
    torch.manual_seed(0)
    loader = gb.DataLoader(chain(), num_workers=num_workers)
    gathers.clear()
    for ours, same in zip(loader, expected, strict=True):
        assert (ours.key, repr(ours)) == (same.key, repr(same))
        assert getattr(ours, "noted", False) == functions
    assert len(gathers) == 1
    assert loader.stats().gathered_bytes == sum(
        rows.nbytes for m in expected for features in (m.node_features, *m.edge_features) for rows in features.values()
    )


def test_a_graph_that_changes_is_sampled_anew(sizes):
    graph = random_graph(weight=torch.rand(400))

    def chain():
        pipe = batches("seeds", torch.arange(60), batch_size=4, seed=3).copy_to("cuda")
        return pipe.sample_neighbor(graph, [3, 2], prob_name="weight")

    loader, pipe = gb.DataLoader(chain()), chain()
    for _ in range(2):
        made = [minibatch.input_nodes.tolist() for minibatch in loader]
        assert made == [minibatch.input_nodes.tolist() for minibatch in pipe]
        graph.edge_attributes["weight"] = torch.rand(400)


def test_a_wrong_placement():
    pipe = batches("seeds", torch.arange(60)).sample_neighbor(GRAPH, [2])
    with pytest.raises(InputError, match="placement only for minibatches that are moved to a GPU"):
        gb.DataLoader(pipe, placement="cuda-cuda")
    with pytest.raises(InputError, match="move copy_to\\('cuda'\\) to the end"):
        gb.DataLoader(fetched(store(torch.ones(60, 5))), placement="cpu-cuda")


@pytest.mark.parametrize("of_links", [False, True])
def test_minibatches_without_nodes_compile_gathers(sizes, of_links):
    features = store(torch.ones(60, 5))
    if of_links:
        pipe = batches("seeds", torch.arange(80).view(40, 2) % 60, batch_size=5).copy_to("cuda")
        pipe = pipe.sample_uniform_negative(GRAPH, 2).sample_neighbor(GRAPH, [3, 2]).exclude_seed_edges()
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
    else:
        pipe = fetched(features)
    assembler = gb.DataLoader(pipe)._adapter().assembler
    made, nbytes = assembler.assemble_group([assembler.empty(CPU), assembler.empty(CPU)], None)
    assert nbytes == 0
    assert [minibatch.node_features["feat"].shape for minibatch in made] == [(0, 5), (0, 5)]
