"""Captured steps of ``DistributedDataParallel``: a stand-in records on the CPU, gloo sends."""

import pytest
from rank_steps import check, compare


def run(options):
    return compare("cpu", options)


@pytest.mark.parametrize(
    "options",
    [{"clip": True}, {"accumulate": 2, "gradient_as_bucket_view": True}, {"static_graph": True}],
    ids=str,
)
def test_ranks_compute_what_ddp_does(launcher, options):
    """Also while one replays and another one runs a new size eagerly."""
    counts = check(launcher.run(run, options), 1e-4)
    assert counts == ([(3, 1), (2, 1)] if "accumulate" in options else [(9, 1), (8, 2)])


def test_a_rank_that_cannot_record_runs_beside_others_that_do(launcher):
    assert check(launcher.run(run, {"breaks": True}), 1e-4) == [(9, 1), (0, 0)]
