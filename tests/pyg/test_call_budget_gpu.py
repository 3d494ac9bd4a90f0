"""What a batch that a GPU makes costs Python."""

import os

import pytest
from call_budget import BATCHES, WARM_UP, check_calls
from host_part import loader_without_kernels

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the CPU stands for the GPU")


def test_a_further_batch_of_nodes():
    with loader_without_kernels(WARM_UP + BATCHES + 16) as loader:
        check_calls(loader, 61)
