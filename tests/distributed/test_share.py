"""One copy per node, between ranks in processes of their own."""

import ctypes
import gc
import re
import time
from pathlib import Path

import pytest
import torch
from shared_data import make_data, make_hetero, make_stores, refused, same_values, wait_for

import manyhop
import manyhop_pyg
from manyhop.errors import InputError
from manyhop.memory.mapped_files import identity
from manyhop.ranks import world


def see_shared(counter):
    own = make_data()

    def load():
        with open(counter, "a") as file:
            file.write("x")
        return own

    with torch.device("meta"):  # as if torch's default device were a GPU
        data = manyhop_pyg.share(load)
    equal = same_values(data, own)
    rank = world.current().rank
    torch.distributed.barrier()
    if rank == world.current().local_ranks[0]:
        data.x[3] = rank
        data.own = "set here"
    torch.distributed.barrier()
    return equal, [identity(data[k]) for k in ("edge_index", "y")], data.x[3].unique().tolist(), "own" in data


def test_all_ranks_of_a_node_see_one_copy(launcher, tmp_path):
    seen = launcher.run(see_shared, str(tmp_path / "loads"), world_size=3)
    assert (tmp_path / "loads").read_text() == "x"
    assert [s[0] for s in seen] == [True] * 3
    assert seen[0][1] == seen[1][1] == seen[2][1]
    assert None not in seen[0][1]
    assert [s[2] for s in seen] == [[0.0]] * 3
    assert [s[3] for s in seen] == [True, False, False]


def test_nodes_do_not_share(launcher, two_nodes, tmp_path):
    seen = launcher.run(see_shared, str(tmp_path / "loads"), world_size=4, node_of=[0, 1, 0, 1], nodes=two_nodes)
    assert (tmp_path / "loads").read_text() == "xx"
    assert [s[0] for s in seen] == [True] * 4
    assert seen[0][1] == seen[2][1] != seen[1][1] == seen[3][1]
    assert [s[2] for s in seen] == [[0.0], [1.0]] * 2


def share_kinds():
    data, hetero, stores = make_data(), make_hetero(), make_stores()
    adj = make_data(20, 60)
    adj.adj = adj.x.to_sparse_coo()
    shared = [manyhop_pyg.share(x) for x in (data, hetero, stores, adj)]
    ours = [
        t for t in (shared[0].x, shared[1]["b"].x, shared[2][0].get_tensor(None, "x", None), shared[3].adj._values())
    ]
    return [identity(t) for t in ours], [type(s).__name__ for s in shared], data.x.data_ptr() != shared[0].x.data_ptr()


def test_objects_may_be_passed_instead_of_a_function(launcher):
    seen = launcher.run(share_kinds)
    assert seen[0] == seen[1]
    assert None not in seen[0][0]
    assert seen[0][1:] == (["Data", "HeteroData", "tuple", "Data"], True)


def share_alone():
    data = make_data()
    return manyhop_pyg.share(data) is data, manyhop_pyg.share(lambda: data) is data, world.current().num_nodes


def test_who_is_alone_keeps_its_own(launcher):
    assert share_alone() == (True, True, 1)
    manyhop.shutdown()
    assert launcher.run(share_alone, node_of=[0, 1]) == [(True, True, 2)] * 2


def test_arguments_are_checked():
    with pytest.raises(InputError, match=r"Expected a function that loads the data, Data, .* got list"):
        manyhop_pyg.share([1])
    with pytest.raises(InputError, match="Expected timeout in seconds, more than 0, got 0"):
        manyhop_pyg.share(make_data, timeout=0)
    with pytest.raises(InputError, match="inside of load"):
        manyhop_pyg.share(lambda: manyhop_pyg.share(make_data))
    assert same_values(manyhop_pyg.share(make_data), make_data())
    manyhop.shutdown()


# Errors


def fail_to_load():
    def load():
        raise FileNotFoundError("no such folder")

    first = refused(manyhop_pyg.share, load)
    torch.distributed.barrier()
    again = manyhop_pyg.share(make_data).num_nodes
    last = refused(manyhop_pyg.share, lambda: lambda: 0)
    return first, again, last


def test_an_error_of_load_reaches_all(launcher):
    seen = launcher.run(fail_to_load, world_size=3)
    first = {error for error, _, _ in seen}
    (own,) = {error for error in first if error[0] == "FileNotFoundError"}
    assert own[1] == "no such folder"
    (error,) = first - {own}
    assert error[0] == "RankError"
    assert error[1] == (
        f"share() number 1, of fail_to_load.<locals>.load (line {fail_to_load.__code__.co_firstlineno + 1}) failed on "
        f"rank {error[2][0]}: FileNotFoundError: no such folder"
    )
    assert [again for _, again, _ in seen] == [200] * 3
    assert sorted(kind for _, _, (kind, _, _) in seen) == ["InputError", "RankError", "RankError"]
    assert all("cannot be passed to other processes" in text for _, _, (_, text, _) in seen)


def load_at_different_speed():
    world, loaded = manyhop.init(), []

    def load():
        if world.node == 1:
            time.sleep(2)
        loaded.append(time.monotonic())  # of the system's clock, which all processes have
        return make_data()

    num_nodes = manyhop_pyg.share(load).num_nodes
    return num_nodes, loaded, time.monotonic()


def test_all_return_when_the_slowest_node_is_done(launcher):
    results = launcher.run(load_at_different_speed, world_size=3, node_of=[0, 0, 1])
    last = max(time for _, loaded, _ in results for time in loaded)
    for num_nodes, _, returned in results:
        assert num_nodes == 200
        assert returned > last


def fail_on_one_node():
    world = manyhop.init()

    def load():
        if world.node == 1:
            raise FileNotFoundError("no such folder")
        return make_data()

    return refused(manyhop_pyg.share, load), refused(manyhop_pyg.share, [make_data, make_hetero][world.node])


def test_other_nodes_get_an_error(launcher):
    seen = launcher.run(fail_on_one_node, world_size=3, node_of=[0, 0, 1])
    assert seen[2][0] == ("FileNotFoundError", "no such folder", None)
    for (kind, text, ranks), _ in seen[:2]:
        assert (kind, ranks) == ("RankError", (2,))
        assert text.startswith("share() of fail_on_one_node.<locals>.load (line ")
        assert text.endswith(": rank 2 failed: FileNotFoundError: no such folder")
    for _, (kind, text, ranks) in seen:
        assert (kind, ranks) == ("RankError", (2,))
        assert "share(): expected the same call on all ranks" in text


def wait_for_a_slow_node(refusal):
    world = manyhop.init()

    def load():
        if world.node == 1:
            wait_for(refusal)
        return make_data()

    error = refused(manyhop_pyg.share, load, timeout=1)
    if world.node == 0:
        refusal.touch()
    return error


def test_a_slow_node_is_named(launcher, tmp_path):
    kind, text, ranks = launcher.run(wait_for_a_slow_node, tmp_path / "refusal", node_of=[0, 1])[0]
    assert (kind, ranks) == ("RankError", (1,))
    assert "share(): rank 1 did not arrive within 1 s" in text


def share_in_another_order():
    first, second = make_data, make_hetero
    if manyhop.init().rank == 1:
        first, second = second, first
    return refused(manyhop_pyg.share, first, timeout=100), refused(manyhop_pyg.share, second, timeout=100)


def test_different_calls_are_an_error(launcher):
    errors = [error for seen in launcher.run(share_in_another_order) for error in seen if error]
    assert errors
    assert all(kind == "RankError" and "must make the same calls in the same order" in t for kind, t, _ in errors)


def share_more_often_on_rank_1():
    rank = manyhop.init().rank
    return [refused(manyhop_pyg.share, make_data, timeout=100 if call == 0 else 0.5) for call in range(1 + rank)]


def test_one_call_more_is_an_error(launcher):
    (first,), (also, error) = launcher.run(share_more_often_on_rank_1)
    assert first is also is None
    assert error[0] == "RankError"
    assert "1 of the 2 ranks of this node did not call it in time" in error[1]


def wait_for_a_slow_rank(begun, refusal):
    rank = manyhop.init().rank
    if rank == 1:
        wait_for(begun)

    def load():
        begun.touch()
        wait_for(refusal)
        return make_data()

    error = refused(manyhop_pyg.share, load, timeout=200 if rank == 0 else 1)
    if rank == 1:
        refusal.touch()
    return error


def test_a_slow_load_is_named(launcher, tmp_path):
    first, second = launcher.run(wait_for_a_slow_rank, tmp_path / "begun", tmp_path / "refusal")
    assert first is None
    assert second[0] == "RankError"
    assert re.search(r"process \d+, which builds it for this node, was not ready within 1 s", second[1])


# Memory


def private_and_shared():
    """Bytes that this process adds to the memory of the machine: what ranks share counts in parts.

    Without files and without the parts of what the process it was forked from has: they grow while others end.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps is no table
    lines = Path("/proc/self/smaps_rollup").read_text() + Path("/proc/self/status").read_text()
    return sum(1024 * int(size) for size in re.findall(r"(?:Pss_Shmem|RssAnon):\s+(\d+) kB", lines))


def memory_of_a_rank():
    manyhop_pyg.NeighborSampler(manyhop_pyg.share(make_data), [2])  # what is loaded once is loaded now
    before = private_and_shared()
    data = manyhop_pyg.share(lambda: make_data(200_000, 4_000_000, 128))
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    used_tensors = [*data.to_dict().values(), *sampler.topology.graph.tables()]
    pages = [t.flatten()[:: 4096 // t.element_size()] for t in used_tensors if isinstance(t, torch.Tensor)]
    read = sum(int(page.long().sum()) for page in pages)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    used = private_and_shared() - before
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return used, read


def test_four_ranks_need_the_memory_of_one(launcher):
    ((one, read),) = launcher.run(memory_of_a_rank, world_size=1)
    four = launcher.run(memory_of_a_rank, world_size=4)
    assert [r for _, r in four] == [read] * 4
    assert one > 200 << 20
    assert sum(used for used, _ in four) <= 1.1 * one
