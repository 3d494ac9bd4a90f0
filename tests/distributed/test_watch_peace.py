"""Where the watch has to keep quiet, and how loops may end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from launch import reserve_port
from watched import Loader, wait_until_left

import manyhop
from manyhop.errors import InputError, RankError
from manyhop.ranks import control
from manyhop.ranks.watch import Watch


def live_together(timeout):
    """Two loaders, different speeds, a common break, a peek; rank 0, which holds the store, ends long before rank 1."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train, valid = Loader(60, timeout), Loader(10, timeout)
    peeked = iter(train)
    seen = [next(peeked)]
    for epoch in range(4):
        for batch in train:
            seen.append(batch)
            time.sleep(0.002 * (1 + rank))
            if epoch == 1 and batch == 30:
                break
            if epoch == 2 and batch == 5:
                seen += list(valid)
        time.sleep(0.3 * timeout * rank)
    for _ in valid:
        time.sleep(0.05 + rank * 0.2)
    return len(seen)


def step_long(timeout):
    """A long first batch and a long step on all ranks; then rank 0 saves a checkpoint while the others wait for it."""
    dist.init_process_group("gloo")
    for batch in Loader(4, timeout, first_takes=2.2 * timeout):
        if batch == 1:
            time.sleep(2.2 * timeout)
        if batch == 2:
            if dist.get_rank() == 0:
                time.sleep(2.2 * timeout)
            dist.barrier()
    manyhop.shutdown()
    dist.destroy_process_group()
    return True


def recover():
    """A batch of rank 1 fails, both go on with the next epoch."""
    rank = manyhop.init().rank
    loader = Loader(100_000, fail_at=5 if rank == 1 else None)
    errors = []
    try:
        for _ in loader:
            time.sleep(0.005)
    except (ValueError, RankError) as error:
        errors.append(str(error))
    loader._fail_at = None
    loader._batches = 20
    return errors, len(list(loader)), len(list(loader))


def leave_unnoticed():
    """Rank 1 leaves early, and rank 0 is through with the epoch before it can hear of that."""
    rank = manyhop.init().rank
    loader = Loader(20)
    for batch in loader:
        if rank == 1 and batch == 3:
            control.exchange("rank 0 is through", {}, timeout=200.0)
            break
    if rank == 1:
        control.exchange("rank 0 has read it", {}, timeout=200.0)
        return None
    control.exchange("rank 0 is through", {}, timeout=200.0)
    wait_until_left(1)
    control.exchange("rank 0 has read it", {}, timeout=200.0)
    try:
        iter(loader)
    except RankError as error:
        return str(error), error.ranks


def test_no_false_alarms(launcher):
    jobs = [
        launcher.start(live_together, 4.0, world_size=2),
        launcher.start(live_together, 4.0, world_size=3),
        launcher.start(step_long, 3.0),
        launcher.start(recover),
        launcher.start(leave_unnoticed),
    ]
    results = [ranks.wait() for ranks in jobs]
    for job in results:
        assert [result.exit_code for result in job] == [0] * len(job), job
    lived, lived_of_three, stepped, recovered, unnoticed = ([result.value for result in job] for job in results)
    assert lived == lived_of_three[:2] == [1 + 31 + 10 + 3 * 60] * 2
    assert stepped == [True, True]
    assert recovered[0] == (["Loader: rank 1 failed after 5 batches of epoch 0: ValueError: row 7 is broken"], 20, 20)
    assert recovered[1] == (["row 7 is broken"], 20, 20)
    message, culprits = unnoticed[0]
    assert "rank 1 left its loop after 4 batches" in message
    assert culprits == (1,)
    assert unnoticed[1] is None


def end_program(how):
    rank = manyhop.init().rank
    loader = Loader(100_000)
    if how == "after an epoch":
        loader._batches = 20
    for epoch in range(2):
        for batch in loader:
            time.sleep(0.005)
            if rank == 1 and batch == 10 and how == "exit":
                sys.exit(0)
        if rank == 1 and epoch == 0:
            return
        loader._batches = 100_000


def lose_rank_0(sig, together):
    dist.init_process_group("gloo")
    for batch in Loader(100_000):
        if together:
            dist.barrier()
        time.sleep(0.01)
        if dist.get_rank() == 0 and batch == 20:
            os.kill(os.getpid(), sig)


@pytest.fixture(scope="module")
def ended(launcher):
    """How the ranks of some jobs ended, which ran at the same time."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": str(store.port)}
    jobs = {
        "exit": launcher.start(end_program, "exit"),
        "after an epoch": launcher.start(end_program, "after an epoch"),
        "killed": launcher.start(lose_rank_0, signal.SIGKILL, False),
        "stopped": launcher.start(lose_rank_0, signal.SIGSTOP, False),
        "stopped in a collective": launcher.start(lose_rank_0, signal.SIGSTOP, True),
        "killed, agent": launcher.start(lose_rank_0, signal.SIGKILL, False, env=env),
    }
    for name, ranks in jobs.items():
        if name.startswith("stopped"):
            ranks.wait_for_exit(1)
            ranks.kill(0)
    return {name: ranks.wait() for name, ranks in jobs.items()}


def test_ranks_that_end_their_program(ended):
    for how, text in ("exit", "left its loop after 11 batches"), ("after an epoch", "ended its program after 1 epoch"):
        other, culprit = ended[how]
        assert other.error.startswith(f"RankError: Loader: rank 1 {text}")
        assert culprit.exit_code == 0


def test_rank_0_takes_the_store_with_it(ended):
    text = "the process of rank 0, which holds it, was killed or stopped"
    assert text in ended["killed"][1].error
    assert text in ended["stopped"][1].error
    waiting = ended["stopped in a collective"][1]
    assert waiting.exit_code == 1
    assert "rank 1 cannot go on (it is at test_watch_peace.py" in waiting.output
    assert text in waiting.output


def test_the_store_of_an_agent_outlives_rank_0(ended):
    assert ended["killed, agent"][1].error.startswith("RankError: Loader: rank 0 gave no sign of life for ")


SCRIPT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import manyhop
from watched import Loader
rank = manyhop.init().rank
for batch in Loader(100_000, float(sys.argv[3])):
    time.sleep(0.005)
    if batch == 10 and rank == 1 and sys.argv[2] == "raise":
        raise KeyError("my step is broken")
    if batch == 10 and sys.argv[2] == "end":
        print("done")
        sys.exit(0)
"""


@pytest.mark.parametrize(("how", "codes"), [("raise", [1, 1]), ("end", [0, 0])])
@pytest.mark.slow
def test_programs_end_as_python_ends_them(how, codes):
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), how, "20.0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with reserve_port() as reserved:
        where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(reserved.getsockname()[1])}
        env = os.environ | where
        ranks = [subprocess.Popen(command, env=env | {"RANK": str(rank)}, **pipes) for rank in range(2)]
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == codes, outputs
    if how == "raise":
        assert "rank 1 ended its program after 11 batches of epoch 0: KeyError: 'my step is broken'" in outputs[0][1]
    else:
        assert outputs == [("done\n", "")] * 2


def test_a_process_alone_has_no_watch():
    watch = Watch("Loader", timeout=1.0)
    iteration = watch.begin(0)
    iteration.requested()
    iteration.received()
    iteration.ended()
    manyhop.shutdown()


def test_the_timeout_is_positive():
    with pytest.raises(InputError, match="rank_timeout of more than 0"):
        Watch("Loader", timeout=0.0)
