"""What a batch of DGL's loader that a GPU makes costs Python."""

import os

import pytest
from call_budget import BATCHES, WARM_UP, check_calls
from host_part import dgl_loader_without_kernels

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the CPU stands for the GPU")


@pytest.mark.parametrize(("options", "budget"), [({}, 127), ({"output": "tensors"}, 88)])
def test_a_further_batch_of_nodes(options, budget):
    with dgl_loader_without_kernels(WARM_UP + BATCHES + 16, **options) as loader:
        check_calls(loader, budget)
