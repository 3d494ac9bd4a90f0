"""The same with real loaders: what a user sees when a rank fails."""

import time

import pytest
import torch
import torch.distributed as dist
from faults import fail_in_step
from rank_loaders import homogeneous
from torch.nn.parallel import DistributedDataParallel

import manyhop

TIMEOUT = 8.0


def train(fault, num_workers, ddp):
    """Rank 1 gets into trouble in the fifth epoch."""
    torch.set_num_threads(1)
    if ddp:
        dist.init_process_group("gloo")  # its timeout: half an hour
    manyhop.init()
    next(iter(homogeneous()))  # kernels may have to be compiled
    dist.barrier()  # on a busy machine ranks start at different times
    rank = dist.get_rank()
    culprit = rank == 1

    def transform(batch):
        if broken:
            raise ValueError("row 7 is broken")
        return batch

    broken = False
    more = {"drop_last": True} if fault == "arguments" and culprit else {}
    loader = homogeneous(distributed=True, rank_timeout=TIMEOUT, num_workers=num_workers, transform=transform, **more)
    model = torch.nn.Linear(4, 1)
    model = DistributedDataParallel(model) if ddp else model
    for epoch in range(1000):
        for i, batch in enumerate(loader):
            if culprit and epoch == 4 and i == 1:
                if fail_in_step(fault):
                    return
                broken = fault == "batch"
            model(batch.x).sum().backward()
            time.sleep(0.01)


EXPECTED = {
    "raise": "KeyError: 'my step is broken'",
    "batch": "ValueError: row 7 is broken",
    "kill": "gave no sign of life",
    "break": "left its loop after 2 batches of epoch 4",
    "arguments": "expected the same drop_last on all ranks, got false on rank 0; true on rank 1",
}


@pytest.mark.parametrize(
    "cases",
    [
        [("raise", 0, False, 2), ("batch", 1, False, 2), ("kill", 1, False, 2)],
        [("break", 0, False, 2), ("arguments", 1, False, 2), ("batch", 1, True, 3)],
    ],
)
def test_faults_of_loaders(launcher, cases):
    jobs = [launcher.start(train, fault, workers, ddp, world_size=size) for fault, workers, ddp, size in cases]
    for ranks, (fault, _, ddp, _) in zip(jobs, cases, strict=True):
        for rank, result in enumerate(ranks.wait()):
            assert result.exit_code == ({"kill": -9, "break": 0}.get(fault, 1) if rank == 1 else 1), (fault, result)
            if rank != 1:
                assert EXPECTED[fault] in result.output, (fault, result.output)
                assert "rank 1" in result.output, (fault, result.output)
                assert ddp or result.error.startswith("RankError: "), (fault, result.output)
