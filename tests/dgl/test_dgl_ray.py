"""Ray Train, where it is installed: the ranks of a script share the batches of DGL's and GraphBolt's loaders."""

import os
import sys

import pytest
import torch

import manyhop_dgl
import manyhop_dgl.graphbolt as gb

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

KINDS = ("DGL", "GraphBolt")


def train(config):
    import ray.train.torch

    ends = torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(1))
    graph = dgl.graph(tuple(ends), num_nodes=60)
    items = gb.ItemSampler(gb.ItemSet(torch.arange(56), names="seeds"), batch_size=7, shuffle=True)
    sampled = items.sample_neighbor(gb.from_dglgraph(graph, is_homogeneous=True), [3, 2])
    options = {"batch_size": 7, "shuffle": True}
    loaders = {
        "DGL": manyhop_dgl.DataLoader(graph, torch.arange(56), manyhop_dgl.NeighborSampler([3, 2]), **options),
        "GraphBolt": gb.DataLoader(sampled),
    }
    found = {}
    for kind, loader in loaders.items():
        loader = ray.train.torch.prepare_data_loader(loader)
        batches = [batch[1] if kind == "DGL" else batch.seeds for batch in loader]
        found[kind] = len(loader), torch.cat(batches).tolist()
    torch.save(found, f"{config['folder']}/{ray.train.get_context().get_world_rank()}.pt")


@pytest.mark.filterwarnings("ignore")
def test_ray_train(tmp_path):
    ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'ray[train]')")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environ})
    try:
        TorchTrainer(
            train,
            train_loop_config={"folder": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        ).fit()
    finally:
        ray.shutdown()
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for kind in KINDS:
        (length, first), (other, second) = (rank[kind] for rank in ranks)
        assert length == other == 4
        assert sorted({*first, *second}) == list(range(56))
        assert len(first + second) == 56  # each seed once
