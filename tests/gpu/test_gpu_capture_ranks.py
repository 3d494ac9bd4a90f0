"""Captured steps of ``DistributedDataParallel`` on GPUs, with NCCL between the graphs."""

import pytest
from rank_steps import check, compare

pytestmark = pytest.mark.gpu


def run(options):
    return compare("cuda", options)


@pytest.mark.parametrize("options", [{"clip": True}, {"accumulate": 2, "gradient_as_bucket_view": True}], ids=str)
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.multigpu)])
def test_ranks_compute_what_ddp_does(run_on_gpus, world_size, options):
    counts = check(run_on_gpus(run, options, world_size=world_size), 2e-2)
    assert counts == ([(3, 1), (2, 1)] if "accumulate" in options else [(9, 1), (8, 2)])[:world_size]
