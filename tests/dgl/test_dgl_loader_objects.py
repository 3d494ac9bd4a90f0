"""DGL's objects of batches that a GPU makes: those of the CPU, with all data of the graph."""

from contextlib import nullcontext

import pytest
import torch
from test_dgl_loader_tensors import graph, links, loader, on_gpu, same  # noqa: F401

from manyhop_dgl.loader.batches import Batches
from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too
from manyhop_dgl_cuda.index import TorchGraphIndex

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_blocks_of_a_gpu_are_those_of_the_cpu(on_gpu, kind):  # noqa: F811
    g = graph(kind)
    on_gpu(False)
    expected = list(loader(kind, g))
    on_gpu(True)
    for (nodes, outputs, blocks), theirs in zip(loader(kind, g), expected, strict=True):
        same(nodes, theirs[0])
        same(outputs, theirs[1])
        for mine, block in zip(blocks, theirs[2], strict=True):
            for t in block.canonical_etypes:
                assert torch.equal(mine.edges[t].data["w"], block.edges[t].data["w"])
                assert torch.equal(mine.edges[t].data[dgl.EID], block.edges[t].data[dgl.EID])
        for t in g.ntypes:
            assert torch.equal(blocks[0].srcnodes[t].data["x"], theirs[2][0].srcnodes[t].data["x"])
            assert torch.equal(blocks[1].dstnodes[t].data[dgl.NID], theirs[2][1].dstnodes[t].data[dgl.NID])
        for mine, block in zip(blocks, theirs[2], strict=True):  # data that are not prefetched, too
            frames = [made._node_frames + made._edge_frames for made in (mine, block)]
            for ours, own in zip(*frames, strict=True):
                assert {*ours} == {*own}
                assert all(torch.equal(ours[name].data, own[name].data) for name in own)


@pytest.mark.parametrize("on_torch", [False, True])
@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_graphs_of_seed_edges_of_a_gpu_are_those_of_the_cpu(on_gpu, kind, on_torch, monkeypatch):  # noqa: F811
    g = graph(kind)
    on_gpu(False)
    expected = list(links(kind, g))
    on_gpu(True)

    def hand_out(self, batch, really=Batches.hand_out):  # DGL's C++ numbers the nodes before
        with graphs_of_cpu_too() if on_torch else nullcontext():
            return really(self, batch)

    monkeypatch.setattr(Batches, "hand_out", hand_out)
    for ours, theirs in zip(links(kind, g), expected, strict=True):
        same(ours[0], theirs[0])
        for mine, own in zip((ours[1], ours[2], *ours[3]), (theirs[1], theirs[2], *theirs[3]), strict=True):
            assert (type(mine._graph) is TorchGraphIndex) == on_torch
            assert (mine.ntypes, mine.canonical_etypes) == (own.ntypes, own.canonical_etypes)
            for t in own.canonical_etypes:
                assert all(map(torch.equal, mine.edges(etype=t, order="eid"), own.edges(etype=t, order="eid")))
            frames = [made._node_frames + made._edge_frames for made in (mine, own)]
            for a, b in zip(*frames, strict=True):
                assert {*a} == {*b}
                assert a.num_rows == b.num_rows
                assert all(torch.equal(a[name].data, b[name].data) for name in b)
