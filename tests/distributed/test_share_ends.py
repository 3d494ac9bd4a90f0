"""What is shared per node where ranks end: in order, by a signal, early or while others wait."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from shared_data import make_data, refused, same_values, wait_for, wait_until
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from manyhop.memory import segments
from manyhop.memory.mapped_files import identity


def ask_when_the_builder_is_gone(folder, end):
    """Rank 0 builds the tables and ends; rank 1 keeps its copy; rank 2 asks then."""
    rank = manyhop.init().rank

    def load():
        (folder / f"loaded.{rank}").touch()
        return make_data()

    if rank > 0:
        wait_for(folder / "loaded.0")
    data = manyhop_pyg.share(load)
    if rank > 0:
        wait_for(folder / f"asked.{rank - 1}")
    if rank == 2:
        wait_for(folder / "ended")
    tables = manyhop_pyg.NeighborSampler(data, [2]).topology.graph.tables()
    same = identity(data.x), [identity(table) for table in tables], same_values(data, make_data())
    (folder / f"asked.{rank}").touch()
    if rank == 0:
        wait_for(folder / "asked.1")
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        wait_for(folder / "asked.2")
    return same


@pytest.mark.parametrize("end", ["killed", "orderly"])
def test_a_copy_outlives_the_process_that_built_it(launcher, tmp_path, end):
    ranks = launcher.start(ask_when_the_builder_is_gone, tmp_path, end, world_size=3)
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
    torch.distributed.barrier()

    def load():
        part = folder / "part"
        part.write_text("\n".join(own_names()))
        part.rename(folder / f"builder.{rank}")
        time.sleep(1000)

    (folder / f"asks.{rank}").touch()
    began = time.monotonic()
    error = refused(manyhop_pyg.share, load)
    print(f"{error} after {time.monotonic() - began:.1f} s", flush=True)
    os._exit(0)  # without the end of a group whose ranks were killed


def own_names():
    """Names under which other processes find what this one shares or is building."""
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            links.append(os.readlink(fd))
    sockets = {inode: name for inode, name in socket_names() if f"socket:[{inode}]" in links}
    records = [link.split(" ")[1] for link in links if link.startswith("/memfd:manyhop ")]
    return sorted({*sockets.values(), *records})


def socket_names():
    """Sockets of this machine that shared memory may have: ``(inode, key)``; other tests have some, too."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return [(line[6], line[8]) for line in lines if line[7:8] == ["@manyhop"]]


def left_behind(names):
    """Files of shared memory, and those of ``names`` that a socket has."""
    files = [file for file in os.listdir("/dev/shm") if "manyhop" in file]
    return files + [key for _, key in socket_names() if key in names]


def test_the_death_of_the_builder_reaches_the_others_at_once(launcher, tmp_path):
    ranks = launcher.start(first_to_share, tmp_path, world_size=3)
    assert wait_until(lambda: list(tmp_path.glob("builder.*")) and len(list(tmp_path.glob("asks.*"))) == 3)
    (path,) = tmp_path.glob("builder.*")
    builder, names = int(path.suffix[1:]), path.read_text().split()
    assert len(names) == 1
    assert left_behind(names)  # while it builds
    began = time.monotonic()
    ranks.kill(builder)
    for other in {0, 1, 2} - {builder}:
        ranks.wait_for_output(other, "RankError")
        assert "which was building it for this node, has ended" in ranks.output(other)
    assert time.monotonic() - began < 200  # ranks wait ten minutes for a load
    ranks.wait()
    assert wait_until(lambda: not left_behind(names)), left_behind(names)


def hold_memory(num_bytes):
    data = manyhop_pyg.share(lambda: Data(x=torch.ones(num_bytes // 4), edge_index=make_data().edge_index))
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    assert identity(sampler.topology.graph.tables()[0]) is not None
    segment = segments.find(segments.where(data.x.data_ptr())[0])
    print(*own_names(), os.fstat(segment.fd).st_ino, "ready", flush=True)
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
    *names, inode, _ = last.split()
    assert other == last
    assert len(names) == 2  # the data and the tables
    assert len(holders(int(inode))) == 2
    for rank in range(2):
        ranks.kill(rank)
    assert [r.exit_code for r in ranks.wait()] == [-signal.SIGKILL] * 2
    assert wait_until(lambda: not left_behind(names)), left_behind(names)
    assert wait_until(lambda: not holders(int(inode))), holders(int(inode))
