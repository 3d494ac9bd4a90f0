"""Blocks on torch tensors whose structure and frames are made when they are first read: DGL's in every other way."""

import copy
import pickle
import threading

import pytest
import torch
from sampler_graphs import graph, typed_graph

import manyhop_dgl
from manyhop_dgl.samplers import blocks as blocks_
from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
from dgl.heterograph import DGLBlock  # noqa: E402

PARTS = {"_graph", "_node_frames", "_edge_frames"}


@pytest.fixture
def lazy():
    """Two blocks of which nothing is made yet."""
    with graphs_of_cpu_too():
        sample = manyhop_dgl.sample_tensors(graph(), torch.arange(20), [3, 4], key=(1, 0, 0))
        manyhop_dgl.to_blocks(sample)  # the first ones of these types are made at once
        made = manyhop_dgl.to_blocks(sample, graph())
        assert not any(PARTS & vars(block).keys() for block in made)
        yield made


def same(block, other):
    assert type(block) is type(other) is DGLBlock
    assert block.canonical_etypes == other.canonical_etypes
    for t in other.canonical_etypes:
        assert all(map(torch.equal, block.adj_tensors("csc", t), other.adj_tensors("csc", t)))
    for mine, theirs in zip(
        block._node_frames + block._edge_frames, other._node_frames + other._edge_frames, strict=True
    ):
        assert {*mine} == {*theirs}
        assert all(torch.equal(mine[name].data, theirs[name].data) for name in theirs)


def test_each_part_is_made_when_it_is_read(lazy):
    block, other = lazy
    assert isinstance(block, DGLBlock)
    assert block.is_block
    assert block.srctypes == ["_N"]
    assert not PARTS & vars(block).keys()
    assert block.num_dst_nodes() > 20
    assert vars(block).keys() & PARTS == {"_graph"}
    feat = block.srcdata["feat"]
    assert vars(block).keys() & PARTS == {"_graph", "_node_frames"}
    block.srcdata["h"] = feat
    assert block.srcdata["h"] is feat
    assert block.edata[dgl.EID].shape == (block.num_edges(),)
    assert type(block) is DGLBlock
    assert vars(block).keys() == {name for name in vars(other) if name != "_makers"} | PARTS
    with pytest.raises(AttributeError, match="'DGLBlock' object has no attribute 'unknown'"):
        _ = other.unknown
    assert not PARTS & vars(other).keys()


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda block: pickle.loads(pickle.dumps(block)), lambda block: block.to("cpu")],
    ids=["copy", "deepcopy", "pickle", "to"],
)
def test_copies(lazy, copied):
    for block in lazy:
        same(copied(block), block)


def test_changes_are_those_of_one_block(lazy):
    block, other = lazy
    with block.local_scope():
        block.srcdata["h"] = torch.ones(block.num_src_nodes(), 1)
        block.update_all(dgl.function.copy_u("h", "m"), dgl.function.sum("m", "d"))
        assert torch.equal(block.dstdata["d"].flatten(), block.in_degrees().float())
    assert not {"h", "d"} & {*block.srcdata, *block.dstdata, *other.srcdata}
    block.edata["w"] = torch.zeros(block.num_edges())
    block.apply_edges(lambda edges: {"v": edges.data["w"] + 1})
    assert float(block.edata["v"].sum()) == block.num_edges()


def test_threads_read_the_same_parts(lazy, monkeypatch):
    block, _ = lazy
    both, found = threading.Barrier(2), []
    make = blocks_.frames_of_ids

    def slow(*args):
        both.wait(timeout=60)  # both threads are making them
        return make(*args)

    monkeypatch.setattr(blocks_, "frames_of_ids", slow)
    threads = [threading.Thread(target=lambda: found.append(block._edge_frames)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is block._edge_frames


def test_types_and_data_as_of_the_batch():
    g = typed_graph()
    with graphs_of_cpu_too():
        sample = manyhop_dgl.sample_tensors(g, {"user": torch.arange(9)}, [2, 2], key=(1, 0, 0))
        manyhop_dgl.to_blocks(sample)
        eager, later = manyhop_dgl.to_blocks(sample, g), manyhop_dgl.to_blocks(sample, g)
        for block in eager:
            pickle.dumps(block)
        name = next(iter(g.nodes["user"].data))
        del g.nodes["user"].data[name]
        g.nodes["user"].data["new"] = torch.zeros(g.num_nodes("user"))
        for block, other in zip(later, eager, strict=True):
            assert name in block.srcnodes["user"].data
            _ = block._graph, block._edge_frames
            same(block, other)
