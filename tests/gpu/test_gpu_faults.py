"""What a user sees when a rank fails, leaves or has less to do, for each place that features may have on GPUs."""

import faulthandler
import re
import time

import pytest
import torch
from faults import fail_in_step
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data

import manyhop
from manyhop_pyg import NeighborLoader

pytestmark = [pytest.mark.multigpu, pytest.mark.needs("pylibwholegraph")]

TIMEOUT = 5.0
PLACEMENTS = ["cuda-cuda", "sharded", "distributed"]
AT_ONCE = 12  # processes of a test: more take minutes to start, and their kernels that wait share the GPUs
STACKS_AFTER = 50.0  # seconds, of which a rank takes about 25 on a quiet machine
HANGS, LONGEST = 70.0, 140.0  # seconds of one case and of all of a test; both end before pytest's timeout


def make_loader(placement, num_seeds=200, device="cuda", **how):
    generator = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.randn(400, 16, generator=generator),
        y=torch.randint(0, 3, (400,), generator=generator),
        edge_index=torch.randint(0, 400, (2, 4000), generator=generator),
    )
    seeds = torch.arange(num_seeds)
    where = {"device": device, "placement": placement} if device == "cuda" else {"device": device}
    return NeighborLoader(
        data, [3, 2], seeds, batch_size=8, shuffle=True, seed=3, distributed=True, rank_timeout=TIMEOUT, **where, **how
    )


def train(fault, placement, num_workers, ddp):
    """Rank 1 gets into trouble in the fifth epoch."""
    faulthandler.dump_traceback_later(STACKS_AFTER)
    torch.set_num_threads(1)
    rank = manyhop.init().rank
    culprit = rank == 1

    def transform(batch):
        if broken:
            raise ValueError("row 7 is broken")
        return batch

    broken = False
    loader = make_loader(placement, num_workers=num_workers, transform=transform)
    model = torch.nn.Linear(16, 1).cuda()
    model = DistributedDataParallel(model) if ddp else model
    for epoch in range(1000):
        for i, batch in enumerate(loader):
            if culprit and epoch == 4 and i == 1:
                if fault == "sleep":
                    time.sleep(1000)
                if fail_in_step(fault):
                    return
                broken = fault == "batch"
            model(batch.x).sum().backward()
            torch.cuda.synchronize()
            time.sleep(0.01)


def is_ended_in_its_step(result, fault, placement):
    """Whether the watch has ended a rank that waits for a GPU that waits for rows of a rank that was killed.

    That rank may be killed when it has announced its part of an exchange, and not sent the rows: then no thread of the
    other waits that could raise, but its GPU does.
    """
    ended = re.search(
        r"manyhop ERROR: rank \d cannot go on "
        r"\(it is at test_gpu_faults\.py:\d+ in train\) and ends its process, as waiting "
        r"in a collective cannot be interrupted\. NeighborLoader \d+: rank 1 gave no sign of life for \d+\.\d s",
        result.output,
    )
    return (fault, placement, result.error) == ("kill", "distributed", "") and ended is not None


def run_some_at_once(start, cases):
    """How the ranks of each case ended, as many cases at a time as a machine can have; those that hang are killed."""
    end = time.monotonic() + LONGEST
    waiting, running, ended = list(cases), [], []
    while waiting or running:
        while waiting and (not running or (len(running) + 1) * torch.cuda.device_count() <= AT_ONCE):
            running.append(start(*waiting.pop(0)))
        ended.append(running.pop(0).wait(min(HANGS, end - time.monotonic())))
    return ended


def described(results):
    """How each rank ended, and what it wrote."""
    ranks = enumerate(results)
    return "\n".join(f"-- rank {rank}: {it.exit_code}, {it.error or 'no error'}\n{it.output}" for rank, it in ranks)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_rank_at_fault_is_named_in_bounded_time(start_on_all_gpus, placement):
    cases = [("raise", 0, False), ("kill", 1, False), ("kill", 0, True), ("break", 1, False)]
    if placement == "cuda-cuda":
        cases += [("batch", 1, False)]
    if placement == "distributed":  # the others wait for this rank in exchanges of rows
        cases += [("sleep", 1, False)]
    jobs = [(train, fault, placement, workers, ddp) for fault, workers, ddp in cases]
    for (fault, workers, ddp), results in zip(cases, run_some_at_once(start_on_all_gpus, jobs), strict=True):
        case = f"{fault}, {workers} threads, DDP: {ddp}:\n{described(results)}"
        for other in (result for rank, result in enumerate(results) if rank != 1):
            assert other.exit_code == 1, case
            assert "rank 1" in other.output, case
            if not ddp and not is_ended_in_its_step(other, fault, placement):
                assert other.error.startswith("RankError: "), case
        assert results[1].exit_code == {"kill": -9, "break": 0}.get(fault, 1), case


def send_no_rows():
    """Rank 1 announces its part of an exchange, and sends no rows: the other's step waits for them on its GPU."""
    from manyhop.features.exchange.gpu.transfer import Transfer

    faulthandler.dump_traceback_later(STACKS_AFTER)
    rank = manyhop.init().rank
    loader = make_loader("distributed", num_workers=1)
    for epoch in range(1000):
        for i, batch in enumerate(loader):
            if (rank, epoch, i) == (1, 4, 1):
                Transfer.send_ahead = lambda self: time.sleep(1000)
            batch.x.sum().item()


def test_a_step_that_waits_for_rows_of_a_living_rank_is_ended(start_on_all_gpus):
    (results,) = run_some_at_once(start_on_all_gpus, [(send_no_rows,)])
    for other in (result for rank, result in enumerate(results) if rank != 1):
        assert other.exit_code == 1, described(results)
        assert "rank 1" in other.output, described(results)


def compare_epochs(placement, num_seeds):
    """Whole epochs, and some that all ranks leave early: batches here and on the CPU, and how many."""
    faulthandler.dump_traceback_later(STACKS_AFTER)
    manyhop.init()  # which waits longer than a loader
    there, here = make_loader(placement, num_seeds, num_workers=1), make_loader(placement, num_seeds, "cpu")
    seen = []
    for most in (100, 2, 0, 100):
        count, alike = 0, True
        for ours, expected in zip(there, here, strict=True) if most == 100 else zip(there, here, strict=False):
            if count == most:
                break
            count += 1
            alike &= ours.num_nodes == expected.num_nodes and ours.x.is_cuda
            alike &= all(torch.equal(ours[key].cpu(), expected[key]) for key in ("x", "y", "n_id", "edge_index"))
        seen.append((count, alike))
    return seen


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_uneven_seeds_and_epochs_that_are_left(start_on_all_gpus, placement):
    cases = [(compare_epochs, placement, num_seeds) for num_seeds in (51, 8, 200)]
    for (*_, num_seeds), results in zip(cases, run_some_at_once(start_on_all_gpus, cases), strict=True):
        assert all(result.exit_code == 0 for result in results), described(results)
        for result in results:
            assert all(alike for _, alike in result.value), (num_seeds, result.value)
        per_epoch = [sum(counts) for counts in zip(*[[count for count, _ in r.value] for r in results], strict=True)]
        assert per_epoch[0] == per_epoch[3] >= -(-num_seeds // 8)
        assert max(per_epoch[1:3]) <= 2 * len(results)
