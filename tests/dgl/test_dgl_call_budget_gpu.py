"""What a batch of DGL's loaders that a GPU makes costs Python."""

import os

import pytest
from call_budget import BATCHES, WARM_UP, check_calls, check_exchanging, count_calls, count_operators
from cuda_calls import counting_cuda
from host_part import dgl_loader_without_kernels, graphbolt_loader_without_kernels, in_step, loader_without_kernels

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the CPU stands for the GPU")
LENGTH = WARM_UP + BATCHES + 16


@pytest.mark.parametrize(("options", "budget"), [({}, 68.5), ({"output": "tensors"}, 51.5)])
def test_a_further_batch_of_nodes(options, budget):
    with dgl_loader_without_kernels(LENGTH, **options) as loader:
        check_calls(loader, budget)


def test_the_thread_that_exchanges_rows():
    with in_step(dgl_loader_without_kernels(LENGTH, output="tensors")) as loader:
        check_exchanging(loader, LENGTH)


def test_tensors_take_no_more_calls_than_batches_of_pyg():
    with loader_without_kernels(LENGTH) as loader:
        most = count_calls(loader).total()
    with dgl_loader_without_kernels(LENGTH, output="tensors") as loader:
        assert count_calls(loader).total() <= most


@pytest.mark.parametrize(("options", "budget"), [({}, 3.6), ({"output": "tensors"}, 2.6)])
def test_operators_of_torch(options, budget):
    """Beside what a launch and a gather take, a batch takes the seeds' ids; its edges are cut when they are read."""
    with dgl_loader_without_kernels(LENGTH, **options) as loader:
        operators = count_operators(loader)
    assert operators.total() <= budget * LENGTH, operators


def test_a_further_minibatch():
    with graphbolt_loader_without_kernels(LENGTH) as loader:
        check_calls(loader, 120)


def test_calls_of_cuda_for_a_batch_of_fixed_size():
    with counting_cuda() as calls, dgl_loader_without_kernels(128, pad="auto") as loader:
        assert len(list(loader)) == 128
        calls.check(loader, launches=8 / 16, allocations=1, events=52.4 / 16)
