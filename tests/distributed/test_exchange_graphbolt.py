"""GraphBolt's features whose rows ranks exchange: over two nodes' host memory, or over GPUs. Ranks without GPUs."""

import re
import sys
from pathlib import Path

import pytest
import torch
from places import ENV, tensors
from test_gpu_places_dgl import make_dataset

import manyhop
from manyhop.errors import InputError, ManyhopError
from manyhop.features import DistributedRows, ShardedRows, WholeMemory
from manyhop.memory.mapped_files import identity

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "dgl"), str(Path(__file__).parent)]

FOUR = [0, 0, 1, 1]
TWO = [0, 1]


def given(hetero):
    """Rows of features, by key."""
    draw = torch.Generator().manual_seed(1)

    def rows(count, *shape):
        return torch.randn(count, *shape, generator=draw)

    if not hetero:
        return {
            ("node", None, "x"): rows(60, 5),
            ("node", None, "z"): rows(60, 2, 3),
            ("edge", None, "w"): rows(400, 1),
        }
    return {
        ("node", "user", "x"): rows(30, 5),
        ("node", "item", "x"): rows(20, 5),
        ("edge", "user:likes:item", "w"): rows(120, 1),
        ("edge", "item:liked:user", "w"): rows(120, 1),
    }


def make_store(hetero, **place):
    import manyhop_dgl.graphbolt as gb

    return gb.BasicFeatureStore({key: gb.TorchBasedFeature(rows, **place) for key, rows in given(hetero).items()})


def make_chain(store, hetero, *, sampler=None, copy_to=None, num_seeds=None, even=True, **options):
    import gb_graphs

    import manyhop_dgl.graphbolt as gb

    graph = gb_graphs.random_hetero_graph() if hetero else gb_graphs.random_graph()
    items = gb.ItemSet(torch.arange(num_seeds or (30 if hetero else 60)), names="seeds")
    if hetero:  # some minibatches have seeds of one type only
        items = gb.HeteroItemSet({"user": items, "item": gb.ItemSet(torch.arange(2), names="seeds")})
    options = {"batch_size": 4, "shuffle": True, "seed": 3} | options
    if sampler is None:
        sampler, options = gb.DistributedItemSampler, options | {"drop_uneven_inputs": even}
    pipe = sampler(items, **options)
    pipe = pipe.copy_to("cuda") if copy_to == "first" else pipe
    pipe = pipe.sample_neighbor(graph, [3, 2])
    names = {"node_feature_keys": ["x", "z"], "edge_feature_keys": ["w"]}
    if hetero:
        names = {
            "node_feature_keys": {"user": ["x"], "item": ["x"]},
            "edge_feature_keys": {"user:likes:item": ["w"], "item:liked:user": ["w"]},
        }
    pipe = pipe.fetch_feature(store, **names)
    return pipe.copy_to("cuda") if copy_to == "last" else pipe


def content(minibatch):
    """What is in a minibatch, as numbers."""
    found = [minibatch.node_features, *minibatch.edge_features]
    rows = [{str(key): value.cpu().tolist() for key, value in some.items()} for some in found]
    nodes = minibatch.input_nodes
    return minibatch.key.batch, [t.tolist() for t in (nodes.values() if isinstance(nodes, dict) else [nodes])], rows


def expected(hetero, **options):
    """All minibatches of one process, with its own memory."""
    import manyhop_dgl.graphbolt as gb

    return [content(one) for one in make_chain(make_store(hetero), hetero, sampler=gb.ItemSampler, **options)]


def on_stand_in():
    """Loaders of this process work on a "GPU"."""
    import whole_graph_stand_in

    import manyhop_dgl.graphbolt as gb
    from manyhop_graphbolt.loader import loader

    binding = whole_graph_stand_in.install()
    loader.gpu_of = lambda pipe: torch.device("cpu")
    gb.CopyTo.step = lambda self, item: item
    return binding


def use_loader(hetero, place, copy_to, options):
    import manyhop_dgl.graphbolt as gb

    manyhop.init()
    if copy_to is not None:
        on_stand_in()
    store = make_store(hetero, placement=place)
    kinds = {type(feature.table()).__name__ for _, feature in store.items()}
    loader = gb.DataLoader(make_chain(store, hetero, copy_to=copy_to), **options)
    epochs = [[content(one) for one in loader] for _ in range(2)]
    with pytest.raises(InputError, match="ranks exchange in step"):
        loader.batch(torch.arange(2))
    return epochs, kinds, loader.stats().exchanged_bytes


@pytest.mark.parametrize(
    ("hetero", "place", "copy_to", "node_of", "options"),
    [
        (False, "sharded", None, FOUR, {"num_workers": 3}),
        (True, "sharded", None, TWO, {"overlap_feature_fetch": False}),
        (False, "sharded", "last", TWO, {}),
        (True, "sharded", "first", TWO, {"num_workers": 3}),
        (False, "distributed", "first", [0, 0], {"num_workers": 3}),
        (True, "distributed", "first", TWO, {}),
    ],
)
def test_minibatches_are_those_of_one_process(launcher, two_nodes, hetero, place, copy_to, node_of, options):
    ranks = launcher.run(use_loader, hetero, place, copy_to, options, node_of=node_of, nodes=two_nodes, env=ENV)
    every = expected(hetero)
    every = every[: len(every) // len(node_of) * len(node_of)]
    for epochs, kinds, nbytes in ranks:
        assert kinds == {"DistributedRows" if place == "distributed" else "ShardedRows"}
        assert nbytes > 0
        assert epochs[0] != epochs[1]
    assert sorted(one for epochs, _, _ in ranks for one in epochs[0]) == every


def read_and_update(place, on_gpu):
    import manyhop_dgl.graphbolt as gb

    if on_gpu:
        on_stand_in()
    rank = manyhop.init().rank
    x = given(False)["node", None, "x"]
    store = make_store(False, placement=place)
    feature, index = store["node", None, "x"], torch.tensor([59, 0, 7, 59], dtype=torch.int32)[rank:]
    assert isinstance(feature.table(), DistributedRows if on_gpu else ShardedRows)
    assert torch.equal(feature.read(index), x[index])
    assert torch.equal(feature.read(index[:0] if rank == 0 else index), x[index[:0] if rank == 0 else index])
    assert torch.equal(store.read("node", None, "x", index), x[index])
    assert torch.equal(feature.read(), x)
    assert (feature.count(), feature.size(), feature.is_pinned()) == (60, torch.Size([5]), False)
    assert type(feature.table()).__name__ in repr(feature)
    refuse = [
        (lambda: feature.update(x[:1], torch.tensor([3])), "Expected all rows of a feature"),
        (feature.pin_memory_, "alone to pin, got rows that ranks exchange"),
        (lambda: feature.to("cpu"), "alone to move to cpu"),
        (lambda: list(make_chain(store, False)), "Expected an exchange for node feature 'x'"),
    ]
    for call, text in refuse:
        with pytest.raises(InputError, match=text):
            call()
    feature.update(x[:, :3] + 1)
    assert isinstance(feature.table(), DistributedRows if on_gpu else ShardedRows)
    assert torch.equal(feature.read(index), x[index, :3] + 1)
    loader = gb.DataLoader(make_chain(store, False, copy_to="first" if on_gpu else None))
    feature.update(x)
    if on_gpu:
        with pytest.raises(ManyhopError, match=r"unchanged.* a new loader, on all ranks"):
            next(iter(loader))
        loader = gb.DataLoader(make_chain(store, False, copy_to="first"))
    return [content(one) for one in loader]


@pytest.mark.parametrize(("place", "on_gpu"), [("sharded", False), ("distributed", True)])
def test_reads_are_calls_of_all_ranks(launcher, two_nodes, place, on_gpu):
    ranks = launcher.run(read_and_update, place, on_gpu, node_of=TWO, nodes=two_nodes, env=ENV)
    assert sorted(one for some in ranks for one in some) == expected(False)[:14]


def put_as_they_are():
    import manyhop_dgl.graphbolt as gb

    on_stand_in()
    rows, feature = given(False), {}
    for key, kind in zip(rows, ("distributed", "continuous", "distributed"), strict=True):
        memory = WholeMemory(tuple(rows[key].shape), rows[key].dtype, kind=kind, name=str(key))
        memory.copy_from(rows[key])
        feature[key] = gb.TorchBasedFeature(memory.rows() if key[2] == "w" else memory)
    read = [torch.equal(one.read(torch.tensor([3, 1])), rows[key][[3, 1]]) for key, one in feature.items()]
    kinds = [type(one.table()).__name__ for one in feature.values()]
    sharded = gb.TorchBasedFeature(gb.TorchBasedFeature(rows["node", None, "x"], placement="sharded").table())
    kinds.append(type(sharded.table()).__name__)
    return (
        read,
        kinds,
        [content(one) for one in gb.DataLoader(make_chain(gb.BasicFeatureStore(feature), False, copy_to="first"))],
    )


@pytest.mark.parametrize("node_of", [[0, 0], [0]])
def test_rows_are_taken_as_they_are(launcher, node_of):
    alone = len(node_of) == 1
    ranks = launcher.run(put_as_they_are, node_of=node_of, env=ENV)
    for read, kinds, _ in ranks:
        assert all(read)
        assert kinds == (["Tensor"] * 4 if alone else ["DistributedRows", "Tensor", "DistributedRows", "Tensor"])
    every = expected(False)
    assert sorted(one for *_, some in ranks for one in some) == every[: len(every) // len(node_of) * len(node_of)]


def load_dataset(folder, place):
    import manyhop_dgl.graphbolt as gb
    from manyhop.memory.stores import topology_place

    if place == "distributed":
        on_stand_in()
    manyhop.init()
    dataset = gb.OnDiskDataset(folder, placement=place).load()
    pipe = gb.DistributedItemSampler(dataset.all_nodes_set, 40, seed=3, drop_uneven_inputs=True)
    pipe = pipe.copy_to("cuda") if place == "distributed" else pipe
    pipe = pipe.sample_neighbor(dataset.graph, [3, 2]).fetch_feature(dataset.feature, ["x", "y", "z"])
    kinds = {type(feature.table()).__name__ for _, feature in dataset.feature.items()}
    rows, right = tensors(), []
    for minibatch in gb.DataLoader(pipe):
        ids, found = minibatch.input_nodes, minibatch.node_features
        right += [torch.equal(found["x"], rows["x"][ids]), torch.equal(found["z"], rows["x"].flip(0)[ids])]
        right.append(torch.equal(found["y"], rows["y"][ids].view(-1, 1)))
    read = torch.equal(dataset.feature.read("node", None, "y", torch.tensor([9, 300])), torch.tensor([[9], [300]]))
    torch.distributed.barrier()  # a rank that ends takes the memory with it that nobody has asked for yet
    return right, read, kinds, identity(dataset.graph.indices), topology_place(dataset.graph.topology().graph)


@pytest.mark.parametrize(
    ("place", "kind", "node_of"), [("sharded", "ShardedRows", FOUR), ("distributed", "DistributedRows", [0, 0])]
)
def test_a_dataset_in_its_place(launcher, tmp_path, place, kind, node_of):
    make_dataset(tmp_path / "small")
    ranks = launcher.run(load_dataset, str(tmp_path / "small"), place, node_of=node_of, env=ENV)
    for right, read, kinds, _, topology in ranks:
        assert right == [True] * (3 * 8 // len(node_of))
        assert read
        assert kinds == {kind}
        assert topology is None  # each loader decides
    assert ranks[0][3] == ranks[1][3] is not None  # edges are there once per node


class Own:
    """A feature store of the user's."""

    def __init__(self, store):
        self.store = store

    def read(self, *key):
        return self.store.read(*key)


def refused(what):
    import manyhop_dgl.graphbolt as gb

    if "GPU" in what or what == "on the CPU":
        on_stand_in()
    manyhop.init()
    store = make_store(False, placement="distributed" if what == "on the CPU" else "sharded")
    make = {
        "alone": lambda: make_chain(store, False, sampler=gb.ItemSampler),
        "uneven": lambda: make_chain(store, False, even=False),
        "unequal": lambda: make_chain(make_store(False), False, even=manyhop.init().rank == 0),
        "twice": lambda: make_chain(store, False).fetch_feature(store, ["x"]),
        "uneven on GPUs": lambda: make_chain(make_store(False), False, even=False, copy_to="first"),
        "between": lambda: gb.FeatureFetcher(without_features().copy_to("cuda"), store, ["x"]),
        "on the CPU": lambda: make_chain(store, False),
        "own store": lambda: make_chain(Own(store), False),
        "own function": lambda: without_features().transform(
            lambda one: store.read("node", None, "x", one.seeds) and one
        ),
    }
    try:
        list(gb.DataLoader(make[what](), num_workers=2, placement="distributed" if "GPU" in what else None))
    except ManyhopError as error:
        torch.distributed.barrier()  # nobody leaves before others have made their loader
        return f"{type(error).__name__}: {error}"


def without_features():
    return make_chain(make_store(False), False).datapipe


REFUSED = [
    ("alone", "Expected a DistributedItemSampler.*node feature 'x' for every minibatch, got a ItemSampler"),
    ("uneven", "that 2 ranks can share evenly.*got 15. Pass drop_uneven_inputs=True"),
    ("unequal", "the same drop_uneven_inputs on all ranks, got true on rank 0; false on rank 1"),
    ("twice", "Expected one fetch_feature, .* got 2"),
    ("uneven on GPUs", "that 2 ranks can share evenly.*got 15. Pass drop_uneven_inputs=True"),
    ("between", "copy_to.* before one stage that samples all layers, or after fetch_feature"),
    ("on the CPU", "copy_to.* before sampling, .* by GPUs, got a chain that fetches on the CPU"),
    ("own store", "to be read by fetch_feature, in the order of the minibatches"),
    ("own function", "to be read by fetch_feature, in the order of the minibatches"),
]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_ranks_that_could_not_stay_in_step(launcher, on_gpu):
    cases = [(what, text) for what, text in REFUSED if ("GPU" in what or what == "on the CPU") == on_gpu]
    found = launcher.run_each(refused, [(what,) for what, _ in cases], node_of=TWO, env=ENV)
    for (what, text), errors in zip(cases, found, strict=True):
        for error in errors:
            assert re.search(f"(?s)(Input|Rank)Error: .*{text}", error), (what, error)
