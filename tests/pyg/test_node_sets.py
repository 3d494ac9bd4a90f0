"""GraphSAINT's loaders and Cluster-GCN's: subgraphs of sets of nodes, as PyG's."""

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from helpers_pyg import all_same, check_batch
from torch_geometric.data import Data
from torch_geometric.loader.cluster import Partition
from torch_geometric.utils import subgraph

import manyhop_pyg
from manyhop.errors import GraphError, InputError
from manyhop.sampling import BatchKey
from manyhop_pyg import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    NeighborSampler,
    get_ppr,
)

SAINT = {"GraphSAINTNodeSampler": (9,), "GraphSAINTEdgeSampler": (9,), "GraphSAINTRandomWalkSampler": (5, 2)}
needs_sparse = pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="PyG's own needs torch-sparse")


@pytest.fixture
def clusters():
    return torch.randint(0, 7, (60,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", SAINT)
def test_subgraphs_of_drawn_nodes(data, name):
    loader = getattr(manyhop_pyg, name)(data, *SAINT[name], num_steps=20, seed=2)
    assert isinstance(loader, getattr(torch_geometric.loader, name))
    epoch = list(loader)
    assert len(loader) == len(epoch) == 20
    for batch in epoch:
        check_batch(batch, data)
        assert torch.equal(batch.n_id, batch.n_id.unique())
        assert 0 < batch.num_nodes <= 18
        expected, _ = subgraph(batch.n_id, data.edge_index, torch.arange(300), num_nodes=60)
        assert batch.num_edges == expected.size(1)
    assert not all_same(epoch, list(loader))
    assert torch.equal(loader.batch(key=(2, 0, 5)).n_id, epoch[5].n_id)


@pytest.mark.parametrize("name", SAINT)
def test_coefficients(data, name, tmp_path):
    """They are counts of subgraphs; that many subgraphs of PyG's give about the same."""

    def make(source=manyhop_pyg, **options):
        return getattr(source, name)(data, *SAINT[name], 20, 40, str(tmp_path / "norms"), log=False, **options)

    loader = make(seed=2)
    saved = tmp_path / f"norms/manyhop_{name.lower()}_{'2_' if len(SAINT[name]) > 1 else ''}40.pt"
    node_norm, edge_norm = (torch.load(saved)[norm] for norm in ("node_norm", "edge_norm"))
    for batch in loader:
        assert torch.equal(batch.node_norm, node_norm[batch.n_id])
        assert torch.equal(batch.edge_norm, edge_norm[batch.e_id])
    assert "node_norm" not in data
    sampler, count = loader.node_sampler, torch.zeros(60)
    for batch in range(500):
        count[sampler.nodes_of(None, BatchKey(5, 0, batch))] += 1
    often = count > 50
    assert (node_norm * count)[often].mean().item() == pytest.approx(500 / 60, rel=0.2)
    saved.unlink()
    again = make(seed=2, num_workers=2)
    assert torch.equal(again.data.node_norm, node_norm)
    assert torch.equal(make(seed=3).data.edge_norm, edge_norm)  # from the folder
    data.x, data.edge_index = data.x[:50], data.edge_index[:, :9]
    for attribute in ("y", "train_mask", "edge_attr", "edge_weight", "time", "edge_time"):
        del data[attribute]
    with pytest.raises(InputError, match="got others"):
        make()


@needs_sparse
@pytest.mark.parametrize("name", SAINT)
def test_sizes_and_coefficients_as_pyg(data, name):
    """Means over many subgraphs."""
    loops = torch.arange(60).expand(2, 60)  # torch-sparse walks off the graph where a node has no edges
    graph = Data(x=data.x, edge_index=torch.cat([data.edge_index, loops], 1))
    options = {"num_steps": 400, "sample_coverage": 50, "log": False}
    ours = getattr(manyhop_pyg, name)(graph, *SAINT[name], **options, seed=2)
    theirs = getattr(torch_geometric.loader, name)(graph, *SAINT[name], **options)
    for norm in ("node_norm", "edge_norm"):
        assert (getattr(theirs, norm) / ours.data[norm]).median().item() == pytest.approx(1, rel=0.15)
    for size in (lambda batch: batch.num_nodes, lambda batch: batch.num_edges):
        means = [sum(map(size, loader)) / 400 for loader in (ours, theirs)]
        assert means[0] == pytest.approx(means[1], rel=0.1)


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
def test_clusters_as_pyg(data, clusters, sparse_format):
    parts = ClusterData(data, 7, cluster=clusters, sparse_format=sparse_format)
    assert len(parts) == 7
    loader = ClusterLoader(parts, batch_size=3)
    assert isinstance(loader, torch_geometric.loader.ClusterLoader)
    for batch, expected in zip(loader, torch_geometric.loader.ClusterLoader(parts, batch_size=3), strict=True):
        check_batch(batch, data)
        assert set(clusters[batch.n_id].tolist()) <= set(batch.input_id.tolist())
        assert all(torch.equal(batch[key], value) for key, value in expected if torch.is_tensor(value))
    assert torch.equal(loader.batch([2]).n_id.sort().values, (clusters == 2).nonzero()[:, 0])
    with pytest.raises(InputError, match=r"clusters in \[0, 7\)"):
        loader.batch([7])
    of_array = ClusterData(data, 7, cluster=clusters.numpy(), sparse_format=sparse_format)
    assert torch.equal(of_array.partition.node_perm, parts.partition.node_perm)


def test_metis(data, tmp_path):
    pytest.importorskip("pymetis")
    parts = ClusterData(data, 4, save_dir=str(tmp_path), log=False)
    sizes = parts.partition.partptr.diff()
    assert sizes.sum() == 60
    assert sizes.max() <= 25
    assert torch.equal(ClusterData(data, 4, save_dir=str(tmp_path)).partition.node_perm, parts.partition.node_perm)
    (path,) = (tmp_path / "part_4").iterdir()
    for nodes, ends in ((60, data.edge_index.flip(0)), (90, data.edge_index), (60, data.edge_index[:, :-1])):
        other = Data(num_nodes=nodes, edge_index=ends)
        with pytest.raises(InputError, match=r"partition of this graph .*metis\.pt, got another. Remove the file"):
            ClusterData(other, 4, save_dir=str(tmp_path))
    with pytest.raises(InputError, match="in csc format"):
        ClusterData(data, 4, save_dir=str(tmp_path), sparse_format="csc")
    damage(path, lambda: ClusterData(data, 4, save_dir=str(tmp_path)))


def test_clusters_of_a_subclass(data):
    class Thirds(ClusterData):
        def _metis(self, edge_index, num_nodes):
            return torch.arange(num_nodes) % self.num_parts

    expected = ClusterData(data, 3, cluster=torch.arange(60) % 3)
    assert torch.equal(Thirds(data, 3, log=False).partition.node_perm, expected.partition.node_perm)


def damage(path, load):
    """Files that are cut or hold something else are errors that name them."""
    content = path.read_bytes()
    for wrong in (b"", content[:1], content[: len(content) // 2]):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=path.name):
            load()
    for other in ((torch.ones(60), torch.ones(60)), Partition(None, None, None, None, None, "csr")):
        torch.save(other, path)
        with pytest.raises(InputError, match=path.name):
            load()


@pytest.mark.parametrize("name", SAINT)
def test_coefficients_of_another_graph_are_refused(data, name, tmp_path):
    def make(edge_index, *arguments):
        graph = Data(num_nodes=60, edge_index=edge_index)
        arguments = arguments or SAINT[name]
        return getattr(manyhop_pyg, name)(graph, *arguments, sample_coverage=5, save_dir=tmp_path / "new", log=False)

    first, again = make(data.edge_index), make(data.edge_index.int())
    assert torch.equal(first.batch(key=(1, 0, 0)).edge_norm, again.batch(key=(1, 0, 0)).edge_norm)
    (path,) = (tmp_path / "new").iterdir()
    with pytest.raises(InputError, match="coefficients of this graph"):
        make(data.edge_index.flip(0))
    with pytest.raises(InputError, match="coefficients of this graph and batch_size"):
        make(data.edge_index, 4, *SAINT[name][1:])
    damage(path, lambda: make(data.edge_index))


@pytest.mark.parametrize(
    ("change", "parts", "sizes"),
    [
        (dict(), 1, [60]),
        (dict(), 64, [1] * 60 + [0] * 4),
        (dict(edge_index=torch.empty(2, 0, dtype=torch.int64)), 3, [20] * 3),
        (dict(edge_index=torch.arange(60).repeat(2, 1)), 7, [9, 9, 8, 9, 8, 9, 8]),
    ],
    ids=["one part", "more parts than nodes", "no edges", "self loops only"],
)
def test_graphs_that_metis_does_not_divide(data, change, parts, sizes):
    pytest.importorskip("pymetis")
    data = Data(x=data.x, edge_index=change.get("edge_index", data.edge_index))
    clusters = ClusterData(data, parts, log=False)
    assert [clusters[i].num_nodes for i in range(parts)] == sizes
    loader = ClusterLoader(clusters, batch_size=parts)
    (batch,) = loader
    assert batch.n_id.sort().values.tolist() == list(range(60))
    assert batch.num_edges == data.num_edges


@pytest.mark.parametrize("name", SAINT)
def test_batches_of_a_sampler_are_counted(data, name):
    loader = getattr(manyhop_pyg, name)(data, *SAINT[name], num_steps=6, sampler=[3, 0])
    assert len(loader) == len(list(loader)) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: GraphSAINTNodeSampler(data, 0), "batch_size to be an integer of at least 1"),
        (lambda data: GraphSAINTNodeSampler(data, 3, input_nodes=[1]), "Expected no input_nodes"),
        (lambda data: GraphSAINTNodeSampler((data, data), 3), "Data with an edge_index, got tuple"),
        (lambda data: GraphSAINTEdgeSampler(data, 3).batch([1]), "Expected key alone"),
        (lambda data: GraphSAINTRandomWalkSampler(data, 3, 0), "walk_length to be an integer"),
        (lambda data: ClusterData(data, 2, cluster=torch.zeros(3, dtype=torch.int64)), r"shape \[60\], got \[3\]"),
        (lambda data: ClusterData(data, 2, cluster=torch.full((60,), 2)), r"cluster in \[0, 2\), got 2"),
        (lambda data: ClusterData(data, 2, save_dir=".", cluster=torch.zeros(60).long()), "save_dir only where METIS"),
        (lambda data: ClusterData(data, 2, sparse_format="coo"), "'csr' or 'csc', got 'coo'"),
        (lambda data: ClusterLoader(data), "cluster_data as ClusterData, got Data"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_wrong_arguments(data, make, message):
    with pytest.raises(InputError, match=message):
        make(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: ClusterData(data, 1, cluster=torch.zeros(60, dtype=torch.int64)),
        lambda data: ClusterData(data, 2, log=False),
        lambda data: GraphSAINTNodeSampler(data, 3),
        lambda data: GraphSAINTEdgeSampler(data, 3),
        lambda data: GraphSAINTRandomWalkSampler(data, 3, 2),
        lambda data: NeighborSampler(data, [2], sample_direction="backward"),
        lambda data: get_ppr(data.edge_index, num_nodes=60),
    ],
)
def test_an_edge_out_of_range_is_named_by_its_own_end(data, make):
    pytest.importorskip("pymetis")
    for end, name in enumerate(("source", "destination")):
        data.edge_index[:, 7] = 0
        data.edge_index[end, 7] = 60
        with pytest.raises(GraphError, match=rf"{name} nodes in \[0, 60\), got 60"):
            make(data)


def test_an_edge_type_is_named_as_the_user_does(hetero):
    hetero["author", "writes", "paper"].edge_index[0, 0] = 30
    with pytest.raises(GraphError, match=r"source nodes of edge type \('author', 'writes', 'paper'\) .* got 30"):
        NeighborSampler(hetero, [2], sample_direction="backward")
    hetero["author", "writes", "paper"].edge_index[0, 0] = 29
    hetero["author", "writes", "journal"].edge_index = torch.tensor([[0], [0]])
    with pytest.raises(GraphError, match=r"\('author', 'writes', 'journal'\) uses the unknown node type 'journal'"):
        NeighborSampler(hetero, [2], sample_direction="backward")


def test_order_is_asked_of_the_end_that_is_sampled_from(data):
    with pytest.raises(GraphError, match="not in order of source"):
        NeighborSampler(data, [2], sample_direction="backward", is_sorted=True)
