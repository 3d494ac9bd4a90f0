"""What is compiled beside the sampler's kernels when a loader on a GPU is made; a stand-in samples, on the CPU."""

import threading

import pytest
from grouped import StandIn
from helpers_pyg import stores_of

from manyhop.loading.gpu import warm_up
from manyhop_pyg import HGTLoader, LinkNeighborLoader, NeighborLoader
from manyhop_pyg.loaders.adapter import Batches

KINDS = ["nodes", "links", "hgt", "stores", "bidirectional"]


def make_loader(kind, data, hetero, **options):
    options |= {"batch_size": 8, "seed": 1}
    if kind == "hgt":
        return HGTLoader(hetero, [3, 2], "paper", **options)
    if kind == "links":
        return LinkNeighborLoader(data, [3, 2], neg_sampling="binary", **options)
    if kind == "bidirectional":
        options["subgraph_type"] = kind
    if kind == "stores":
        return NeighborLoader(stores_of(data), [3, 2], **options)
    return NeighborLoader(data, [3, 2], **options)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_nothing_are_gathered_in_a_thread(data, hetero, on_gpu, monkeypatch, kind):
    seen, join = [], Batches.assemble_group

    def spy(self, samples, turns):
        batches, nbytes = made = join(self, samples, turns)
        if threading.current_thread() is not threading.main_thread():
            seen.append((threading.current_thread().name, len(batches), nbytes))
        return made

    monkeypatch.setattr(Batches, "assemble_group", spy)
    on_gpu()
    make_loader(kind, data, hetero)
    assert seen == [("manyhop-compile", count, 0) for count in (1, 4, 16)]


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_around_nodes_begins_while_inputs_are_looked_up(data, hetero, on_gpu, kind):
    on_gpu()
    make_loader(kind, data, hetero)
    assert ("manyhop-compile" in StandIn.threads) == (kind != "links")


def test_what_fails_there_is_left_to_the_batches(data, hetero, on_gpu, monkeypatch):
    monkeypatch.setattr(warm_up, "_gather", lambda *_: 1 // 0)
    monkeypatch.setattr(warm_up, "_begin", lambda *_: 1 // 0)
    on_gpu()
    assert len(list(make_loader("nodes", data, hetero))) == 8


def test_no_few_batches_of_a_group_are_joined_by_themselves(data, on_gpu):
    on_gpu()
    gpu = make_loader("nodes", data, None)._gpu
    gpu.learn_size(1)
    assert [gpu.joined_at_once(left) for left in (11, 16, 17, 24, 25, 32)] == [11, 16, 17, 24, 16, 16]
