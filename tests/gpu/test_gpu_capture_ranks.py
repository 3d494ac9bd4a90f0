"""Captured steps of ``DistributedDataParallel`` on GPUs, with NCCL between the graphs."""

import pytest
from rank_steps import check, compare

pytestmark = pytest.mark.gpu

CASES = [({"clip": True}, [(9, 1), (8, 2)]), ({"accumulate": 2, "gradient_as_bucket_view": True}, [(3, 1), (2, 1)])]


def run():
    return compare("cuda", [options for options, _ in CASES])


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.multigpu)])
def test_ranks_compute_what_ddp_does(run_on_gpus, world_size):
    ranks = run_on_gpus(run, world_size=world_size)
    for case, (_, counts) in enumerate(CASES):
        assert check([found[case] for found in ranks], 2e-2) == counts[:world_size]
