"""What is shared per node where ranks end: in order, by a signal, early or while others wait."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from shared_data import make_data, refused, same_values, wait_for, wait_until
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from manyhop.memory import broker, segments, sharing
from manyhop.memory.mapped_files import identity
from manyhop.ranks import world


def end_before_the_others_ask(folder):
    rank = manyhop.init().rank
    if rank > 0:
        wait_for(folder / "asked.0")
        time.sleep(0.5)  # rank 0 is in shutdown() now

    def load():
        (folder / f"loaded.{rank}").touch()
        return make_data()

    data = manyhop_pyg.share(load)
    (folder / f"asked.{rank}").touch()
    manyhop.shutdown()
    for other in range(3):  # the memory lives as long as one uses it
        wait_for(folder / f"asked.{other}")
    return identity(data.x), same_values(data, make_data())


def test_a_rank_that_ends_early_leaves_the_others_its_copy(launcher, tmp_path):
    first, *others = launcher.run(end_before_the_others_ask, tmp_path, world_size=3)
    assert [path.name for path in tmp_path.glob("loaded.*")] == ["loaded.0"]
    assert first[0] is not None
    assert first[1]
    assert others == [first] * 2


def ask_when_the_service_is_gone(folder, end):
    """Rank 0 serves the memory and ends; rank 1 keeps its copy; rank 2 asks then."""
    rank = manyhop.init().rank
    if rank > 0:
        wait_for(folder / f"asked.{rank - 1}")
    if rank == 2:
        wait_for(folder / "ended")

    def load():
        (folder / f"loaded.{rank}").touch()
        return make_data()

    data = manyhop_pyg.share(load)
    tables = manyhop_pyg.NeighborSampler(data, [2]).topology.graph.tables()
    same = identity(data.x), [identity(table) for table in tables], same_values(data, make_data())
    (folder / f"asked.{rank}").touch()
    if rank == 0:
        assert sharing._node.broker._service is not None
        wait_for(folder / "asked.1")
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        broker._LINGER_S = 0.1  # as one that came many seconds later
    if rank == 1:
        wait_for(folder / "asked.2")
    return same


@pytest.mark.parametrize("end", ["killed", "orderly"])
def test_a_copy_outlives_the_process_that_serves_it(launcher, tmp_path, end):
    ranks = launcher.start(ask_when_the_service_is_gone, tmp_path, end, world_size=3)
    ranks.wait_for_exit(0)
    (tmp_path / "ended").touch()
    _, second, third = ranks.wait()
    assert (second.error, third.error) == ("", "")
    assert [path.name for path in tmp_path.glob("loaded.*")] == ["loaded.0"]
    assert second.value == third.value
    assert None not in (second.value[0], *second.value[1])
    assert second.value[2]


def first_to_share(folder):
    """Loads forever on the rank that loads; tells who that is, and how it went on the others."""
    rank = manyhop.init(timeout=60).rank
    manyhop_pyg.share(make_data)  # from here on, one of the ranks runs the service
    torch.distributed.barrier()

    def load():
        (Path(folder) / f"builder.{rank}").touch()
        time.sleep(1000)

    (Path(folder) / f"token.{world.token()}").touch()
    service = sharing._node.broker._service
    if service is not None:
        (Path(folder) / f"service.{rank}").touch()

        def note():
            while (thing := service._things.get("share 2")) is None or thing.came < 3:
                time.sleep(0.01)
            (Path(folder) / f"waiting.{rank}").touch()

        threading.Thread(target=note, daemon=True).start()
    began = time.monotonic()
    error = refused(manyhop_pyg.share, load)
    print(f"{error} after {time.monotonic() - began:.1f} s", flush=True)
    os._exit(0)  # without the end of a group whose ranks were killed


def rank_of(folder, what, kind=int):
    end = time.monotonic() + 200
    while not (found := list(folder.glob(f"{what}.*"))):
        assert time.monotonic() < end
        time.sleep(0.01)
    return kind(found[0].suffix[1:])


def left_behind(token):
    """Names that shared memory of a run may have left."""
    names = [*os.listdir("/dev/shm"), *Path("/proc/net/unix").read_text().splitlines()]
    return [name for name in names if token in name or "manyhop" in name.split("/")[-1].split("@")[0]]


@pytest.mark.parametrize("victim", ["builder", "service"])
def test_the_death_of_a_rank_reaches_the_others_at_once(launcher, tmp_path, victim):
    ranks = launcher.start(first_to_share, str(tmp_path), world_size=3)
    rank, other = rank_of(tmp_path, victim), rank_of(tmp_path, "builder")
    rank_of(tmp_path, "waiting")  # the service knows all three
    began = time.monotonic()
    ranks.kill(rank)
    waiting = {0, 1, 2} - {rank, other}
    for waits in waiting:
        ranks.wait_for_output(waits, "RankError")
        text = ranks.output(waits)
        assert ("passes on shared memory has ended" in text) or f"rank {rank}, which did it" in text
    assert time.monotonic() - began < 200  # ranks wait ten minutes for a load
    if other != rank:
        ranks.kill(other)
    ranks.wait()
    token = rank_of(tmp_path, "token", str)
    assert wait_until(lambda: not left_behind(token)), left_behind(token)


def hold_memory(num_bytes):
    data = manyhop_pyg.share(lambda: Data(x=torch.ones(num_bytes // 4), edge_index=make_data().edge_index))
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    assert identity(sampler.topology.graph.tables()[0]) is not None
    segment = segments.find(segments.where(data.x.data_ptr())[0])
    print("token", world.token(), "inode", os.fstat(segment.fd).st_ino, "ready", flush=True)
    time.sleep(1000)


def holders(inode):
    """Processes that have mapped or opened an anonymous file of ours: the kernel frees it with the last one."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            fields = [line.split() for line in (process / "maps").read_text().splitlines() if "memfd:manyhop" in line]
            if any(int(line[4]) == inode for line in fields):
                found.add(process.name)
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if "memfd:manyhop" in os.readlink(fd) and fd.stat().st_ino == inode:
                        found.add(process.name)
    return found


def test_kill_9_of_all_leaves_nothing_behind(launcher):
    ranks = launcher.start(hold_memory, 16 << 20)
    for rank in range(2):
        ranks.wait_for_output(rank, "ready")
    last, other = (ranks.output(rank).splitlines()[-1] for rank in range(2))  # kernels may have been compiled before
    _, token, _, inode, _ = last.split()
    assert other == last
    assert len(left_behind(token)) > 0  # the socket
    assert len(holders(int(inode))) == 2
    for rank in range(2):
        ranks.kill(rank)
    assert [r.exit_code for r in ranks.wait()] == [-signal.SIGKILL] * 2
    assert wait_until(lambda: not left_behind(token)), left_behind(token)
    assert wait_until(lambda: not holders(int(inode))), holders(int(inode))
