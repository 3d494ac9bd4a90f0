"""Blocks as tensors: what DGL's blocks hold, without DGL's objects; on a GPU the same."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch
from sampler_graphs import graph, same_batch, same_tensors, sample_for_key, typed_graph

import manyhop_dgl
from manyhop.loading import BatchContext
from manyhop.loading.pipeline import Counts, Padder, pad_sizes
from manyhop.sampling import BatchKey, NodeRequest
from manyhop.sampling.gpu import lookup
from manyhop_dgl.samplers import plan as plans
from manyhop_dgl.samplers.plan import cut_all

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

KEY = BatchKey(3, 1, 4)


def test_tensors_are_what_the_blocks_hold():
    g = typed_graph()
    seeds = {"user": torch.arange(6), "game": torch.tensor([1])}
    sampler = manyhop_dgl.NeighborSampler([2, 3])
    tensors = sampler.sample_tensors(g, seeds, key=KEY)
    inputs, outputs, blocks = sample_for_key(sampler, g, seeds, KEY)
    assert tensors.input_nodes.keys() == inputs.keys()
    assert all(torch.equal(inputs[t], ids) for t, ids in tensors.input_nodes.items())
    assert all(torch.equal(ids, tensors.output_nodes[t]) for t, ids in outputs.items())
    assert tensors.output_nodes["dev"].numel() == 0
    for edges, block in zip(tensors.blocks, blocks, strict=True):
        assert edges.num_src == {t: block.num_src_nodes(t) for t in block.srctypes}
        assert edges.num_dst == {t: block.num_dst_nodes(t) for t in block.dsttypes}
        for t in block.canonical_etypes:
            indptr, indices, _ = block.adj_tensors("csc", t)
            assert torch.equal(edges.indptr[t], indptr)
            assert torch.equal(edges.indices[t], indices)
            assert torch.equal(edges.edge_ids[t], block.edges[t].data[dgl.EID])
            assert edges.edge_weights is None


def test_one_type_gives_plain_tensors_and_blocks_out_of_them():
    g = graph(idtype=torch.int32)
    tensors = manyhop_dgl.sample_tensors(g, [3, 4], [5, 2], key=KEY)
    assert tensors.output_nodes.tolist() == [3, 4]
    assert tensors.input_nodes.dtype == torch.int32
    last = tensors.blocks[-1]
    assert last.indptr.tolist() == [0, 2, 4]
    assert last.indices.dtype == last.edge_ids.dtype == torch.int32
    wanted = sample_for_key(manyhop_dgl.NeighborSampler([5, 2]), g, [3, 4], KEY)
    blocks = manyhop_dgl.to_blocks(tensors, g)
    assert same_batch((tensors.input_nodes, tensors.output_nodes, blocks), wanted)
    assert torch.equal(blocks[0].srcdata["feat"], wanted[2][0].srcdata["feat"])
    assert set(manyhop_dgl.to_blocks(tensors)[0].srcdata) == {dgl.NID}


def test_features_come_with_the_sample():
    g = typed_graph()
    tensors = manyhop_dgl.sample_tensors(
        g, {"game": [3, 1]}, [2, 2], key=KEY, node_features=["feat"], edge_features={"plays": ["weight"]}
    )
    for t, ids in tensors.input_nodes.items():
        assert torch.equal(tensors.node_features["feat"][t], g.nodes[t].data["feat"][ids])
    plays = ("user", "plays", "game")
    for block, rows in zip(tensors.blocks, tensors.edge_features, strict=True):
        assert torch.equal(rows["weight"][plays], g.edges["plays"].data["weight"][block.edge_ids[plays]])
    only = manyhop_dgl.sample_tensors(
        g, {"game": [3]}, [2], node_features={"game": ["label"]}, edge_features=["weight"]
    )
    assert only.node_features["label"].keys() == {"game"}
    assert only.edge_features[0]["weight"].keys() == set(g.canonical_etypes)
    plain = graph()
    tensors = manyhop_dgl.sample_tensors(plain, [0, 1], [2], node_features=["feat"])
    assert torch.equal(tensors.node_features["feat"], plain.ndata["feat"][tensors.input_nodes])
    assert tensors.edge_features == []


def test_features_follow_the_edges_of_the_other_direction():
    g = typed_graph()
    tensors = manyhop_dgl.sample_tensors(g, {"user": [3]}, [-1], edge_dir="out", edge_features={"plays": ["weight"]})
    ids = tensors.blocks[0].edge_ids["game", "plays", "user"]
    assert ids.numel() == g.out_degrees(3, etype="plays")
    assert torch.equal(
        tensors.edge_features[0]["weight"]["user", "plays", "game"], g.edges["plays"].data["weight"][ids]
    )


def test_keys():
    g = graph()
    with BatchContext(KEY, None):
        in_loader = manyhop_dgl.sample_tensors(g, [1, 2, 3], [2, 2])
    for key in (KEY, tuple(KEY)):
        assert same_tensors(in_loader, manyhop_dgl.sample_tensors(g, [1, 2, 3], [2, 2], key=key))
    torch.manual_seed(1)
    first = manyhop_dgl.sample_tensors(g, [1, 2, 3], [2, 2])
    assert not same_tensors(first, manyhop_dgl.sample_tensors(g, [1, 2, 3], [2, 2]))
    torch.manual_seed(1)
    assert same_tensors(first, manyhop_dgl.sample_tensors(g, [1, 2, 3], [2, 2]))


def test_moving():
    g = graph()
    tensors = manyhop_dgl.sample_tensors(g, [1, 2], [2], node_features=["feat"], edge_features=["weight"])
    moved = tensors.to("meta")
    assert moved.input_nodes.device.type == moved.blocks[0].indptr.device.type == "meta"
    assert moved.node_features["feat"].device.type == moved.edge_features[0]["weight"].device.type == "meta"
    assert same_tensors(tensors, tensors.to("cpu"))


def test_our_own_graph_gives_the_same():
    g = graph()
    own = manyhop_dgl.Graph.from_dgl(g)
    options = {"key": KEY, "node_features": ["feat"]}
    a, b = (manyhop_dgl.sample_tensors(each, [5, 6], [3, 3], **options) for each in (g, own))
    assert same_tensors(a, b)
    assert torch.equal(a.node_features["feat"], b.node_features["feat"])
    blocks = [sample_for_key(manyhop_dgl.NeighborSampler([3, 3]), each, [5, 6], KEY)[2] for each in (g, own)]
    assert torch.equal(blocks[0][0].srcdata["feat"], blocks[1][0].srcdata["feat"])
    assert torch.equal(blocks[0][1].edata["weight"], blocks[1][1].edata["weight"])


def test_samples_without_dgl():
    """``sample_tensors`` of our own graph never asks for DGL."""
    code = """
import sys
sys.modules["dgl"] = None
import torch
import manyhop_dgl
g = manyhop_dgl.Graph((torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])), 3)
g.ndata["x"] = torch.arange(3.0)
batch = manyhop_dgl.sample_tensors(g, [0], [1, 1], node_features=["x"])
assert batch.input_nodes.tolist() == [0, 2, 1], batch.input_nodes
assert batch.node_features["x"].tolist() == [0.0, 2.0, 1.0]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off")
def test_columns_of_a_gpu(monkeypatch):
    """The kernel that makes them there, interpreted, for two samples at once."""

    g = typed_graph()
    arguments = manyhop_dgl.NeighborSampler([2, -1]).arguments()
    plan = arguments.plan(arguments.topology(g), plans.CPU)
    seeds = ({"user": torch.arange(9)}, {"game": torch.arange(0)})
    samples = [plan.engine.sample(NodeRequest(key=KEY, seeds=some)) for some in seeds]
    pad = Padder(pad_sizes([Counts.of(sample) for sample in samples]), num_trees=9)
    wanted = cut_all(samples) + cut_all(samples, pad=pad)
    monkeypatch.setattr(plans, "_fill", lookup.fill)
    monkeypatch.setattr(lookup, "_MOST_TILES", 1)
    found = cut_all(samples) + cut_all(samples, pad=pad)
    assert all(same_tensors(*both) for both in zip(found, wanted, strict=True))


def test_blocks_are_cut_once():
    g = typed_graph()
    sample = manyhop_dgl.sample_tensors(g, {"user": torch.arange(6)}, [2, 3], key=KEY)
    copied, pickled = copy.deepcopy(sample), pickle.loads(pickle.dumps(sample))
    follows = ("user", "follows", "user")
    assert sample.blocks is sample.blocks
    last = sample.blocks[-1]
    before = copy.deepcopy(last), pickle.loads(pickle.dumps(last)), dataclasses.replace(sample.blocks[0])
    assert last.ids is last.ids
    assert not hasattr(last, "eids")
    for other, block in zip(before, (last, last, sample.blocks[0]), strict=True):
        assert all(torch.equal(other.ids[t], ids) for t, ids in block.ids.items())
    last.ids[follows] += 1
    assert sample.blocks[0].ids[follows]._version == 0
    last.ids[follows] -= 1
    whole = torch.cat([block.sources[follows] for block in reversed(sample.blocks)])
    assert torch.equal(whole, sample.hops.sources[follows])
    sample.blocks[0].sources[follows] += 1  # which is no change of the other block's
    assert sample.blocks[1].sources[follows]._version == 0
    sample.blocks[0].sources[follows] -= 1
    assert same_tensors(copied, sample)
    assert same_tensors(pickled, sample)
    assert sample.counts.edges[follows] == tuple(len(block.ids[follows]) for block in reversed(sample.blocks))
    assert sum(sample.counts.nodes["user"]) == len(sample.node["user"])
