"""A rank of four or five fails while others are far ahead or behind: all name it, and nobody hangs.

Ranks without GPUs exchange rows as between GPUs; see test_exchange_gpu.py.
"""

import faulthandler
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from faults import fail_in_step
from torch_geometric.data import Data

import manyhop
from manyhop.errors import RankError
from manyhop.ranks import control
from manyhop_pyg import NeighborLoader

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
ENV = {"TRITON_INTERPRET": "1"}
TIMEOUT = 8.0
HANGS = 200.0  # seconds, about 20 on a quiet machine


def make_loader(timeout):
    generator = torch.Generator().manual_seed(1)
    data = Data(x=torch.randn(60, 12, generator=generator), edge_index=torch.randint(0, 60, (2, 300)))
    return NeighborLoader(
        data, [2, 2], torch.arange(56), batch_size=4, shuffle=True, seed=3, distributed=True, rank_timeout=timeout,
        placement="distributed",
    )  # fmt: skip


def prepare():
    """Have the ranks begin together: on a busy machine they start at different times."""
    import whole_graph_stand_in

    faulthandler.dump_traceback_later(HANGS - 50)
    torch.set_num_threads(1)
    whole_graph_stand_in.install()
    rank = manyhop.init().rank
    list(make_loader(100.0))
    control.exchange("all are ready", {}, timeout=100.0)
    return rank


def get_stuck(how):
    """From now on, announce what this rank takes part in, and send no rows."""
    from manyhop.features.exchange.gpu.transfer import Transfer

    Transfer.send_ahead = lambda self: os.kill(os.getpid(), signal.SIGSTOP) if how == "stop" else time.sleep(1000)


def train(fault, culprit, at, pauses):
    """Rank ``culprit`` fails in its second epoch; each rank has a pause of its own in its steps."""
    rank = prepare()
    loader = make_loader(TIMEOUT)
    for epoch in range(1000):
        for i, _ in enumerate(loader):
            if (rank, epoch, i) == (culprit, 1, at):
                if fail_in_step(fault):
                    return
                get_stuck(fault)
            time.sleep(0.01 + pauses[rank])


EXPECTED = {
    "raise": "KeyError: 'my step is broken'",
    "kill": "",
    "break": "left its loop after",
    "stop": "rank 1 gave no sign of life for",
    "stay": "rank 1 did not come, or ended",
}
CASES = [
    ("raise", 1, 2, [0.3, 0, 0, 0.4]),  # no exchange of this epoch is left: the others meet in the next one, or do not
    ("break", 1, 1, [0.2, 0, 0, 0.2]),  # some wait in an exchange, others look for a deeper reason
    ("raise", 0, 2, [0, 0, 0.5, 0.1, 0.2]),  # the store of the ranks ends before they need it
    ("kill", 2, 1, [0.5, 0.1, 0, 0.3]),
    ("kill", 0, 2, [0, 0.1, 0.7, 0]),
    ("kill", 1, 0, [2.5, 0, 0]),  # rank 0 is in its step for longer than others wait for it to miss rank 1, too
    ("stop", 1, 2, [0, 0, 0]),
    ("stay", 1, 2, [0, 0, 0]),  # its own watch ends it, once the others have ended
]


def test_all_other_ranks_name_the_one_at_fault(launcher):
    jobs = [launcher.start(train, *case, world_size=len(case[-1]), env=ENV) for case in CASES]
    for (fault, culprit, _, pauses), job in zip(CASES, jobs, strict=True):
        if fault == "stop":
            try:
                for rank in set(range(len(pauses))) - {culprit}:
                    job.wait_for_exit(rank, HANGS)
            finally:
                job.kill(culprit)
    for (fault, culprit, at, pauses), job in zip(CASES, jobs, strict=True):
        for rank, result in enumerate(job.wait(HANGS)):
            what = (fault, culprit, at, pauses, rank, result.error, result.output)
            if rank == culprit:
                assert result.exit_code == {"kill": -9, "stop": -9, "break": 0}.get(fault, 1), what
            else:
                assert result.exit_code == 1, what
                assert result.error.startswith("RankError: "), what
                assert re.search(rf"\brank {culprit}\b", result.error), what
                assert EXPECTED[fault] in result.error, what
                assert ("rank_timeout" in result.error) == (fault == "stay"), what  # only where a rank may be late


def lose_each_other():
    """All lose an exchange at the same time: it is nobody's fault."""
    from manyhop.features.exchange.gpu.exchange import GPUExchange

    prepare()
    loader = make_loader(TIMEOUT)
    give = GPUExchange._exchange

    def exchange(self, groups, signature, tag, stream):
        if tag == (0, 2):
            raise RuntimeError("nothing came")
        give(self, groups, signature, tag, stream)

    GPUExchange._exchange = exchange
    for _ in loader:
        pass


def test_ranks_that_lose_each_other_end(launcher):
    for result in launcher.start(lose_each_other, world_size=3, env=ENV).wait(HANGS):
        assert result.exit_code == 1, result
        assert "exchange 2 of epoch 0: a rank ended or is late (nothing came)" in result.error, result


def wait_for_rows(complete):
    """How many batches a rank gets before the error, if the rows of those that have been made have come or not."""
    from gpu_stand_ins import NoStreams

    rank = prepare()
    NoStreams.is_complete = lambda self, made: complete
    received = 0
    try:
        for _ in make_loader(TIMEOUT):
            received += 1
            if rank == 1 and received == 2:
                control.exchange("the others have raised", {}, timeout=100.0)
                break
    except RankError as error:
        control.exchange("the others have raised", {}, timeout=100.0)
        return received, str(error)
    return received, ""


@pytest.mark.parametrize("complete", [True, False])
def test_a_batch_whose_rows_may_never_come_is_not_handed_out(launcher, complete):
    found = launcher.run(wait_for_rows, complete, world_size=3, env=ENV)
    for received, message in found[::2]:
        assert received == 2 + complete
        assert "exchange 3 of epoch 0: rank 1 did not come" in message
        assert "Last known of rank 1: 2 batches of epoch 0 received" in message
    assert found[1] == (2, "")


def ask_again():
    """Rank 1 cannot make its third batch; each rank asks for one more after its error."""
    rank = prepare()
    loader, made = make_loader(TIMEOUT), []

    def refuse_one(batch):
        made.append(batch)
        if rank == 1 and len(made) == 3:
            raise ValueError("row 7 is broken")
        return batch

    loader.transform = refuse_one
    iterator, errors = iter(loader), []
    while len(errors) < 2:
        try:
            next(iterator)
        except Exception as error:  # StopIteration is one
            errors.append(f"{type(error).__name__}: {error}")
    return errors


def test_no_rank_goes_on_after_an_error(launcher):
    for rank, (first, second) in enumerate(launcher.run(ask_again, world_size=2, env=ENV)):
        assert first.startswith("ValueError: row 7" if rank == 1 else "RankError: ")
        assert "row 7 is broken" in first
        assert second.startswith("InputError: Expected no request for batches after an error that ended the epoch")
