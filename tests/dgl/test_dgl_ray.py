"""Ray Train, where it is installed: the ranks of a script share the batches of DGL's and GraphBolt's loaders."""

import pytest
import torch
from ray_run import run_on_two

import manyhop_dgl
import manyhop_dgl.graphbolt as gb

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

KINDS = ("DGL", "GraphBolt")


def train(config):
    import ray.train.torch

    ends = torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(1))
    graph = dgl.graph(tuple(ends), num_nodes=60)
    items = gb.DistributedItemSampler(gb.ItemSet(torch.arange(56), names="seeds"), batch_size=7, shuffle=True)
    sampled = items.sample_neighbor(gb.from_dglgraph(graph, is_homogeneous=True), [3, 2])
    options = {"batch_size": 7, "shuffle": True, "use_ddp": True}
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
    ranks = run_on_two(train, tmp_path)
    for kind in KINDS:
        (length, first), (other, second) = (rank[kind] for rank in ranks)
        assert length == other == 4
        assert sorted({*first, *second}) == list(range(56))
        assert len(first + second) == 56  # each seed once
