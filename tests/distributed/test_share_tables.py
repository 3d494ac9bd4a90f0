"""Samplers' tables over shared data: built once per node, the same as those over private data."""

import copy
import gc
import pickle
import time

import torch
from shared_data import make_data, make_hetero, make_stores, refused, same_values

import manyhop
import manyhop_pyg
from manyhop.errors import GraphError
from manyhop.memory import segments
from manyhop.memory.mapped_files import identity

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
        shared = kept[case].topology.graph.tables()
        own = make_sampler(case, copy.copy(private)).topology.graph.tables()
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
    names = [[identity(t) for t in sampler.topology.graph.tables()] for sampler in made]
    torch.distributed.barrier()
    before = len(segments._mapped)
    del made
    gc.collect()
    return names, before - len(segments._mapped)


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


def test_a_wrong_graph_is_an_error_on_every_rank_in_its_own_words(launcher):
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
        return [int(torch.diff(graph.tables()[0])[7]) for graph in (before, after)]
    return None


def test_tables_are_made_anew_after_a_change_by_this_rank(launcher):
    (before, after), _ = launcher.run(change_edges)
    assert before < 3000 == after


def after_the_run():
    data = manyhop_pyg.share(make_data)
    torch.distributed.barrier()
    manyhop.shutdown()
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    return [identity(t) for t in sampler.topology.graph.tables()], same_values(data, make_data())


def test_data_outlives_the_run(launcher):
    for names, equal in launcher.run(after_the_run):
        assert set(names) == {None}
        assert equal


# Loaders


def same_tree(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_tree(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_tree, a, b))
    return torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b


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
