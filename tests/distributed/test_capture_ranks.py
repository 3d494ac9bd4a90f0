"""Captured steps of ``DistributedDataParallel``: a stand-in records on the CPU, gloo sends."""

import pytest
from rank_steps import check, compare

CASES = [
    ({"clip": True}, [(9, 1), (8, 2)]),
    ({"accumulate": 2, "gradient_as_bucket_view": True}, [(3, 1), (2, 1)]),
    ({"static_graph": True}, [(9, 1), (8, 2)]),
    ({"breaks": True}, [(9, 1), (0, 0)]),  # a rank that cannot record runs beside one that does
]


def run():
    return compare("cpu", [options for options, _ in CASES])


@pytest.fixture(scope="module")
def ranks(launcher):
    return launcher.run(run)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_ranks_compute_what_ddp_does(ranks, case):
    """Also while one replays and another one runs a new size eagerly."""
    assert check([found[case] for found in ranks], 1e-4) == CASES[case][1]
