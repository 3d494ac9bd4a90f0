"""One copy per node, between ranks in processes of their own."""

import copy
import gc
import os
import pickle
import signal
import time
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import manyhop
import manyhop_pyg
from manyhop import world
from manyhop.errors import GraphError, InputError
from manyhop.memory import _segment, _share, identity
from manyhop_pyg._engine import tables


def make_data(num_nodes=200, num_edges=3000, width=8):
    g = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(num_nodes, width, generator=g),
        y=torch.randint(0, 3, (num_nodes,), generator=g),
        edge_index=torch.randint(0, num_nodes, (2, num_edges), generator=g),
        edge_attr=torch.arange(num_edges).view(-1, 1),
        edge_weight=torch.rand(num_edges, generator=g),
        time=torch.randint(0, 20, (num_nodes,), generator=g),
        edge_time=torch.rand(num_edges, generator=g),
        name="small",
    )


def make_hetero():
    g = torch.Generator().manual_seed(2)
    data = HeteroData(name="typed")
    data["a"].x, data["b"].x = torch.randn(50, 3, generator=g), torch.randn(70, 5, generator=g)
    for t, n in ((("a", "to", "b"), (50, 70)), (("b", "back", "a"), (70, 50)), (("a", "none", "a"), (50, 50))):
        size = 0 if t[1] == "none" else 400
        data[t].edge_index = torch.stack([torch.randint(0, k, (size,), generator=g) for k in n])
    return data


def make_stores():
    data, features, graph = make_data(), manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(200, 200))
    return features, graph


def same_values(a, b):
    return all(torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k] for k, v in a.to_dict().items())


def refused(call, *args, **kwargs):
    """The error of a call as (type, text, ranks)."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "ranks", None)
    return None


# Content


def see_shared(counter):
    def load():
        with open(counter, "a") as file:
            file.write("x")
        return make_data()

    data = manyhop_pyg.share(load)
    equal = same_values(data, make_data())
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
    with pytest.raises(InputError, match="timeout of more than 0 seconds, got 0"):
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
    torch.distributed.barrier()  # who is done early ends the service
    return first, again, last


def test_an_error_of_load_reaches_all(launcher):
    seen = launcher.run(fail_to_load, world_size=3)
    (own,) = {first for first, _, _ in seen if first[0] == "FileNotFoundError"}
    assert own[1] == "no such folder"
    others = {first for first, _, _ in seen if first != own}
    (error,) = others
    assert error[0] == "RankError"
    assert error[1] == (
        f"share() number 1, of fail_to_load.<locals>.load (line {fail_to_load.__code__.co_firstlineno + 1}) failed on "
        f"rank {error[2][0]}: FileNotFoundError: no such folder"
    )
    assert [again for _, again, _ in seen] == [200] * 3
    assert sorted(kind for _, _, (kind, _, _) in seen) == ["InputError", "RankError", "RankError"]
    assert all("cannot be passed to other processes" in text for _, _, (_, text, _) in seen)


def share_in_another_order():
    first, second = make_data, make_hetero
    if manyhop.init().rank == 1:
        first, second = second, first
    return refused(manyhop_pyg.share, first, timeout=20), refused(manyhop_pyg.share, second, timeout=20)


def test_different_calls_are_an_error(launcher):
    errors = [error for seen in launcher.run(share_in_another_order) for error in seen if error]
    assert errors
    assert all(kind == "RankError" and "have to make the same calls in the same order" in t for kind, t, _ in errors)


def share_more_often_on_rank_1():
    rank = manyhop.init().rank
    return [manyhop_pyg.share(make_data).num_nodes for _ in range(1 + rank)]


def test_one_call_more_does_not_hang(launcher):
    assert launcher.run(share_more_often_on_rank_1, timeout=60) == [[200], [200, 200]]


def wait_for_a_slow_rank():
    rank = manyhop.init().rank
    if rank == 1:
        time.sleep(0.5)

    def load():
        time.sleep(3)
        return make_data()

    return refused(manyhop_pyg.share, load, timeout=60 if rank == 0 else 1)


def test_a_slow_load_is_named(launcher):
    first, second = launcher.run(wait_for_a_slow_rank)
    assert first is None
    assert second[0] == "RankError"
    assert "rank 0, which does it for this node, was not ready within 1 s" in second[1]
    assert second[2] == (0,)


# Death


def first_to_share(folder):
    """Loads forever on the rank that loads; tells who that is, and how it went on the others."""
    rank = manyhop.init(timeout=60).rank
    manyhop_pyg.share(make_data)  # from here on, one of the ranks runs the service
    torch.distributed.barrier()

    def load():
        (Path(folder) / f"builder.{rank}").touch()
        time.sleep(1000)

    (Path(folder) / f"token.{world.token()}").touch()
    if _share._node.broker._service is not None:
        (Path(folder) / f"service.{rank}").touch()
    began = time.monotonic()
    error = refused(manyhop_pyg.share, load)
    print(f"{error} after {time.monotonic() - began:.1f} s", flush=True)
    os._exit(0)  # without the end of a group whose ranks were killed


def rank_of(folder, what, kind=int):
    end = time.monotonic() + 60
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
    time.sleep(0.5)  # the others wait
    began = time.monotonic()
    ranks.kill(rank)
    waiting = {0, 1, 2} - {rank, other}
    for waits in waiting:
        ranks.wait_for_output(waits, "RankError", timeout=20)
        text = ranks.output(waits)
        assert ("passes on shared memory has ended" in text) or f"rank {rank}, which did it" in text
    assert time.monotonic() - began < 10
    if other != rank:
        ranks.kill(other)
    ranks.wait()
    assert left_behind(rank_of(tmp_path, "token", str)) == []


def hold_memory(num_bytes):
    data = manyhop_pyg.share(lambda: Data(x=torch.ones(num_bytes // 4), edge_index=make_data().edge_index))
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    assert identity(tables(sampler.topology.graph)[0]) is not None
    print("token", world.token(), "ready", flush=True)
    time.sleep(1000)


def shared_memory():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


def test_kill_9_of_all_leaves_nothing_behind(launcher):
    num_bytes = 256 << 20
    ranks = launcher.start(hold_memory, num_bytes)
    for rank in range(2):
        ranks.wait_for_output(rank, "ready")
    token = ranks.output(0).split()[1]
    assert len(left_behind(token)) > 0  # the socket
    used = shared_memory()
    assert used > num_bytes
    for rank in range(2):
        ranks.kill(rank)
    assert [r.exit_code for r in ranks.wait()] == [-signal.SIGKILL] * 2
    assert left_behind(token) == []
    end = time.monotonic() + 10
    while used - shared_memory() < num_bytes * 0.8 and time.monotonic() < end:
        time.sleep(0.05)
    assert used - shared_memory() > num_bytes * 0.8


# Memory


def private_and_shared():
    """Bytes that this process adds to the memory of the machine: what processes share counts in parts."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def memory_of_a_rank():
    manyhop_pyg.NeighborSampler(make_data(), [2])  # what is loaded once is loaded now
    before = private_and_shared()
    data = manyhop_pyg.share(lambda: make_data(100_000, 2_000_000, 128))
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    used_tensors = [*data.to_dict().values(), *tables(sampler.topology.graph)]
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
    assert one > 100 << 20
    assert sum(used for used, _ in four) <= 1.1 * one


# Tables


CASES = {
    "plain": {},
    "sorted": {"is_sorted": True},
    "weighted": {"weight_attr": "edge_weight"},
    "times of nodes": {"time_attr": "time"},
    "times of edges": {"time_attr": "edge_time"},
    "backward": {"sample_direction": "backward"},
}


def make_sampler(case, data):
    if case == "sorted":
        data.edge_index = data.edge_index_sorted
    return manyhop_pyg.NeighborSampler(data, [3, 2], **CASES[case])


def make_sortable():
    data = make_data()
    data.edge_index_sorted = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    return data


def build_tables():
    private = make_sortable()
    data = manyhop_pyg.share(lambda: private)
    kept = {case: make_sampler(case, copy.copy(data)) for case in CASES}
    seen = {}
    for case in CASES:
        shared = tables(kept[case].topology.graph)
        own = tables(make_sampler(case, copy.copy(private)).topology.graph)
        equal = [torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(shared, own, strict=True)]
        seen[case] = all(equal), [identity(t) for t in shared], all(identity(t) is None for t in own)
    torch.distributed.barrier()
    return seen


def test_tables_are_those_of_private_data_and_built_once(launcher):
    first, second = launcher.run(build_tables)
    assert first.keys() == CASES.keys()
    assert first == second
    for equal, names, own in first.values():
        assert equal
        assert own
        assert None not in names
    assert len({str(names) for _, names, _ in first.values()}) == len(CASES)


def keep_tables():
    data, hetero, stores = (manyhop_pyg.share(make) for make in (make_data, make_hetero, make_stores))
    made = [
        manyhop_pyg.NeighborSampler(data, [2], time_attr="time"),
        manyhop_pyg.NeighborSampler(hetero, [2]),
        manyhop_pyg.NeighborSampler(stores, [2]),
        manyhop_pyg.HGTSampler(hetero, [4, 4]),
    ]
    names = [[identity(t) for t in tables(sampler.topology.graph)] for sampler in made]
    torch.distributed.barrier()
    segments = len(_segment._mapped)
    del made
    gc.collect()
    return names, segments - len(_segment._mapped)


def test_tables_in_use_are_shared_and_go_with_their_loaders(launcher):
    (names, freed), again = launcher.run(keep_tables)
    assert (names, freed) == again
    assert all(None not in of_one for of_one in names)
    assert names[1] == names[3]  # two samplers of one graph have the same tables
    assert freed == 3


def loader_on_rank_0_alone(file):
    data = manyhop_pyg.share(make_data)
    if manyhop.init().rank == 1:
        while not file.exists():  # elsewhere
            time.sleep(0.01)
        return None
    loader = manyhop_pyg.NeighborLoader(data, num_neighbors=[3], batch_size=50, input_nodes=torch.arange(200))
    batches = len(list(loader))
    file.touch()
    return batches


def test_a_loader_on_one_rank_alone_needs_nobody(launcher, tmp_path):
    assert launcher.run(loader_on_rank_0_alone, tmp_path / "done") == [4, None]


def wrong_weights():
    data = make_data()
    data.edge_weight[5] = -1
    data = manyhop_pyg.share(lambda: data)
    return refused(manyhop_pyg.NeighborSampler, data, [2], weight_attr="edge_weight")[:2]


def test_a_wrong_graph_is_said_on_every_rank_in_its_own_words(launcher):
    first, second = launcher.run(wrong_weights)
    assert first == second
    assert first[0] == GraphError.__name__
    assert "not negative" in first[1]


def change_edges():
    data = manyhop_pyg.share(make_data)
    before = manyhop_pyg.NeighborSampler(data, [2]).topology.graph
    torch.distributed.barrier()
    if manyhop.init().rank == 0:
        data.edge_index[1, :] = 7
        after = manyhop_pyg.NeighborSampler(data, [2]).topology.graph
        return [int(torch.diff(tables(graph)[0])[7]) for graph in (before, after)]
    return None


def test_tables_are_made_anew_after_a_change_by_this_rank(launcher):
    (before, after), _ = launcher.run(change_edges)
    assert before < 3000 == after


def after_the_run():
    data = manyhop_pyg.share(make_data)
    torch.distributed.barrier()
    manyhop.shutdown()
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    return [identity(t) for t in tables(sampler.topology.graph)], same_values(data, make_data())


def test_data_outlives_the_run(launcher):
    for names, equal in launcher.run(after_the_run):
        assert set(names) == {None}
        assert equal


# Loaders


def all_batches(data, hetero):
    seeds = torch.arange(0, 200, 3)
    options = {"batch_size": 16, "shuffle": True, "seed": 5}
    loaders = [
        manyhop_pyg.NeighborLoader(data, [4, 3], input_nodes=seeds, num_workers=2, **options),
        manyhop_pyg.NeighborLoader(data, [4, 3], input_nodes=seeds, weight_attr="edge_weight", **options),
        manyhop_pyg.NeighborLoader(data, [4, 3], input_nodes=seeds, time_attr="time", **options),
        manyhop_pyg.LinkNeighborLoader(
            data, [3], edge_label_index=data.edge_index[:, ::40], neg_sampling="binary", **options
        ),
        manyhop_pyg.NeighborLoader(hetero, [4, 3], input_nodes="b", **options),
        manyhop_pyg.HGTLoader(hetero, [8, 8], input_nodes="b", **options),
    ]
    return [[batch.to_dict() for batch in loader] for loader in loaders]


def same_tree(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_tree(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_tree, a, b))
    return torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b


def compare_batches():
    data, hetero = manyhop_pyg.share(make_data), manyhop_pyg.share(make_hetero)
    assert identity(hetero["a"].x) is not None
    return same_tree(all_batches(data, hetero), [[]] * 6), same_tree(
        all_batches(data, hetero), all_batches(make_data(), make_hetero())
    )


def test_batches_are_those_of_private_data(launcher):
    assert launcher.run(compare_batches) == [(False, True)] * 2


def epoch_of(loader):
    return [batch.to_dict() for batch in loader]


def in_spawned(rank, loaders, expected):
    for loader in loaders:
        assert same_tree(epoch_of(loader), expected)


def pass_loaders_on():
    data = manyhop_pyg.share(make_data)
    samplers = [manyhop_pyg.NeighborSampler(data, [3, 3], share_memory=share_memory) for share_memory in (False, True)]

    def loaders():
        options = {"batch_size": 16, "seed": 3}
        return [manyhop_pyg.NodeLoader(data, sampler, torch.arange(64), **options) for sampler in samplers]

    expected, other = map(epoch_of, loaders())
    same = [same_tree(other, expected)]
    same += [same_tree(epoch_of(copied), expected) for copied in pickle.loads(pickle.dumps(loaders()))]
    if manyhop.init().rank == 1:  # one is enough: starting an interpreter takes seconds
        torch.multiprocessing.spawn(in_spawned, (loaders(), expected), nprocs=1)
    return same + [same_tree(epoch_of(loader), expected) for loader in loaders()]  # the tables have moved


def test_loaders_over_shared_data_can_be_pickled_and_spawned(launcher):
    assert launcher.run(pass_loaders_on) == [[True] * 5] * 2
