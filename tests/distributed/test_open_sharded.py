"""A graph on disk whose features are spread over two nodes."""

import shutil
import time

import pytest
import torch
from plan_table import placements
from torch_geometric.data import Data, HeteroData

import manyhop
import manyhop_pyg
from manyhop import files
from manyhop.errors import GraphError, InputError, ManyhopError, RankError
from manyhop.features import ShardedRows
from manyhop.loading import folders
from manyhop.memory.mapped_files import identity
from manyhop.ranks import world
from manyhop_tools import cli

TWO, FOUR = [0, 1], [0, 0, 1, 1]


def plain(num_nodes=103, num_edges=900):
    g = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(num_nodes, 6, generator=g),
        y=torch.randint(0, 5, (num_nodes,), generator=g),
        time=torch.randint(0, 20, (num_nodes,), generator=g),
        train_mask=torch.rand(num_nodes, generator=g) < 0.6,
        edge_index=torch.randint(0, num_nodes, (2, num_edges), generator=g),
        edge_attr=torch.randn(num_edges, 3, generator=g).half(),
        edge_weight=torch.rand(num_edges, generator=g),
        classes=5,
    )


def typed():
    g = torch.Generator().manual_seed(2)
    data = HeteroData()
    data["paper"].x = torch.randn(61, 3, generator=g)
    data["paper"].y = torch.arange(61)
    data["author"].num_nodes = 31
    for src, rel, dst in (("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by", "author")):
        ends = [torch.randint(0, data[end].num_nodes, (200,), generator=g) for end in (src, dst)]
        data[src, rel, dst].edge_index = torch.stack(ends)
    data["author", "writes", "paper"].edge_attr = torch.randn(200, 2, generator=g)
    return data


def whole(data, name):
    return data[name] if isinstance(data, Data) else data[0].get_tensor(group_name=None, attr_name=name, index=None)


LOADERS = {
    "nodes": lambda d, **k: manyhop_pyg.NeighborLoader(d, [3, 2], whole(d, "train_mask"), batch_size=8, **k),
    "weights": lambda d, **k: manyhop_pyg.NeighborLoader(d, [3], weight_attr="edge_weight", batch_size=16, **k),
    "times": lambda d, **k: manyhop_pyg.NeighborLoader(
        d, [3, 2], input_time=whole(d, "time"), time_attr="time", batch_size=16, num_workers=2, **k
    ),
    "links": lambda d, **k: manyhop_pyg.LinkNeighborLoader(
        d, [3], torch.arange(40).view(2, -1), neg_sampling="binary", batch_size=8, **k
    ),
    "types": lambda d, **k: manyhop_pyg.NeighborLoader(d, [3, 2], "paper", batch_size=8, **k),
    "hgt": lambda d, **k: manyhop_pyg.HGTLoader(d, [4, 4], ("paper", torch.arange(20)), batch_size=8, **k),
}


def batches(data, names, **options):
    return {
        name: [tensors_of(batch) for batch in LOADERS[name](data, shuffle=True, seed=5, **options)] for name in names
    }


def tensors_of(batch):
    return {(s._key, name): value for s in batch.stores for name, value in s.items() if torch.is_tensor(value)}


def same(ours, theirs):
    padding = {key for key in ours if key[1] == "is_padding"}
    assert set(ours) - padding == set(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype
        assert ours[key].equal(value), key


WHOLE = {".y": False, ".time": False, ".train_mask": False, ".edge_weight": False}


def open_and_iterate(folder, placement, names, free):
    reads = {}
    read = files.Rows.read

    def count(self, begin=0, end=None, **kwargs):
        rows = read(self, begin, end, **kwargs)
        reads[self.paths[0].name] = reads.get(self.paths[0].name, 0) + len(rows)
        return rows

    files.Rows.read = count
    folders.available_memory = lambda: free if world.init().rank == 1 else 1 << 40
    data = manyhop_pyg.open(folder, placement=placement)
    kinds = {f"{key[0] or ''}.{key[1]}": type(value) is ShardedRows for key, value in data[0]._tensors.items()}
    pairs = [data[1].get_edge_index(attr) for attr in data[1].get_all_edge_attrs()]
    once = [identity(tensor) for pair in pairs for tensor in pair]
    return reads, kinds, once, batches(data, names, distributed=True)


@pytest.mark.parametrize(
    ("make", "names", "node_of", "placement", "free"),
    [
        (plain, ["nodes", "weights", "times", "links"], TWO, "sharded", 1 << 40),
        (plain, ["nodes", "weights"], FOUR, "auto", 14_000),
        (typed, ["types", "hgt"], FOUR, "sharded", 1 << 40),
    ],
)
def test_batches_are_those_of_mapped_files(launcher, two_nodes, tmp_path, make, names, node_of, placement, free):
    manyhop_pyg.save(make(), tmp_path / "g")
    expected = batches(manyhop_pyg.open(tmp_path / "g", placement="mapped"), names)
    ranks = len(node_of)
    results = launcher.run(
        open_and_iterate, str(tmp_path / "g"), placement, names, free, node_of=node_of, nodes=two_nodes
    )
    for name in names:
        for b, batch in enumerate(expected[name]):
            same(results[b % ranks][3][name][b // ranks], batch)
    for reads, kinds, once, _ in results:
        assert (
            kinds
            == {
                (plain, "sharded"): {".x": True, ".edge_attr": True} | WHOLE,
                (plain, "auto"): {".x": True, ".edge_attr": False} | WHOLE,  # it is mapped
                (typed, "sharded"): {
                    "paper.x": True,
                    "paper.y": False,
                    "('author', 'writes', 'paper').edge_attr": True,
                },
            }[make, placement]
        )
        if make is plain:
            assert reads["_N.x.npy"] == pytest.approx(103 / ranks, abs=1)
            assert ("edges.edge_attr.npy" in reads) == (placement == "sharded")
        assert (None in once) == (node_of == TWO)
    if make is plain:
        assert sum(reads["_N.x.npy"] for reads, *_ in results) == 103
        assert sum(reads.get("_N.y.npy", 0) for reads, *_ in results) == 2 * 103  # once per node
    if node_of == FOUR:
        assert results[0][2] == results[1][2] != results[2][2] == results[3][2]


def decide_by_open(folder, free):
    folders.available_memory = lambda: free
    graph = files.open_graph(folder)
    return folders.places(graph, "auto")


@pytest.mark.parametrize("free", [20_000, 14_000, 10_000])
def test_open_does_as_planned(launcher, tmp_path, capsys, free):
    manyhop_pyg.save(plain(), tmp_path / "g")
    assert cli.main(["plan", str(tmp_path / "g"), "--ranks", "2", "--nodes", "2", "--memory", str(free)]) == 0
    planned = placements(capsys.readouterr().out)
    for places in launcher.run(decide_by_open, str(tmp_path / "g"), free, node_of=TWO):
        assert {name.removeprefix("features "): place for name, place in places.items()}.items() <= planned.items()
        assert "sharded" in places.values()


def open_on_one_node(folder):
    manyhop_pyg.open(folder, placement="sharded")
    data = manyhop_pyg.open(folder, placement="sharded")
    x = whole(data, "x")
    return identity(x), x, tensors_of(next(iter(manyhop_pyg.NeighborLoader(data, [3], batch_size=8, seed=1))))


def test_one_node_has_all_rows(launcher, tmp_path):
    manyhop_pyg.save(plain(), tmp_path / "g")
    (first, x, _), (second, *_) = launcher.run(open_on_one_node, str(tmp_path / "g"), node_of=[0, 0])
    assert first == second is not None
    assert x.equal(plain().x)
    _, x, batch = open_on_one_node(tmp_path / "g")
    assert x.equal(plain().x)
    mapped = manyhop_pyg.open(tmp_path / "g", placement="mapped")
    same(batch, tensors_of(next(iter(manyhop_pyg.NeighborLoader(mapped, [3], batch_size=8, seed=1)))))
    manyhop.shutdown()


def fail_to_read(folder):
    whole = files.Rows.read

    def read(self, begin=0, end=None, *, out=None, **how):
        if out is not None:
            raise InputError("damaged")
        return whole(self)

    if world.init().rank == 1:
        files.Rows.read = read
    try:
        manyhop_pyg.open(folder, placement="sharded")
    except ManyhopError as error:
        return type(error), str(error), getattr(error, "ranks", None)


def test_a_rank_that_cannot_read_is_named(launcher, tmp_path):
    manyhop_pyg.save(plain(), tmp_path / "g")
    (kind, message, ranks), other = launcher.run(fail_to_read, str(tmp_path / "g"), node_of=TWO)
    assert (kind, ranks) == (RankError, (1,))
    assert "rank 1 failed: InputError: damaged" in message
    assert other[:2] == (InputError, "damaged")


def open_what_is_damaged_here(folders, placement):
    rank = world.init().rank
    start = time.monotonic()
    try:
        manyhop_pyg.open(folders[rank], placement=placement)
    except ManyhopError as error:
        return type(error), str(error), getattr(error, "ranks", None), time.monotonic() - start


@pytest.mark.parametrize(
    ("placement", "name", "kind", "message"),
    [
        ("auto", "edges.colptr.npy", GraphError, "to rise from 0 to the number of edges (900), got 0 to -1"),
        ("sharded", "_N.y.npy", InputError, "_N.y.npy: not a .npy file, or a truncated one"),
        ("auto", "manyhop.json", InputError, "manyhop.json"),
    ],
)
def test_a_folder_that_is_damaged_on_one_node_ends_all_ranks(launcher, tmp_path, placement, name, kind, message):
    manyhop_pyg.save(plain(), tmp_path / "g")
    shutil.copytree(tmp_path / "g", tmp_path / "other" / "g")
    damaged = tmp_path / "other" / "g" / name
    damaged.write_bytes(damaged.read_bytes()[:-8] + bytes([255] * 8) if name == "edges.colptr.npy" else b"")
    places = [str(tmp_path / "g"), str(tmp_path / "other" / "g")]
    well, other = launcher.run(open_what_is_damaged_here, places, placement, node_of=TWO)
    assert other[0] is kind
    assert message in other[1]
    assert (well[0], well[2]) == (RankError, (1,))
    assert f"rank 1 failed: {kind.__name__}: {other[1]}" in well[1]
    assert max(well[3], other[3]) < 200, "before any timeout"


def test_edges_have_to_come_first(tmp_path):
    data = plain()
    data.pair_index = data.edge_index.flip(0)
    manyhop_pyg.save(data, tmp_path / "g")
    with pytest.raises(InputError, match=r"first dimension, got 'pair_index'.*placement='mapped'"):
        manyhop_pyg.open(tmp_path / "g", placement="sharded")
