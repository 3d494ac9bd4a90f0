"""Steps of ``DistributedDataParallel`` on ranks whose batches have sizes of their own."""

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tape import Tape
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import manyhop_train.capture.step
from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, capture


def graph() -> Data:
    g = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(60, 4, generator=g),
        y=torch.randint(0, 3, (60,), generator=g),
        edge_index=torch.randint(0, 60, (2, 300), generator=g),
    )


def batches(rank: int, device: str) -> list[Any]:
    """Twelve batches; those of rank 1 grow after the sixth, so that it runs eagerly while rank 0 replays."""
    sizes = [8] * 12 if rank == 0 else [5] * 6 + [7] * 6
    found = {
        size: list(NeighborLoader(graph(), [3, 2], batch_size=size, seed=rank, pad="auto", device=device))
        for size in set(sizes)
    }
    return [found[size][i % 5] for i, size in enumerate(sizes)]


def train(
    *,
    captured: bool,
    device: str = "cpu",
    accumulate: int = 1,
    clip: bool = False,
    breaks: bool = False,
    **options: Any,
) -> Any:
    """The losses of this rank, its weights and buffers in the end, and counts of a captured step.

    With ``breaks``, rank 1 cannot record its steps.
    """
    torch.manual_seed(0)
    model = GraphSAGE(4, 8, 2, 3, norm="batch_norm").to(device)
    ranked = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(ranked.parameters(), lr=0.1, momentum=0.9)
    if device == "cpu":
        tape = Tape()
        manyhop_train.capture.step.recorder_of = lambda device: tape

    def loss_of(batch: Any) -> Tensor:
        loss = F.cross_entropy(ranked(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size],
                               reduction="none")  # fmt: skip
        return masked_mean(loss, batch.seed_mask)

    def update() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(ranked.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    def whole(batch: Any) -> Tensor:
        loss = loss_of(batch)
        loss.backward()
        if breaks and captured and dist.get_rank() == 1 and tape.recording:
            raise RuntimeError("operation not permitted when stream is capturing")
        update()
        return loss

    def part(batch: Any) -> Tensor:
        with ranked.no_sync():
            loss = loss_of(batch)
            loss.backward()
        return loss

    steps = [capture(step) if captured else step for step in (whole, part)]
    losses = [
        steps[0 if number % accumulate == accumulate - 1 else 1](batch).item()
        for number, batch in enumerate(batches(dist.get_rank(), device))
    ]
    counts = (steps[0].replayed, steps[0].graphs) if captured else None
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}, counts


def compare(device: str, cases: list[dict[str, Any]]) -> list[Any]:
    """What the ranks compute eagerly and captured, by case."""
    backend = "gloo" if device == "cpu" else "nccl"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    found = [[train(captured=captured, device=device, **options) for captured in (False, True)] for options in cases]
    dist.barrier()
    dist.destroy_process_group()
    return found


def check(ranks: list[Any], atol: float) -> list[Any]:
    """Captured steps compute what eager ones do, on all ranks.

    Returns:
        The counts of each rank.
    """
    for rank, ((eager, state, _), (losses, captured, _)) in enumerate(ranks):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(eager), rtol=atol, atol=atol)
        for name, value in state.items():
            if rank > 0 and "running" in name:
                continue  # DDP leaves buffers alone after a step without synchronization, rank 0's are sent later
            torch.testing.assert_close(captured[name], value, rtol=atol, atol=atol)
    weights = [captured for _, (_, captured, _) in ranks]
    for name, value in weights[0].items():
        if "weight" in name and "norm" not in name:
            for other in weights[1:]:
                torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-5)
    return [counts for _, (_, _, counts) in ranks]
