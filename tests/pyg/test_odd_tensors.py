"""Tensors and arrays of odd kinds: the batch that their values make, or an error that names what came."""

import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

import manyhop
import manyhop_pyg
from manyhop.errors import FeatureError, GraphError, InputError
from manyhop_pyg import (
    BidirectionalNeighborSampler,
    ClusterData,
    FeatureStore,
    GivenNegatives,
    GraphSAINTNodeSampler,
    GraphStore,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    Node2Vec,
    get_ppr,
)

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
    assert torch.equal(batch_of(edge_index=edges).n_id, batch_of().n_id)
    loader = LinkNeighborLoader(data(), [2], edge_label_index=edges, batch_size=3)
    assert torch.equal(next(iter(loader)).input_id, torch.arange(3))


WALKS = Node2Vec(EDGES, 4, 4, 3, num_nodes=N)
SAMPLER = NeighborSampler(data(), [2])
NEGATIVES = torch.tensor([[0, 1], [2, 3], [4, 5]]).repeat(4, 1)


def links(**arguments):
    return next(iter(LinkNeighborLoader(data(), [2], batch_size=3, seed=1, **arguments)))


def of_pygs_stores(ends):
    features, edges = MyFeatureStore(), MyGraphStore()
    features.put_tensor(X, group_name=None, attr_name="x", index=None)
    edges.put_edge_index((ends, ends), edge_type=None, layout="coo", size=(N, N))
    return next(iter(NeighborLoader((features, edges), [2], IDS, batch_size=3, seed=1)))


def updated(rows, index=IDS):
    features = FeatureStore()
    features.put_tensor(X.clone(), group_name=None, attr_name="x", index=None)
    features.update_tensor(rows, group_name=None, attr_name="x", index=index)
    return features.get_tensor(group_name=None, attr_name="x", index=None)


def saint(edges):
    return next(iter(GraphSAINTNodeSampler(data(edge_index=edges), 3, sample_coverage=2, log=False, seed=1)))


def batch_of(seeds=None, **values):
    return next(iter(NeighborLoader(data(**values), [2], seeds, batch_size=3, seed=1)))


USES = {
    "seeds": (lambda x: batch_of(x), IDS),
    "edges": (lambda x: batch_of(edge_index=x), EDGES),
    "pairs": (lambda x: links(edge_label_index=x), EDGES),
    "index": (lambda x: rows(x), IDS),
    "clusters": (lambda x: ClusterData(data(), 3, cluster=x), torch.tensor([0, 1, 2, 0, 1, 2])),
    "edges of walks": (lambda x: Node2Vec(x, 4, 4, 3, num_nodes=N).pos_sample(IDS), EDGES),
    "given negatives": (lambda x: links(neg_sampling=GivenNegatives(x)), NEGATIVES),
    "function of negatives": (lambda x: links(neg_sampling=GivenNegatives(lambda src, dst: x, 2)), NEGATIVES[:3]),
    "weights of negatives": (
        lambda x: links(neg_sampling=NegativeSampling("binary", dst_weight=x)),
        1 + torch.arange(N),
    ),
    "labels": (lambda x: links(edge_label=x, neg_sampling="binary"), torch.arange(12)),
    "times of seeds": (
        lambda x: next(iter(NeighborLoader(data(t=torch.arange(N)), [2], IDS, x, time_attr="t", batch_size=3, seed=1))),
        torch.tensor([4, 5, 3]),
    ),
    "input_id": (lambda x: next(iter(NeighborLoader(data(), [2], IDS, input_id=x, batch_size=3, seed=1))), IDS),
    "positions": (lambda x: NeighborLoader(data(), [2], batch_size=3)(x), IDS),
    "targets": (lambda x: get_ppr(EDGES, target=x, num_nodes=N), IDS),
    "edges of PageRank": (get_ppr, EDGES),
    "edges of GraphSAINT": (saint, EDGES),
    "edges of clusters": (lambda x: ClusterData(data(edge_index=x), 3, log=False, cluster=torch.arange(N) // 2), EDGES),
    "edges of PyG's store": (of_pygs_stores, EDGES[0]),
    "walks": (lambda x: WALKS.sample(x), IDS),
    "positive walks": (lambda x: WALKS.pos_sample(x), IDS),
    "negative walks": (lambda x: WALKS.neg_sample(x), IDS),
    "rows to write": (updated, torch.zeros(3, 3)),
}
ODD = {
    "meta": lambda x: x.to("meta"),
    "sparse": torch.Tensor.to_sparse,
    "nested": lambda x: torch.nested.nested_tensor([x.flatten()[:2], x.flatten()[2:]]),
    "fake": fake,
    "uint16": lambda x: x.to(torch.uint16),
    "uint64": lambda x: x.to(torch.uint64),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "negative": lambda x: torch._neg_view(-x),
    "complex": lambda x: x.to(torch.complex64),
    "scalar": lambda x: x.flatten()[0],
    "other order": lambda x: other_order(x.numpy()),
}


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple):
        return list(value)
    parts = value.partition if isinstance(value, ClusterData) else value
    attributes = parts.to_dict() if isinstance(parts, Data) else vars(parts)
    return [part for part in attributes.values() if isinstance(part, torch.Tensor)]


@pytest.mark.parametrize("use", USES)
def test_odd_tensors_count_by_their_values_or_are_refused(use):
    call, plain = USES[use]
    torch.manual_seed(0)
    expected = tensors_in(call(plain))
    accepted = []
    for name, odd in ODD.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of nested tensors
            value = odd(plain)
        torch.manual_seed(0)
        try:
            got = tensors_in(call(value))
        except (FeatureError, GraphError, InputError):
            continue
        if name in ("complex", "scalar"):
            assert use == "input_id", name  # any values
            continue
        accepted.append(name)
        for a, b in zip(expected, got, strict=True):
            assert torch.equal(a, b.to(a.dtype)), name
    assert {"strided", "negative"} <= set(accepted)
    assert not {"meta", "sparse", "nested", "fake"} & set(accepted)


def test_samplers_read_seeds_by_their_values():
    for ids in (IDS, torch._neg_view(-IDS)):
        out = SAMPLER.sample_from_nodes(NodeSamplerInput(None, ids))
        assert torch.equal(out.node[:3], IDS)


def test_samplers_refuse_seeds_without_memory():
    for sampler in (SAMPLER, BidirectionalNeighborSampler(data(), [2])):
        with pytest.raises(InputError, match="seed nodes as a dense tensor in memory"):
            sampler.sample_from_nodes(NodeSamplerInput(None, fake(IDS)))
    with pytest.raises(InputError, match="sources of seed edges as a dense tensor in memory"):
        SAMPLER.sample_from_edges(EdgeSamplerInput(None, fake(IDS), fake(IDS)))


def test_rows_are_written_as_numbers_that_fit():
    assert torch.equal(updated(torch.ones(3, 3, dtype=torch.float64))[IDS], torch.ones(3, 3))
    with pytest.raises(FeatureError, match=r"as torch\.float32, got torch\.complex64"):
        updated(torch.ones(3, 3, dtype=torch.complex64), slice(0, 3))


@pytest.mark.parametrize(
    "odd",
    [quantized, fake, torch.Tensor.to_sparse, lambda x: x.to("meta")],
    ids=["quantized", "fake", "sparse", "meta"],
)
def test_what_has_no_numbers_in_memory_is_refused(odd, tmp_path):
    embedding = manyhop.Embedding(N, 2, placement="process")
    uses = [
        lambda: NeighborLoader(data(w=odd(torch.rand(12))), [2], batch_size=3, weight_attr="w"),
        lambda: manyhop_pyg.save(data(x=odd(X)), tmp_path / "g"),
    ]
    if odd is not quantized:
        ids = odd(IDS)
        store = GraphStore()
        uses += [
            lambda: embedding(ids),
            lambda: store.put_edge_index((ids, ids), edge_type=None, layout="coo", size=(N, N)),
        ]
    for use in uses:
        with pytest.raises((FeatureError, GraphError, InputError), match="as a dense tensor in memory, got a tensor"):
            use()


def test_nothing_is_indexed_by_a_tensor_that_only_pretends():
    embedding = manyhop.Embedding(N, 2, placement="process")
    with FakeTensorMode(), pytest.raises(FeatureError, match="FakeTensor"):
        embedding(torch.zeros(3, dtype=torch.long))
