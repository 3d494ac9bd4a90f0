"""Our samplers in DGL's own DataLoader: in this process, in its workers, on several ranks."""

import threading
import time

import pytest
import torch
import torch.multiprocessing as mp
from sampler_graphs import graph, same_batch

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
NeighborSampler = manyhop_dgl.NeighborSampler

pytestmark = pytest.mark.filterwarnings(
    "ignore:Dataloader CPU affinity opt", "ignore:This process .* is multi-threaded"
)


def loader(g, indices, sampler, **options):
    return dgl.dataloading.DataLoader(g, indices, sampler, batch_size=8, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_node_classification(num_workers):
    g = graph()
    sampler = NeighborSampler([3, 3], prefetch_node_feats=["feat"], prefetch_labels=["label"], seed=0)
    seen = []
    for inputs, outputs, blocks in loader(g, torch.arange(60), sampler, num_workers=num_workers):
        seen.append(outputs)
        assert torch.equal(blocks[0].srcdata["feat"], g.ndata["feat"][inputs])
        assert torch.equal(blocks[-1].dstdata["label"], g.ndata["label"][outputs])
        assert torch.equal(blocks[-1].in_degrees(), g.in_degrees(outputs).clamp(max=3))
        assert torch.equal(blocks[-1].edata["weight"], g.edata["weight"][blocks[-1].edata[dgl.EID]])
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(60))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_link_prediction(num_workers):
    g = graph()
    sampler = manyhop_dgl.as_edge_prediction_sampler(
        NeighborSampler([3, 3], seed=0),
        exclude="self",
        negative_sampler=manyhop_dgl.Uniform(2),
        prefetch_labels=["weight"],
    )
    ids = torch.randperm(g.num_edges())
    seen = []
    for inputs, pairs, negatives, blocks in loader(g, ids, sampler, num_workers=num_workers):
        seen.append(pairs.edata[dgl.EID])
        assert torch.equal(pairs.edata["weight"], g.edata["weight"][seen[-1]])
        assert negatives.num_edges() == 2 * pairs.num_edges()
        assert torch.equal(pairs.ndata[dgl.NID], blocks[-1].dstdata[dgl.NID])
        assert torch.equal(blocks[0].srcdata[dgl.NID], inputs)
        for block in blocks:
            assert not torch.isin(block.edata[dgl.EID], seen[-1]).any()
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(g.num_edges()))


def test_workers_have_keys_of_their_own_in_each_epoch():
    """Workers are copies of this process: batches of two workers, and of two epochs, must not share draws."""
    g = graph()
    indices = torch.arange(8).repeat(4)  # four batches of the same seeds
    torch.manual_seed(0)
    batches = [b for _ in range(2) for b in loader(g, indices, NeighborSampler([2, 2], seed=0), num_workers=2)]
    assert not any(same_batch(a, b) for i, a in enumerate(batches) for b in batches[:i])
    torch.manual_seed(0)
    again = [b for _ in range(2) for b in loader(g, indices, NeighborSampler([2, 2], seed=0), num_workers=2)]
    assert all(same_batch(a, b) for a, b in zip(batches, again, strict=True))


def test_a_sampler_that_was_used_before_its_process_forks():
    """Engine, tables and threads' memory of the parent are there in the child, too."""
    g = graph()
    sampler = NeighborSampler([3, 3], prob="weight", seed=0)
    wanted = sampler.sample(g, torch.arange(8))
    thread = threading.Thread(target=sampler.sample, args=(g, torch.arange(8)))
    thread.start()
    thread.join()
    batches = list(loader(g, torch.arange(16), sampler, num_workers=1))
    assert len(batches) == 2
    assert torch.equal(batches[0][1], wanted[1])


def test_data_replaced_between_batches_is_seen():
    """Layer-wise inference, as DGL's examples have it."""
    g = graph()
    sampler = manyhop_dgl.MultiLayerFullNeighborSampler(1, prefetch_node_feats=["h"])
    g.ndata["h"] = g.ndata["feat"]
    batches = loader(g, torch.arange(60), sampler)
    for layer in range(2):
        for inputs, _, blocks in batches:
            assert torch.equal(blocks[0].srcdata["h"], g.ndata["h"][inputs])
        g.ndata["h"] = torch.full((60, 2), float(layer))


def on_rank(rank, world_size, g, folder):
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    batches = [
        (outputs, blocks[0].edata[dgl.EID])
        for _, outputs, blocks in loader(g, torch.arange(32), NeighborSampler([2, 2]), use_ddp=True)
    ]
    torch.save(batches, f"{folder}/{rank}.pt")
    same = NeighborSampler([2, 2], seed=1).sample(g, torch.arange(8))[2][0].edata[dgl.EID]
    torch.save(same, f"{folder}/same{rank}.pt")
    torch.distributed.barrier()
    time.sleep(1)  # gloo's threads drop their last tensors; while the group ends, they would wait for the GIL
    torch.distributed.destroy_process_group()


def test_ranks(tmp_path):
    """Each rank has seed nodes of its own, and draws of its own, though all give torch the same seed."""
    mp.start_processes(on_rank, (2, graph(), str(tmp_path)), nprocs=2, start_method="fork")
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert sorted(torch.cat([outputs for part in parts for outputs, _ in part]).tolist()) == list(range(32))
    same = [torch.load(tmp_path / f"same{rank}.pt") for rank in range(2)]
    assert not torch.equal(*same)
