"""Items of batches that a GPU looks up: those that the plan says."""

import numpy as np
import pytest
import torch

from manyhop.errors import InputError
from manyhop.loading.pipeline import BatchPlan

pytest.importorskip("triton")
from manyhop.loading.pipeline.gpu import GPUPositions

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("num_items", "batch_size"), [(1, 1), (2, 1), (3, 2), (8, 3), (9, 3), (40, 30), (260, 129), (5000, 200)]
)
def test_positions_are_those_of_the_plan(num_items: int, batch_size: int, shuffle: bool) -> None:
    look_up = GPUPositions(DEVICE)
    plan = BatchPlan(num_items, batch_size, shuffle, False, -3 << 70)
    some = [*range(max(0, len(plan) - 2), len(plan)), 0]  # as where ranks pad an epoch
    many = [batch % len(plan) for batch in range(70)]  # of several launches
    for epoch, batches in ((0, some), (3, some), (1, many)):
        tables = [torch.randint(-100, 1 << 40, (num_items,), device=DEVICE) for _ in range(epoch)]
        (got, *entries), sizes = look_up(plan, epoch, batches, tables)
        expected = plan.many_indices(epoch, batches)
        assert sizes == [len(positions) for positions in expected]
        assert np.array_equal(got.cpu().numpy(), np.concatenate(expected))
        assert len(entries) == len(tables)
        for found, table in zip(entries, tables, strict=True):
            assert torch.equal(found, table[got])


def test_batches_that_the_plan_does_not_have() -> None:
    plan = BatchPlan(10, 3, True, False, 0)
    for batches in ([], [4], [-1], [0] * 33 + [4]):
        with pytest.raises(InputError, match="Expected batches, each from 0 to"):
            GPUPositions(DEVICE)(plan, 0, batches)
    with pytest.raises(InputError, match="at most 3 tables"):
        GPUPositions(DEVICE)(plan, 0, [0], [torch.arange(10)] * 4)
