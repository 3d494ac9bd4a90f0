"""Who the ranks are, and what they agree on."""

import os
import socket
import time

import pytest
import torch
import torch.distributed as dist

import manyhop
from manyhop import World
from manyhop.errors import InputError, RankError
from manyhop.ranks import control
from manyhop.ranks import world as w
from manyhop.ranks.world import current_rank, node_identity, number_nodes


def test_arithmetic_of_ranks_and_nodes():
    world = World(3, (0, 0, 1, 1, 1))
    assert (world.world_size, world.num_nodes, world.node) == (5, 2, 1)
    assert (world.local_rank, world.local_world_size, world.local_ranks) == (1, 3, (2, 3, 4))
    assert world.ranks_of(0) == (0, 1)
    assert not world.is_alone
    assert World(0, (0,)).is_alone


@pytest.mark.parametrize(("rank", "nodes"), [(2, (0, 0)), (-1, (0,)), (0, (1, 0)), (0, (0, 2)), (0, ())])
def test_impossible_worlds_are_refused(rank, nodes):
    with pytest.raises(InputError, match="Expected"):
        World(rank, nodes)


def test_nodes_are_numbered_by_their_first_ranks():
    assert number_nodes(["b", "a", "b", "c"]) == (0, 1, 0, 2)


def test_torchrun_knows_the_node_better_than_the_host_name():
    assert node_identity({"GROUP_RANK": "1"}, "host") != node_identity({"GROUP_RANK": "2"}, "host")
    assert node_identity({}, "one") != node_identity({}, "two")


def test_a_process_stands_alone():
    assert manyhop.init() == World(0, (0,)) == w.current()
    assert control.exchange("alone", {"a": 1}, timeout=1) == [{"a": 1}]
    manyhop.shutdown()


def test_incomplete_variables_are_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match="MASTER_ADDR"):
        manyhop.init()


@pytest.fixture
def second_of_two(monkeypatch):
    """A port that ranks started by SLURM or mpirun find; this process is rank 1."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        for name, value in zip(w._TORCHRUN, (1, 2, "127.0.0.1", server.getsockname()[1]), strict=True):
            monkeypatch.setenv(name, str(value))
        yield server


# Where nobody listens, torch says so after the time given, or this process stops waiting for it on a busy machine.
@pytest.mark.parametrize(("listens", "got"), [(True, "no answer"), (False, "(.*timed out.*|no answer)")])
def test_a_port_of_something_that_never_answers(second_of_two, listens, got):
    if listens:
        second_of_two.listen()
    start = time.monotonic()
    with pytest.raises(RankError, match=rf"2 ranks to meet at 127.0.0.1:\d+ .* within 0.5 s, got on rank 1: {got}\."):
        manyhop.init(timeout=0.5)
    assert time.monotonic() - start < 100  # torch waits for five minutes
    assert not dist.is_initialized()


def see_world():
    before = current_rank()
    world = manyhop.init()
    again = manyhop.init()
    x = torch.ones(1)
    dist.all_reduce(x)
    return before, world, again is world, w.token(), x.item()


def test_ranks_find_each_other(launcher):
    seen = launcher.run(see_world, world_size=4, node_of=[0, 0, 1, 1])
    assert [s[0] for s in seen] == [0, 1, 2, 3]
    assert [s[1] for s in seen] == [World(r, (0, 0, 1, 1)) for r in range(4)]
    assert all(s[2] for s in seen)
    assert len({s[3] for s in seen}) == 1
    assert {s[4] for s in seen} == {4.0}


def test_a_rank_has_the_gpu_of_its_number_once_cuda_starts(monkeypatch):
    queued, chosen = [], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    w._choose_gpu(1)
    w._choose_gpu(2)  # sees two: whoever started the ranks has shown each of them others
    assert chosen == []
    for start in queued:
        start()
    assert chosen == [1]


def see_own_groups(folder):
    where = {"world_size": int(os.environ["WORLD_SIZE"]), "rank": int(os.environ["RANK"])}
    seen = []
    for name in ("one", "another"):
        dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", **where)
        seen += [manyhop.init(), w.token()]
        assert manyhop.init() is seen[-2]
        manyhop.shutdown()
        seen.append(dist.is_initialized())
        manyhop.init()
        dist.destroy_process_group()
    return seen


def test_groups_of_the_user_are_used_and_left_alone(launcher, tmp_path):
    seen = launcher.run(see_own_groups, str(tmp_path))
    for rank, (world, _, alive, world_again, _, alive_again) in enumerate(seen):
        assert world == world_again == World(rank, (0, 0))
        assert alive
        assert alive_again
    assert seen[0][1] == seen[1][1] != seen[0][4] == seen[1][4]


def timeout_of_collectives():
    manyhop.init(timeout=100)
    return dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout


def test_collectives_of_a_group_made_here_have_torchs_timeout(launcher):
    assert launcher.run(timeout_of_collectives) == [dist.constants.default_pg_timeout] * 2


def miss_a_rank():
    if os.environ["RANK"] == "2":
        return None
    try:
        manyhop.init(timeout=8)
    except RankError as error:
        return str(error), error.ranks, control.store(), dist.is_initialized()


def test_ranks_that_do_not_start_are_named(launcher):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent has one
    env = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": str(store.port)}
    for message, ranks, left, initialized in launcher.run(miss_a_rank, world_size=3, env=env)[:2]:
        assert message.startswith("manyhop.init(): rank 2 did not arrive within 8 s")
        assert (ranks, left, initialized) == ((2,), None, False)
    del store


def disagree(facts):
    rank = manyhop.init().rank
    try:
        return control.agree("a loader", facts[rank], timeout=100)
    except RankError as error:
        return str(error), error.ranks


def test_the_first_difference_is_named_on_every_rank(launcher):
    facts = [{"n": 1, "s": "x"}, {"n": 1, "s": "y"}, {"n": 1, "s": "x"}]
    for message, ranks in launcher.run(disagree, facts, world_size=3):
        assert ranks == (1,)
        assert 'same s on all ranks, got "x" on ranks 0 and 2; "y" on rank 1' in message


def come_late():
    rank = manyhop.init().rank
    if rank == 1:
        time.sleep(3)
        return None
    start = time.monotonic()
    try:
        control.agree("a loader", {}, timeout=0.5)
    except RankError as error:
        return str(error), error.ranks, time.monotonic() - start


def test_ranks_that_do_not_come_are_named(launcher):
    message, ranks, seconds = launcher.run(come_late)[0]
    assert ranks == (1,)
    assert "a loader: rank 1 did not arrive within 0.5 s" in message
    assert seconds < 100  # by default ranks wait for ten minutes


def fork_and_end():
    manyhop.init()
    pid = os.fork()
    if pid == 0:
        manyhop.shutdown()
        os._exit(0)
    os.waitpid(pid, 0)
    x = torch.ones(1)
    dist.all_reduce(x)
    return control.exchange("after the fork", {}, timeout=200), x.item()


def test_a_forked_child_leaves_the_run_alone(launcher):
    assert launcher.run(fork_and_end) == [([{}, {}], 2.0)] * 2
