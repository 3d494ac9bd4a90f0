"""Accelerate with ranks that share batches."""

import pytest
import torch
from rank_loaders import digest, homogeneous, one_process

pytest.importorskip("accelerate")


def train():
    from accelerate import Accelerator
    from torch_geometric.nn import GraphSAGE

    from manyhop.errors import InputError

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    with pytest.raises(InputError, match="Make it with distributed=True"):
        accelerator.prepare(homogeneous(distributed=False))
    model = GraphSAGE(4, 8, num_layers=2, out_channels=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, homogeneous(distributed=True, seed=5, num_workers=1)
    )
    seen, synchronized = [], []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                accelerator.backward(torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]))
                optimizer.step()
                optimizer.zero_grad()
                seen.append(digest(batch))
                synchronized.append(accelerator.sync_gradients)
    in_loader = accelerator.gradient_state.in_dataloader
    accelerator.end_training()
    return seen, synchronized, in_loader, [p.sum().item() for p in model.parameters()]


def test_two_ranks(launcher):
    first, second = launcher.run(train)
    dealt = [batch for pair in zip(first[0], second[0], strict=True) for batch in pair]
    assert dealt == [batch for epoch in one_process("homogeneous", 2) for batch in epoch]
    assert first[1:] == second[1:]
    _, synchronized, in_loader, _ = first
    epoch = [i % 3 == 2 for i in range(len(synchronized) // 2)]
    assert synchronized == [*epoch[:-1], True] * 2  # also with the last batch of an epoch
    assert not in_loader
