"""Scripts of dgl.distributed under install(): DGL's own samplers sample from a DistGraph."""

import subprocess
import sys
import textwrap

import pytest
import torch

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

# The mode of dgl.distributed without servers; for tests of scripts, DGL has it for the same purpose.
SCRIPT = """
    import dgl
    import torch
    from dgl.dataloading import DataLoader, DistEdgeDataLoader, DistNodeDataLoader, NeighborSampler, negative_sampler

    edges = torch.arange(300) % 60, torch.arange(300) * 7 % 59
    whole = dgl.graph(edges, num_nodes=60)
    whole.ndata["x"] = torch.arange(60.0)
    whole.ndata["train"] = torch.ones(60, dtype=torch.bool)
    dgl.distributed.partition_graph(whole, "toy", 1, "parts")
    dgl.distributed.initialize("ip_config.txt")
    g = dgl.distributed.DistGraph("toy", part_config="parts/toy.json")
    train = dgl.distributed.node_split(g.ndata["train"], force_even=True)
    assert NeighborSampler.__module__ == "manyhop_dgl.samplers.neighbor"

    for sampler in (NeighborSampler([-1, 2]), dgl.dataloading.MultiLayerFullNeighborSampler(2)):
        seen = []
        for input_nodes, output_nodes, blocks in DistNodeDataLoader(g, train, sampler, batch_size=16):
            assert g.ndata["x"][input_nodes].shape == (blocks[0].num_src_nodes(),)
            assert len(blocks) == 2
            src, dst = (ids[e] for ids, e in zip((input_nodes, blocks[0].dstdata[dgl.NID]), blocks[0].edges()))
            assert whole.has_edges_between(src, dst).all()
            seen += output_nodes.tolist()
        assert sorted(seen) == list(range(60)), seen

    sampler = NeighborSampler([2])
    drawn = negative_sampler.Uniform(3)
    loader = DistEdgeDataLoader(g, torch.arange(300), sampler, batch_size=50, negative_sampler=drawn)
    sizes = [(pairs.num_edges(), negatives.num_edges()) for _, pairs, negatives, _ in loader]
    assert sizes == [(50, 150)] * 6, sizes

    class Ones(negative_sampler.Uniform):
        def _generate(self, g, eids, canonical_etype):
            src, dst = super()._generate(g, eids, canonical_etype)
            return src, torch.ones_like(dst)

    src, dst = Ones(2)(g, torch.arange(5))
    assert torch.equal(src, edges[0][:5].repeat_interleave(2)) and (dst == 1).all()

    try:
        DataLoader(g, train, sampler)
    except ValueError as error:
        assert "DistNodeDataLoader" in str(error)
    else:
        raise AssertionError

    blocks = [b for _, _, (b,) in DataLoader(whole, torch.arange(60), sampler, batch_size=60)]
    print("done", dgl.__name__, len(blocks))
"""


def test_a_script_of_dgl_distributed(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "ip_config.txt").touch()
    done = subprocess.run(
        [sys.executable, "-m", "manyhop_dgl", "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "done dgl 1" in done.stdout


def test_dgls_samplers_get_the_arguments():
    theirs = manyhop_dgl.NeighborSampler([3, 2], edge_dir="out", mask="m", replace=True, output_device="cpu").of_dgl()
    assert type(theirs).__module__ == "dgl.dataloading.neighbor_sampler"
    names = ("fanouts", "edge_dir", "prob", "replace", "output_device")
    assert [getattr(theirs, name) for name in names] == [[3, 2], "out", "m", True, "cpu"]
    labor = manyhop_dgl.LaborSampler([4], prob="p", importance_sampling=1, layer_dependency=True, batch_dependency=2)
    names = ("fanouts", "prob", "importance_sampling", "layer_dependency")
    assert [getattr(labor.of_dgl(), name) for name in names] == [[4], "p", 1, True]
    pairs = manyhop_dgl.GlobalUniform(3, exclude_self_loops=False, replace=True).of_dgl()
    assert (pairs.k, pairs.exclude_self_loops, pairs.replace) == (3, False, True)


def test_what_partitions_take_from_graphbolt():
    gb = dgl.graphbolt
    indptr = torch.tensor([0, 2, 2, 5])
    assert gb.expand_indptr(indptr, dtype=torch.int32, output_size=5).tolist() == [0, 0, 2, 2, 2]
    found = gb.expand_indptr(indptr, node_ids=torch.tensor([7, 8, 9]))
    assert (found.tolist(), found.dtype) == ([7, 7, 9, 9, 9], torch.int64)
    with pytest.raises(ValueError, match="dtype or node_ids"):
        gb.expand_indptr(indptr)
    assert gb.etype_tuple_to_str(("a", "b", "c")) == "a:b:c"
    with pytest.raises(TypeError, match="'ab'"):
        gb.etype_tuple_to_str("ab")
