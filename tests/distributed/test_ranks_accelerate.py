"""Accelerate's scripts: it leaves loaders whose ranks share batches as they are, and refuses others."""

import pytest
import torch
from rank_loaders import NUM_SEEDS, digest, graph, homogeneous, one_process

pytest.importorskip("accelerate")


def train():
    from accelerate import Accelerator
    from torch_geometric.nn import GraphSAGE

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = GraphSAGE(4, 8, num_layers=2, out_channels=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = homogeneous(seed=5, num_workers=1, distributed=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen, synchronized = [], []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                accelerator.backward(torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]))
                optimizer.step()
                optimizer.zero_grad()
                seen.append((digest(batch), batch.is_padding.tolist()))
                synchronized.append(accelerator.sync_gradients)
    in_loader = accelerator.gradient_state.in_dataloader
    accelerator.end_training()
    return seen, synchronized, in_loader, [p.sum().item() for p in model.parameters()]


def test_two_ranks(launcher):
    first, second = launcher.run(train)
    dealt = [batch for pair in zip(first[0], second[0], strict=True) for batch in pair]
    expected = [batch for epoch in one_process("homogeneous", 2) for batch in epoch]
    assert len(dealt) == len(expected) == 16
    for (batch, is_padding), other in zip(dealt, expected, strict=True):
        assert batch == other
        assert not any(is_padding)
    assert first[1:] == second[1:]
    _, synchronized, in_loader, _ = first
    epoch = [i % 3 == 2 for i in range(len(synchronized) // 2)]
    assert synchronized == [*epoch[:-1], True] * 2  # also with the last batch of an epoch
    assert not in_loader


def refused():
    from accelerate import Accelerator

    from manyhop.errors import InputError
    from manyhop_pyg import NeighborLoader

    accelerator = Accelerator(cpu=True)
    mine = torch.arange(NUM_SEEDS).chunk(2)[accelerator.process_index]
    alone = NeighborLoader(graph(), [2], mine, batch_size=8)
    assert torch.cat([batch.input_id for batch in alone]).tolist() == list(range(len(mine)))
    with pytest.raises(InputError, match=r"in Accelerator.prepare.*distributed=True"):
        accelerator.prepare(alone)


def test_ranks_that_do_not_share_batches(launcher):
    launcher.run(refused)


def of_dgl():
    """Loaders of DGL and GraphBolt stay as they are; returns seeds, and where gradients are synchronized."""
    import manyhop_dgl  # isort: split

    import dgl
    from accelerate import Accelerator

    import manyhop_dgl.graphbolt as gb

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    seeds = torch.arange(NUM_SEEDS)
    sampler = manyhop_dgl.NeighborSampler([2])
    ours = manyhop_dgl.DataLoader(dgl.graph((seeds, seeds)), seeds, sampler, batch_size=8, use_ddp=True)
    items = gb.DataLoader(gb.DistributedItemSampler(gb.ItemSet(seeds, names="seeds"), batch_size=8))
    assert accelerator.prepare(ours, items) == (ours, items)
    model, found = torch.nn.Linear(1, 1), []
    for loader in (ours, items):
        for batch in loader:
            with accelerator.accumulate(model):
                own = batch[1] if loader is ours else batch.seeds
                found.append((own.tolist(), accelerator.sync_gradients))
    return found


def test_loaders_of_dgl(launcher):
    pytest.importorskip("dgl", "2.1")
    first, second = launcher.run(of_dgl)
    assert [synchronized for _, synchronized in first] == [False, False, True, True] * 2
    for begin in (0, 4):
        seen = [seed for found in (first, second) for seeds, _ in found[begin : begin + 4] for seed in seeds]
        assert sorted(seen) == list(range(NUM_SEEDS))
