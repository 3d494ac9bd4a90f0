"""Tensors and arrays of odd kinds: the batch that their values make, or an error that names what came."""

import warnings

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from manyhop.errors import FeatureError, GraphError, InputError
from manyhop_pyg import ClusterData, FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, Node2Vec

N = 6
EDGES = torch.randint(0, N, (2, 12), generator=torch.Generator().manual_seed(1))
X = torch.rand(N, 3)
IDS = torch.tensor([3, 1, 2])


def data(**values):
    return Data(**({"num_nodes": N, "edge_index": EDGES, "x": X} | values))


def store():
    features = FeatureStore()
    features.put_tensor(X, group_name=None, attr_name="x", index=None)
    return features


def rows(index):
    return store().get_tensor(group_name=None, attr_name="x", index=index)


def quantized(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # new versions of torch deprecate it
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def fake(x):
    with FakeTensorMode() as mode:
        return mode.from_tensor(x)


def other_order(array):
    return array.astype(array.dtype.newbyteorder(">"))


@pytest.mark.parametrize(
    "ids",
    [
        *(IDS.to(dtype) for dtype in (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)),
        IDS.numpy().astype(np.uint64),
        other_order(IDS.numpy()),
        IDS.flip(0).numpy()[::-1],
        torch.stack([IDS, IDS], 1)[:, 0],
        torch._neg_view(-IDS),
        IDS.tolist(),
    ],
    ids=lambda ids: f"{type(ids).__name__} {getattr(ids, 'dtype', '')}",
)
def test_ids_count_by_their_values(ids):
    expected = next(iter(NeighborLoader(data(), [2], IDS, batch_size=3, seed=1)))
    assert torch.equal(next(iter(NeighborLoader(data(), [2], ids, batch_size=3, seed=1))).n_id, expected.n_id)
    if not isinstance(ids, list):
        assert torch.equal(rows(ids), X[IDS])


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int16], ids=str)
def test_pairs_and_clusters_of_other_integers(dtype):
    expected = next(iter(LinkNeighborLoader(data(), [2], edge_label_index=EDGES, batch_size=3, seed=1)))
    got = next(iter(LinkNeighborLoader(data(), [2], edge_label_index=EDGES.to(dtype), batch_size=3, seed=1)))
    assert torch.equal(got.n_id, expected.n_id)
    assert torch.equal(got.edge_label_index, expected.edge_label_index)
    clusters = torch.tensor([0, 1, 2, 0, 1, 2])
    found, like = (ClusterData(data(), 3, cluster=given) for given in (clusters.to(dtype), clusters))
    assert torch.equal(found.partition.node_perm, like.partition.node_perm)


def test_weights_and_arrays_that_torch_cannot_map(tmp_path):
    weights = torch.rand(12)
    batches = [
        next(iter(NeighborLoader(data(w=w), [2], batch_size=3, weight_attr="w", seed=1)))
        for w in (weights, torch._neg_view(-weights), torch.complex(torch.zeros(12), -weights).conj().imag)
    ]
    assert all(torch.equal(batch.e_id, batches[0].e_id) for batch in batches)
    for k, x in enumerate((other_order(X.numpy()), X.flip(0).numpy()[::-1], X.t().contiguous().t().numpy())):
        manyhop_pyg.save(data(x=x), tmp_path / str(k))
        assert torch.equal(manyhop_pyg.open(tmp_path / str(k), placement="process").x, X)


def test_an_edge_type_without_edges_whatever_its_strides():
    for edges in (torch.empty(2, 0), torch.empty(0, 2).t(), torch.empty(0, 2, dtype=torch.int64).t()):
        loader = NeighborLoader(data(edge_index=edges.long()), [2], batch_size=3)
        assert next(iter(loader)).edge_index.shape == (2, 0)
        assert loader.state_dict()


def test_ids_that_inference_made():
    with torch.inference_mode():
        ids = IDS.clone()
    embedding = manyhop.Embedding(N, 2, placement="process")
    embedding(ids).sum().backward()
    assert torch.equal(embedding.take_gradients().ids, torch.tensor([1, 2, 3]))


def test_pygs_own_classes_are_edges_and_ids():
    edges = EdgeIndex(EDGES, sparse_size=(N, N))
    expected = next(iter(NeighborLoader(data(), [2], batch_size=3, seed=1)))
    assert torch.equal(
        next(iter(NeighborLoader(data(edge_index=edges), [2], batch_size=3, seed=1))).n_id, expected.n_id
    )
    loader = LinkNeighborLoader(data(), [2], edge_label_index=edges, batch_size=3)
    assert torch.equal(next(iter(loader)).input_id, torch.arange(3))


@pytest.mark.parametrize(
    "odd",
    [quantized, fake, torch.Tensor.to_sparse, lambda x: x.to("meta")],
    ids=["quantized", "fake", "sparse", "meta"],
)
def test_what_has_no_numbers_in_memory_is_refused(odd, tmp_path):
    embedding = manyhop.Embedding(N, 2, placement="process")
    uses = {
        "weights": lambda: NeighborLoader(data(w=odd(torch.rand(12))), [2], batch_size=3, weight_attr="w"),
        "save": lambda: manyhop_pyg.save(data(x=odd(X)), tmp_path / "g"),
    }
    if odd is not quantized:
        edges, ids = odd(EDGES), odd(IDS)
        uses |= {
            "edges": lambda: NeighborLoader(data(edge_index=edges), [2], batch_size=3),
            "seeds": lambda: NeighborLoader(data(), [2], ids, batch_size=3),
            "pairs": lambda: LinkNeighborLoader(data(), [2], edge_label_index=edges, batch_size=3),
            "index": lambda: rows(ids),
            "embedding": lambda: embedding(ids),
            "walks": lambda: Node2Vec(edges, 4, 4, 3, num_nodes=N),
            "store": lambda: GraphStore().put_edge_index((ids, ids), edge_type=None, layout="coo", size=(N, N)),
        }
    for use in uses.values():
        with pytest.raises((FeatureError, GraphError, InputError), match="as a dense tensor in memory, got a tensor"):
            use()


def test_nothing_is_indexed_by_a_tensor_that_only_pretends():
    embedding = manyhop.Embedding(N, 2, placement="process")
    with FakeTensorMode(), pytest.raises(FeatureError, match="FakeTensor"):
        embedding(torch.zeros(3, dtype=torch.long))
