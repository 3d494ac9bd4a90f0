"""A graph on disk, opened by several ranks."""

import pytest
import torch
from torch_geometric.data import Data

import manyhop_pyg
from manyhop import files
from manyhop.loading import folders
from manyhop.memory.mapped_files import identity
from manyhop.ranks import world


def make_data(num_nodes=300, num_edges=4000):
    g = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(num_nodes, 8, generator=g),
        edge_index=torch.randint(0, num_nodes, (2, num_edges), generator=g),
        edge_weight=torch.rand(num_edges, generator=g),
    )


def batches(data, **options):
    loader = manyhop_pyg.NeighborLoader(data, [3, 2], batch_size=32, seed=5, **options)
    return [(b.n_id, b.edge_index, b.e_id, b.x) for b in loader]


def open_and_iterate(folder, placement):
    reads = []
    read = files.Rows.read
    files.Rows.read = lambda self, *args, **kwargs: (reads.append(self.paths[0].name), read(self, *args, **kwargs))[1]
    data = manyhop_pyg.open(folder, placement=placement)
    places = [identity(t) is not None for t in (data.x, data.edge_weight, data.edge_index)]
    # Each rank draws samples of its own, unless the loaders share global batches.
    return reads, places, batches(data, distributed=True), batches(data, weight_attr="edge_weight", distributed=True)


@pytest.mark.parametrize("placement", ["shared", "auto", "mapped", "process"])
def test_ranks_of_a_node(launcher, tmp_path, placement):
    manyhop_pyg.save(make_data(), tmp_path / "g")
    results = launcher.run(open_and_iterate, str(tmp_path / "g"), placement)
    together = [r[0] for r in results]
    if placement in ("shared", "auto"):
        assert sorted([*together[0], *together[1]]) == [
            "_N.x.npy",
            "edges.colptr.npy",
            "edges.edge_weight.npy",
            "edges.row.npy",
        ]
    elif placement == "process":
        assert sorted(together[0]) == sorted(together[1]) != []
    else:
        assert together == [[], []]
    shared = placement in ("shared", "auto")
    assert [r[1] for r in results] == [[shared, shared, False]] * 2
    alone = manyhop_pyg.open(tmp_path / "g", placement="process")
    for k, options in ((2, {}), (3, {"weight_attr": "edge_weight"})):
        expected = batches(alone, **options)
        for b, batch in enumerate(expected):
            assert all(ours.equal(theirs) for ours, theirs in zip(results[b % 2][k][b // 2], batch, strict=True))


def choose_by_rank(folder):
    """What is free differs from rank to rank; the decision must not."""
    memory = 1 << 30 if world.init().rank == 0 else 1
    folders.available_memory = lambda: memory
    data = manyhop_pyg.open(folder)
    return identity(data.x) is not None


def test_ranks_decide_alike(launcher, tmp_path):
    manyhop_pyg.save(make_data(), tmp_path / "g")
    a, b = launcher.run(choose_by_rank, str(tmp_path / "g"))
    assert a == b
