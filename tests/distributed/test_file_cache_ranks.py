"""Rows of mapped files that the ranks of a node keep together: exact, whatever another rank does meanwhile."""

import ctypes
import functools
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from manyhop import files
from manyhop.features import cache_files, cpu_kernels, cpu_lookup, file_cache, gather
from manyhop.features import cached_files as hot_files
from manyhop.memory import segments
from manyhop.system.arrays import records

NUM_ROWS, WIDTH = 4000, 33
KEPT = 64


@pytest.fixture
def table(tmp_path):
    """A file whose row ``i`` has ``i`` in all places."""
    np.save(tmp_path / "x.npy", np.repeat(np.arange(NUM_ROWS, dtype=np.float32)[:, None], WIDTH, 1))
    return str(tmp_path / "x.npy")


def cached(path, size=KEPT * WIDTH * 4):
    table = files.open(path).mapped()
    cache_files([table], size)
    return table, file_cache(table)


def read_rows(table, index):
    """Gather; return whether all rows are right."""
    rows = gather([(table, index)])[0]
    return bool((rows == index[:, None]).all()) and rows.shape == (len(index), WIDTH)


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def request_often(table, begin, count=KEPT):
    """Have rows from ``begin`` on kept: nothing else is requested as often."""
    index, cache = torch.arange(begin, begin + count).repeat(4), file_cache(table)

    def are_kept():
        assert read_rows(table, index)
        wait_until(lambda: not cache.is_renewing)
        return cache.cached_ids().tolist() == list(range(begin, begin + count))

    wait_until(are_kept)


def find_rows_of_another_rank(path, folder):
    table, cache = cached(path)
    rank, done = int(os.environ["RANK"]), Path(folder) / f"done on {os.environ['GROUP_RANK']}"
    if rank % 2 == 0:
        request_often(table, 100)
        done.touch()
    wait_until(done.exists)
    cache.take_counts()
    assert read_rows(table, torch.arange(90, 190))
    (Path(folder) / f"read {rank}").touch()
    wait_until(lambda: len(list(Path(folder).glob("read *"))) == 4)  # the memory lives as long as one uses it
    return cache._segment.id, cache.take_counts(), hot_files.in_words([cache])


def test_a_row_read_by_one_rank_is_found_by_the_others_of_its_node(launcher, table, tmp_path):
    seen = launcher.run(find_rows_of_another_rank, table, str(tmp_path), world_size=4, node_of=[0, 0, 1, 1])
    ids = [segment for segment, _, _ in seen]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert [counts for _, counts, _ in seen] == [(100, KEPT)] * 4
    assert "are kept in memory for all ranks of the node" in seen[0][2]


def read_while_replaced(path, folder):
    """Read until all ranks have seen rows replaced many times."""
    table, cache = cached(path)
    rank, step, wrong, end = int(os.environ["RANK"]), 0, 0, time.monotonic() + 200
    draw = np.random.default_rng(rank)

    def all_seen():
        if cache._header[0] > 40:
            (Path(folder) / f"seen {rank}").touch()
        return len(list(Path(folder).glob("seen *"))) == 3

    while time.monotonic() < end and not (step > 100 and all_seen()):
        begin = 37 * (int(cache._header[0]) // 8 % 50)  # ranks ask for about the same rows
        index = torch.from_numpy((draw.zipf(1.3, 1000) + begin) % NUM_ROWS)
        wrong += not read_rows(table, index.int() if step % 2 else index)
        step += 1
    asked, found = cache.take_counts()
    return wrong, all_seen(), found / asked


def test_rows_are_exact_while_ranks_replace_them(launcher, table, tmp_path):
    seen = launcher.run(read_while_replaced, table, str(tmp_path), world_size=3)
    assert [wrong for wrong, *_ in seen] == [0] * 3
    assert all(all_seen for _, all_seen, _ in seen)
    assert all(rate > 0.05 for *_, rate in seen)


def copy_late(path, folder):
    table, cache = cached(path)
    begun, replaced = Path(folder) / "begun", Path(folder) / "replaced"
    if os.environ["RANK"] == "0":
        request_often(table, 100)
        (Path(folder) / "first").touch()
        wait_until(begun.exists)
        request_often(table, 1000)
        replaced.touch()
        return None
    wait_until((Path(folder) / "first").exists)
    copy, copied = cpu_kernels.move_rows, []

    def wait_and_copy(source, rows, target, positions, count, width):
        if not copied:
            begun.touch()
            wait_until(replaced.exists)  # the slots have other rows by now
        copied.append((source == cache._rows.data_ptr(), count))
        copy(source, rows, target, positions, count, width)

    cpu_kernels.move_rows = wait_and_copy
    return read_rows(table, torch.arange(100, 180)), copied, cache.take_counts()


def test_a_reader_that_another_rank_overtakes_reads_the_file(launcher, table, tmp_path):
    _, (is_right, copied, counts) = launcher.run(copy_late, table, str(tmp_path))
    assert copied == [(True, KEPT), (False, 80)]
    assert is_right
    assert counts == (80, 0)


def die_while_writing(path, folder):
    table, cache = cached(path)
    rank = int(os.environ["RANK"])
    (Path(folder) / f"there {rank}").touch()
    if rank == 0:
        wait_until((Path(folder) / "there 1").exists)
        request_often(table, 100)

        def write_half(source, rows, count, row_bytes, target, places, slots):
            at = torch.from_numpy(np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(places)))
            cache._rows.view(torch.float32).view(KEPT, WIDTH)[at] = -1.0
            os.kill(os.getpid(), signal.SIGKILL)

        cpu_lookup.keep_rows = write_half
        request_often(table, 120)  # those that stay are 120 to 163
    wait_until(lambda: cache._header[0] >= 4)  # the rows that go are not found any more
    is_right = read_rows(table, torch.arange(100, 200))
    request_often(table, 200)
    return is_right, read_rows(table, torch.arange(100, 300)), cache.take_counts()[1] > 0


def test_a_rank_that_is_killed_while_it_writes_leaves_right_rows(launcher, table, tmp_path):
    died, other = launcher.start(die_while_writing, table, str(tmp_path)).wait()
    assert died.exit_code == -signal.SIGKILL, died.output
    assert other.exit_code == 0, other.output
    assert other.value == (True, True, True)


def write_into_a_tensor(path, folder):
    table, cache = cached(path)
    written, kept = Path(folder) / "written", Path(folder) / "kept"
    if os.environ["RANK"] == "0":
        table.numpy()[100:200] = -1.0  # torch does not count this as a change
        index = torch.arange(100, 164).repeat(4)

        def is_kept():
            gather([(table, index)])
            return cache.has_chosen and not cache.is_renewing

        wait_until(is_kept)
        kept.touch()
        wait_until(written.exists)
        table[100:200] = -2.0
        return file_cache(table) is None, bool((gather([(table, torch.arange(100, 200))])[0] == -2.0).all())
    wait_until(kept.exists)
    before = read_rows(table, torch.arange(100, 164)), cache.take_counts()
    written.touch()
    return before, read_rows(table, torch.arange(100, 200))


def test_what_a_rank_writes_into_its_tensor_stays_there(launcher, table, tmp_path):
    writes, reads = launcher.run(write_into_a_tensor, table, str(tmp_path))
    assert writes == (True, True)
    assert reads == ((True, (64, 64)), True)


def cache_by_memory(path):
    hot_files.available_memory = lambda: 4 * (1000 * WIDTH * 4 + 5 * NUM_ROWS) + int(os.environ["RANK"])
    table, cache = cached(path, "auto")
    _other, cache2 = cached(path, 0.1)
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return cache.capacity, cache.why, cache._segment.id, cache2._segment.id, file_cache(table) is cache


def test_sizes_are_for_the_node(launcher, table):
    seen = launcher.run(cache_by_memory, table)
    assert seen[0] == seen[1]
    capacity, why, first, second, stays = seen[0]
    assert capacity == 2151  # half of what is available, not divided
    assert why.startswith("half of the 593.8 KiB that were available")
    assert "ranks" not in why
    assert first != second
    assert stays


def ask_for_too_much(path):
    segments.require_memory = functools.partial(refuse, segments.require_memory)
    try:
        cached(path)
    except manyhop.errors.ManyhopError as error:
        return type(error).__name__, str(error)


def refuse(require, what, needed, remedy):
    require(what, 1 << 60, remedy)


def test_a_cache_that_does_not_fit_is_refused(launcher, table):
    (seen,) = launcher.run(ask_for_too_much, table, world_size=1, env={"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    assert seen[0] == "CapacityError"
    assert seen[1].startswith("A cache of rows needs about")
    assert seen[1].endswith("Pass a smaller cache.")


def test_processes_alone_share_nothing(table):
    assert not cached(table)[1].is_shared


def epoch_of_batches(folder):
    manyhop.init()
    data = manyhop_pyg.open(folder, placement="mapped", cache=0.2)
    options = {"num_neighbors": [5, 3], "batch_size": 50, "shuffle": True, "seed": 7, "num_workers": 2}
    loader = manyhop_pyg.NeighborLoader(data, distributed=True, **options)
    batches = [(batch.n_id, batch.x) for batch in loader]
    caches = [record.file_cache for record in records() if record.file_cache is not None]
    wait_until(lambda: all(len(cache.cached_ids()) and not cache.is_renewing for cache in caches))  # another rank's too
    batches += [(batch.n_id, batch.x) for batch in loader]
    torch.distributed.barrier()
    ids = sorted(cache._segment.id for cache in caches)
    return batches, loader.stats(since="epoch").cache_hit_rate, str(loader.stats()), ids


def test_loaders_of_ranks(launcher, tmp_path):
    generator = torch.Generator().manual_seed(0)
    dst = torch.randint(0, 2000, (20_000,), generator=generator)
    src = (2000 * torch.rand(20_000, generator=generator) ** 4).long()
    x = torch.randn(2000, 20, generator=generator)
    manyhop_pyg.save(Data(x=x, edge_index=torch.stack([src, dst])), tmp_path / "g")
    seen = launcher.run(epoch_of_batches, str(tmp_path / "g"))
    for batches, rate, report, ids in seen:
        assert all(rows.equal(x[n_id]) for n_id, rows in batches)
        assert rate > 0
        assert "of rows in files are kept in memory for all ranks of the node" in report
        assert ids == seen[0][3]
