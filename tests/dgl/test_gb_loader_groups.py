"""Minibatches that are sampled in groups, as on a GPU: what is in them, and which fails. Streams are left out here."""

import gc
import threading
import time
import weakref
from contextlib import contextmanager

import pytest
import torch
from gb_graphs import batches, random_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError
from manyhop.pipeline import OnStream
from manyhop_dgl.graphbolt.loader import loader as loader_

GRAPH = random_graph()


class Streams:
    """Stands for those of a GPU."""

    def __init__(self, device, stats, *, backlog):
        self.device, self.stats, self.mine = device, stats, threading.local()

    def mark(self):
        assert self.mine.is_here
        return time.perf_counter()

    def took(self, times, stage, batch, start, end):
        for _ in range(times):
            self.stats.record(batch, stage, start, end)

    def take_times(self):
        pass

    @contextmanager
    def here(self):
        self.mine.is_here = True
        yield
        self.mine.is_here = False

    def begin(self):
        pass

    settle = begin

    def hand_over(self, value, *, timed=False):
        return OnStream(value, None, timed)

    def receive(self, made, tensors_of, times):
        assert any(tensor is made.value[1].input_nodes for tensor in tensors_of(made.value))
        return made.value


class Sampler:
    """A sampler that begins several requests at once."""

    def __init__(self, sampler, sizes):
        self.sampler, self.sizes = sampler, sizes

    def begin(self, requests):
        self.sizes.append(len(requests))
        return Pending(self.sampler, requests)

    def sample(self, request):
        return self.begin([request]).finish()[0]


class Pending:
    def __init__(self, sampler, requests):
        self.sampler, self.requests = sampler, requests

    def finish(self):
        return [self.sampler.sample(request) for request in self.requests]


@pytest.fixture
def sizes(monkeypatch):
    """How many minibatches each launch is for."""
    sizes, made = [], {}
    monkeypatch.setattr(loader_, "Streams", Streams)
    monkeypatch.setattr(loader_, "gpu_of", lambda parts: torch.device("cuda:0"))
    monkeypatch.setattr(gb.CopyTo, "step", lambda self, item: item)
    make = gb.ItemSampler.make_batches
    monkeypatch.setattr(gb.ItemSampler, "make_batches", lambda self, epoch, some, device: make(self, epoch, some))
    find = gb.FusedCSCSamplingGraph.topology_for

    def topology_for(self, *args, **kwargs):
        topology = find(self, *args, **kwargs)
        if id(topology) not in made:
            made[id(topology)] = topology
            of_spec, known = topology.sampler, {}
            sampler = lambda spec, device: known.setdefault(str(spec), Sampler(of_spec(spec, None), sizes))  # noqa: E731
            object.__setattr__(topology, "sampler", sampler)
        return topology

    monkeypatch.setattr(gb.FusedCSCSamplingGraph, "topology_for", topology_for)
    return sizes


def noted(minibatch):
    minibatch.noted = True
    return minibatch


def links(items=None):
    items = torch.arange(160).view(80, 2) % 60 if items is None else items
    pipe = batches("node_pairs", items, batch_size=5, seed=3).copy_to("cuda").transform(noted)
    return pipe.sample_uniform_negative(GRAPH, 2).sample_neighbor(GRAPH, [3, 2]).exclude_seed_edges().transform(noted)


def plain(minibatch):
    layers = [layer.original_edge_ids.tolist() for layer in minibatch.sampled_subgraphs]
    return minibatch.key, minibatch.negative_dsts.tolist(), minibatch.input_nodes.tolist(), layers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_groups_change_nothing(sizes, num_workers):
    expected = [plain(minibatch) for minibatch in links()]
    sizes.clear()
    loader = gb.DataLoader(links(), num_workers=num_workers)
    assert [plain(minibatch) for minibatch in loader] == expected
    assert sizes == [16]  # all of them
    figures = loader.stats()
    assert (figures.batches, figures.seeds) == (16, 80)
    assert min(figures.edges, figures.nodes, figures.sample_s, figures.assemble_s) > 0


def test_in_the_caller_the_host_times_stages(sizes):
    loader = gb.DataLoader(links(), num_workers=0, overlap_feature_fetch=False)
    assert len(list(loader)) == len(sizes) == 16
    assert loader.stats().sample_s > 0


def test_one_at_fault_fails_alone(sizes):
    items = torch.arange(160).view(80, 2) % 60
    items[47, 1] = 60
    iterator = iter(gb.DataLoader(links(items), num_workers=1))
    assert [next(iterator).key.batch for _ in range(9)] == list(range(9))
    with pytest.raises(InputError, match=r"(?s)Expected nodes in \[0, 60\).*batch 9 of epoch 0"):
        next(iterator)


def test_two_samplers_in_a_chain(sizes):
    def chain():
        pipe = batches("seeds", torch.arange(60), batch_size=20, seed=3).copy_to("cuda")
        return pipe.sample_neighbor(GRAPH, [3]).transform(noted).sample_neighbor(GRAPH, [2, 2])

    def both(minibatch):
        return minibatch.input_nodes.tolist(), minibatch.num_layers()

    expected = [both(minibatch) for minibatch in chain()]
    sizes.clear()
    assert [both(minibatch) for minibatch in gb.DataLoader(chain(), num_workers=1)] == expected
    assert sizes == [3, 1, 1, 1]


def test_minibatches_that_were_handed_out_are_not_kept(sizes):
    iterator = iter(gb.DataLoader(links(), num_workers=0))
    alive = [weakref.ref(next(iterator)) for _ in range(8)]
    gc.collect()
    assert [minibatch for minibatch in alive[:-1] if minibatch() is not None] == []
    assert sizes == [16]


def test_one_thread_is_enough_without_functions_of_the_user(sizes):
    def threads(pipe):
        before = set(threading.enumerate())
        iterator = iter(gb.DataLoader(pipe, num_workers=3))
        next(iterator)
        return len(set(threading.enumerate()) - before)

    plain = batches("seeds", torch.arange(60), batch_size=20).copy_to("cuda").sample_neighbor(GRAPH, [3])
    assert threads(plain) == 1
    assert threads(plain.transform(noted)) == 3
