"""install(), uninstall() and ``python -m manyhop_dgl``."""

import subprocess
import sys
import textwrap
import types

import pytest
import torch

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

NAMES = (
    "DataLoader",
    "LaborSampler",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
)
THEIRS = {name: getattr(dgl.dataloading, name) for name in NAMES}


def test_names_and_back():
    module = types.ModuleType("dgl_user")
    exec("from dgl.dataloading import DataLoader, NeighborSampler as Sampler", module.__dict__)
    sys.modules["dgl_user"] = module
    try:
        manyhop_dgl.install()
        for name in NAMES:
            assert getattr(dgl.dataloading, name) is getattr(manyhop_dgl, name)
        assert module.DataLoader is manyhop_dgl.DataLoader
        assert module.Sampler is manyhop_dgl.NeighborSampler
        assert dgl.dataloading.as_edge_prediction_sampler is manyhop_dgl.as_edge_prediction_sampler
        assert dgl.dataloading.negative_sampler.Uniform is manyhop_dgl.Uniform
        manyhop_dgl.uninstall()
        assert {name: getattr(dgl.dataloading, name) for name in NAMES} == THEIRS
        assert module.DataLoader is THEIRS["DataLoader"]
    finally:
        manyhop_dgl.uninstall()
        del sys.modules["dgl_user"]


def test_subclasses_of_dgls_samplers_still_work():
    class Mine(dgl.dataloading.NeighborSampler):
        def sample(self, g, indices, exclude_eids=None):
            return indices, super().sample(g, indices)

    manyhop_dgl.install()
    try:
        g = dgl.rand_graph(30, 90)
        loader = dgl.dataloading.DataLoader(g, torch.arange(30), Mine([2]), batch_size=10, num_workers=1)
        assert type(loader) is manyhop_dgl.DataLoader
        assert [len(batch[1][2]) for batch in loader] == [1, 1, 1]
    finally:
        manyhop_dgl.uninstall()


# DGL's way of several processes: a graph in shared memory, ranks spawned, seeds shared by the loader.
SCRIPT = """
    import os
    import sys
    import dgl
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from dgl.dataloading import DataLoader, MultiLayerFullNeighborSampler, NeighborSampler

    def run(rank, world_size, g, train):
        dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method=sys.argv[1])
        x = g.ndata["x"]
        sampler = NeighborSampler([3, 2], prefetch_node_feats=["x"])
        loader = DataLoader(g, train, sampler, use_ddp=True, ddp_seed=3, batch_size=8, shuffle=True, num_workers=1)
        seen = []
        for input_nodes, output_nodes, blocks in loader:
            assert torch.equal(blocks[0].srcdata["x"], x[input_nodes])
            seen.append(output_nodes.tolist())
        every = [None] * world_size
        dist.all_gather_object(every, (seen, loader.state_dict()))
        if rank == 0:
            assert type(loader).__module__ == "manyhop_dgl.loader.loader"
            assert all(len(part) == len(loader) == 4 for part, _ in every)
            assert every[0][1] == every[1][1]
            rounds = [batch for both in zip(*(part for part, _ in every)) for batch in both]
            alone = DataLoader(g, train, sampler, batch_size=8, shuffle=True, seed=3)
            alone.load_state_dict(every[0][1] | {"epoch": 0})
            order = [output_nodes.tolist() for _, output_nodes, _ in alone]
            assert rounds == [*order, order[0]], (rounds, order)
            full = DataLoader(g, torch.arange(60), MultiLayerFullNeighborSampler(1), batch_size=60)
            print("same", sum(blocks[0].num_edges() for _, _, blocks in full))
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        g = dgl.graph((torch.arange(300) % 60, torch.arange(300) % 59), num_nodes=60)
        g.ndata["x"] = torch.arange(120.0).view(60, 2).share_memory_()
        g.create_formats_()
        g = g.shared_memory("manyhop_test")
        g.ndata["x"] = torch.arange(120.0).view(60, 2).share_memory_()
        mp.spawn(run, args=(2, g, torch.arange(50)), nprocs=2, join=True)
        print("argv", sys.argv[2:])
"""


def test_a_stock_script_of_several_processes(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, "-m", "manyhop_dgl", "train.py", f"file://{tmp_path}/rendezvous", "--flag"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "same 300" in done.stdout
    assert "argv ['--flag']" in done.stdout
