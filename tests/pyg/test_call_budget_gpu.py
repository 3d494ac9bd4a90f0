"""What a batch that a GPU makes costs Python."""

import os

import host_part
import pytest
from call_budget import BATCHES, WARM_UP, Served, check_calls, check_exchanging
from cuda_calls import counting_cuda
from host_part import in_step, loader_without_kernels, step_without_kernels

from manyhop_pyg.loaders.batches import Batches

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the CPU stands for the GPU")


def test_a_further_batch_of_nodes():
    with loader_without_kernels(WARM_UP + BATCHES + 16) as loader:
        check_calls(loader, 61)


def test_a_further_batch_of_fixed_size():
    with loader_without_kernels(WARM_UP + BATCHES + 16, pad="auto") as loader:
        check_calls(loader, 44)


def test_the_thread_that_exchanges_rows():
    length = WARM_UP + BATCHES + 16
    with in_step(loader_without_kernels(length)) as loader:
        check_exchanging(loader, length)
    with in_step(loader_without_kernels(length, of_data=True)) as loader:
        check_exchanging(loader, length, calls=65.5)


@pytest.mark.parametrize(
    ("seeds", "joined"), [(1024, [16, 16]), (944, [17, 17]), (700, [23, 23]), (600, [16, 11]), (256, [16, 16])]
)
def test_no_few_batches_of_a_group_are_joined_by_themselves(monkeypatch, seeds, joined):
    """Of the first two gathers after those of a first epoch, which learns sizes."""
    found, join = [], Batches.join

    def counted(self, samples, turns):
        found.append(len(samples))
        return join(self, samples, turns)

    monkeypatch.setattr(host_part, "BATCH_SIZE", seeds)
    monkeypatch.setattr(Batches, "join", counted)
    with loader_without_kernels(2 * sum(joined)) as loader:
        assert len(list(loader)) == 2 * sum(joined)
        found.clear()
        assert len(list(loader)) == 2 * sum(joined)
    assert found[:2] == joined


def test_a_batch_of_given_seeds():
    with loader_without_kernels(1) as loader:
        check_calls(Served(loader), 111)
    with loader_without_kernels(1, of_data=True) as loader:
        check_calls(Served(loader), 53)


def test_calls_of_cuda_for_a_batch_that_is_completed_alone():
    with counting_cuda() as calls, in_step(loader_without_kernels(128, pad="auto")) as loader:
        assert len(list(loader)) == 128
        calls.check(loader, launches=66.5 / 16, allocations=101.5 / 16, events=12)


def test_calls_of_cuda_for_a_batch_of_fixed_size_and_a_replay(monkeypatch):
    with counting_cuda() as calls, loader_without_kernels(128, pad="auto") as loader:
        assert len(list(loader)) == 128
        calls.check(loader, launches=6 / 16, allocations=11 / 16, events=47.4 / 16)
        step, kept = step_without_kernels(monkeypatch.setattr), list(loader)
        for batch in kept:
            step(batch)
        before = step.replayed
        calls.check(kept, step, launches=0, allocations=1 / 64, events=0)  # but for the graph, whose replay is left out
        assert step.replayed == before + len(kept)
