"""``pad="auto"``: batches of fixed sizes, and models that compute the same on them."""

import copy
from typing import Any

import pytest
import torch
from helpers_pyg import all_same, name_of
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, GraphConv, HeteroConv, SAGEConv, global_max_pool
from torch_geometric.sampler import BaseSampler, NegativeSampling
from torch_geometric.utils import trim_to_layer

from manyhop.errors import FeatureError, InputError
from manyhop.pipeline.streams import tensors_in
from manyhop_pyg import (
    FeatureStore,
    GraphStore,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
)

MASKS = ("node_mask", "edge_mask", "seed_mask")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Torch's idle threads would take the cores from others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def node_loader(data: Any, **options: Any) -> NeighborLoader:
    options = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True, "seed": 1} | options
    return NeighborLoader(data, **options)


def link_loader(data: Any, **options: Any) -> LinkNeighborLoader:
    options = {"num_neighbors": [3, 2], "batch_size": 16, "shuffle": True, "seed": 1} | options
    return LinkNeighborLoader(data, **options)


def shapes(batch: Any) -> Any:
    return [
        (store._key, key, value.shape if isinstance(value, torch.Tensor) else value)
        for store in batch.stores
        for key, value in store.items()
    ]


def both(make: Any, data: Any, **options: Any) -> Any:
    """Pairs of batches, without and with padding; all with padding have the same shapes."""
    plain, padded = list(make(data, **options)), list(make(data, pad="auto", **options))
    assert len(plain) == len(padded) > 1
    assert all(shapes(batch) == shapes(padded[0]) for batch in padded)
    return zip(plain, padded, strict=True)


def check_rows(plain: Any, padded: Any, node_mask: torch.Tensor, mask_of: dict[str, torch.Tensor]) -> None:
    """Real rows are those of the batch without padding; all others are zeros."""
    for key, value in plain.items():
        if not isinstance(value, torch.Tensor) or key in ("edge_index", "edge_label_index", "batch", "input_id"):
            continue
        if (mask := mask_of.get(key)) is not None:
            assert torch.equal(padded[key][mask], value), key
            assert not padded[key][~mask].any(), key


def check(plain: Data, padded: Data) -> None:
    nodes = dict.fromkeys(("x", "y", "train_mask", "n_id", "time"), padded.node_mask)
    edges = dict.fromkeys(("edge_attr", "edge_weight", "edge_time", "e_id"), padded.edge_mask)
    check_rows(plain._store, padded._store, padded.node_mask, nodes | edges)
    assert padded.num_nodes == padded.node_mask.numel() == padded.x.size(0)
    ends = padded.edge_index
    assert torch.equal(padded.n_id[ends[:, padded.edge_mask]], plain.n_id[plain.edge_index])
    assert padded.node_mask[ends[:, padded.edge_mask]].all()
    assert not padded.node_mask[ends[:, ~padded.edge_mask]].any()
    assert not padded.node_mask.all()


class Permuted(NeighborSampler):
    """A user's sampler, whose edges are numbered otherwise than the data's."""

    edge_permutation = torch.arange(300).flip(0)


def test_padding_edges_have_the_id_0_also_where_edges_are_permuted(data):
    usual, permuted = (
        NodeLoader(data, of(data, [3, 2]), batch_size=8, pad="auto", seed=1) for of in (NeighborSampler, Permuted)
    )
    for plain, batch in zip(usual, permuted, strict=True):
        assert not batch.e_id[~batch.edge_mask].any()
        assert torch.equal(batch.e_id[batch.edge_mask], 299 - plain.e_id[batch.edge_mask])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_neighbors": [-1]},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"disjoint": True},
    {"replace": True, "num_workers": 2},
    {"time_attr": "time"},
    {"weight_attr": "edge_weight", "filter_per_worker": False},
    {"batch_size": 100},
    {"sampler": torch.utils.data.SequentialSampler(range(60)), "shuffle": None},
]


@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_nodes(data, options):
    batch_size = options.get("batch_size", 8)
    if batch_size == 100:
        plain, padded = next(iter(node_loader(data, **options))), next(iter(node_loader(data, pad="auto", **options)))
        pairs = [(plain, padded)]
    else:
        pairs = list(both(node_loader, data, **options))
    for plain, padded in pairs:
        check(plain, padded)
        n = plain.batch_size
        assert padded.batch_size == padded.seed_mask.numel() == batch_size
        assert padded.seed_mask.tolist() == [i < n for i in range(batch_size)]
        assert padded.input_id[:n].tolist() == plain.input_id.tolist()
        assert padded.n_id[:n].tolist() == plain.n_id[:n].tolist()
        if "num_sampled_nodes" in plain:
            assert sum(padded.num_sampled_nodes) == padded.num_nodes
            assert sum(padded.num_sampled_edges) == padded.num_edges
        if "batch" in plain:
            assert torch.equal(padded.batch[padded.node_mask], plain.batch)
            assert (padded.batch[~padded.node_mask] == batch_size).all()
            pooled = global_max_pool(padded.x, padded.batch, batch_size + 1)[:n]
            assert torch.equal(pooled, global_max_pool(plain.x, plain.batch, n))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"neg_sampling": "binary"},
        {"neg_sampling": "binary", "disjoint": True, "num_workers": 1},
        {"neg_sampling": NegativeSampling("binary", 1.5), "edge_label": torch.arange(300) % 3, "batch_size": 70},
        {"time_attr": "time", "edge_label_time": torch.arange(300) % 20},
    ],
    ids=str,
)
def test_links(data, options):
    for plain, padded in both(link_loader, data, **options):
        check(plain, padded)
        mask, index = padded.seed_mask, padded.edge_label_index
        assert index.shape == (2, mask.numel())
        assert torch.equal(padded.n_id[index[:, mask]], plain.n_id[plain.edge_label_index])
        assert not padded.node_mask[index[:, ~mask]].any()
        assert mask.nonzero().view(-1).tolist() == list(range(plain.edge_label_index.size(1)))
        for key in ("edge_label", "edge_label_time"):
            if key in plain:
                assert torch.equal(padded[key][mask], plain[key])
        assert padded.input_id[: plain.input_id.numel()].tolist() == plain.input_id.tolist()


@pytest.mark.parametrize("amount", [1, 2])
def test_triplets(data, amount):
    for plain, padded in both(link_loader, data, batch_size=70, neg_sampling=NegativeSampling("triplet", amount)):
        check(plain, padded)
        mask = padded.seed_mask
        for key in ("src_index", "dst_pos_index", "dst_neg_index"):
            assert torch.equal(padded.n_id[padded[key][mask]], plain.n_id[plain[key]])
            assert not padded.node_mask[padded[key][~mask]].any()


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}], ids=str)
def test_typed_nodes(hetero, options):
    for plain, padded in both(node_loader, hetero, input_nodes="paper", **options):
        for t in plain.node_types:
            nodes = dict.fromkeys(("x", "y", "n_id"), padded[t].node_mask)
            check_rows(plain[t], padded[t], padded[t].node_mask, nodes)
            assert padded[t].num_nodes == padded[t].node_mask.numel()
        for t in plain.edge_types:
            mask, ends = padded[t].edge_mask, padded[t].edge_index
            check_rows(plain[t], padded[t], mask, dict.fromkeys(("edge_attr", "edge_weight", "e_id"), mask))
            for k, end in enumerate((t[0], t[2])):
                real = padded[end].node_mask[ends[k]]
                assert torch.equal(real, mask)
                assert torch.equal(padded[end].n_id[ends[k, mask]], plain[end].n_id[plain[t].edge_index[k]])
        assert padded["paper"].seed_mask.sum() == plain["paper"].batch_size


def test_hgt(hetero):
    def make(data: Any, **options: Any) -> HGTLoader:
        return HGTLoader(data, [5, 4], "paper", batch_size=8, shuffle=True, seed=1, **options)

    types, torch_state = hetero.edge_types, torch.manual_seed(0)
    hetero["field"].x = torch.randn(6, 2, generator=torch_state)
    sizes = {t: hetero[t].x.size(1) for t in hetero.node_types}
    model = HeteroConv({t: SAGEConv((sizes[t[0]], sizes[t[2]]), 4) for t in types})
    for plain, padded in both(make, hetero):
        n = plain["paper"].batch_size
        assert padded["paper"].seed_mask.tolist() == [i < n for i in range(8)]
        for t in plain.node_types:
            mask = padded[t].node_mask
            check_rows(plain[t], padded[t], mask, dict.fromkeys(("x", "y", "n_id"), mask))
            assert padded[t].num_nodes == mask.numel()
        for t in types:
            mask = padded[t].edge_mask
            check_rows(plain[t], padded[t], mask, dict.fromkeys(("edge_attr", "e_id"), mask))
        expected, got = (model(b.x_dict, b.edge_index_dict)["paper"] for b in (plain, padded))
        assert torch.allclose(got[:n], expected[:n], atol=1e-6)


def test_typed_links(hetero):
    t = ("author", "writes", "paper")
    for plain, padded in both(link_loader, hetero, edge_label_index=t, neg_sampling="binary", batch_size=50):
        mask, index = padded[t].seed_mask, padded[t].edge_label_index
        for k, end in enumerate((t[0], t[2])):
            assert torch.equal(padded[end].n_id[index[k, mask]], plain[end].n_id[plain[t].edge_label_index[k]])
            assert not padded[end].node_mask[index[k, ~mask]].any()


def stores(data: Any) -> Any:
    features, graph = FeatureStore(), GraphStore()
    if isinstance(data, Data):
        graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(60, 60))
        for name in ("x", "y", "edge_attr"):
            features.put_tensor(data[name], group_name=None, attr_name=name, index=None)
        return features, graph
    for t, store in data.node_items():
        if "x" in store:
            features.put_tensor(store.x, group_name=t, attr_name="x", index=None)
    for t, store in data.edge_items():
        size = (data[t[0]].num_nodes, data[t[2]].num_nodes)
        graph.put_edge_index(store.edge_index, edge_type=t, layout="coo", size=size)
    return features, graph


def test_stores(data, hetero):
    for plain, padded in both(node_loader, stores(data), input_nodes=torch.arange(60)):
        check(plain, padded)
    for plain, padded in both(node_loader, stores(hetero), input_nodes=("paper", torch.arange(40))):
        for t in plain.node_types:
            if "x" in plain[t]:
                check_rows(plain[t], padded[t], padded[t].node_mask, {"x": padded[t].node_mask})


# Models


class Net(torch.nn.Module):
    def __init__(self, conv: Any, trim: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = torch.nn.ModuleList([conv(4, 8), conv(8, 3)])
        self.trim = trim

    def forward(self, batch: Data) -> torch.Tensor:
        sampled = (batch.num_sampled_nodes, batch.num_sampled_edges) if self.trim else (None, None)
        return self.layers(batch.x, batch.edge_index, *sampled)

    def layers(self, x: Any, edge_index: Any, num_nodes: Any, num_edges: Any) -> torch.Tensor:
        for layer, conv in enumerate(self.convs):
            if self.trim:
                x, edge_index, _ = trim_to_layer(layer, num_nodes, num_edges, x, edge_index)
            x = conv(x, edge_index).relu()
        return x


CONVS = {
    "mean": SAGEConv,
    "max": lambda i, o: SAGEConv(i, o, aggr="max"),
    "sum": GraphConv,
    "gcn": GCNConv,
    "gat": lambda i, o: GATConv(i, o, add_self_loops=False),
    "gat with loops": GATConv,
}


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("conv", CONVS)
def test_models_compute_the_same(data, conv, trim):
    model = Net(CONVS[conv], trim).double()
    data.x = data.x.double()
    for plain, padded in both(node_loader, data):
        n, expected, got = plain.batch_size, model(plain), model(padded)
        assert torch.allclose(got[:n], expected[:n], rtol=0, atol=1e-14)
        losses = [
            torch.nn.functional.cross_entropy(expected[:n], plain.y[:n]),
            (torch.nn.functional.cross_entropy(got[:8], padded.y[:8], reduction="none") * padded.seed_mask).sum()
            / padded.seed_mask.sum(),
        ]
        grads = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
        for a, b in zip(*grads, strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_sums_are_the_same_bit_for_bit(data):
    """In the order of the edges; a matrix product may add up otherwise for another number of rows."""
    for plain, padded in both(node_loader, data):
        sums = [torch.zeros_like(b.x).index_add(0, b.edge_index[1], b.x[b.edge_index[0]]) for b in (plain, padded)]
        assert torch.equal(sums[1][padded.node_mask], sums[0])


def test_typed_models_compute_the_same(hetero):
    hetero["field"].x = torch.randn(6, 2)
    types = [t for t in hetero.edge_types]
    sizes = {t: hetero[t].x.size(1) for t in hetero.node_types}
    torch.manual_seed(0)
    model = HeteroConv({t: SAGEConv((sizes[t[0]], sizes[t[2]]), 4) for t in types})
    for plain, padded in both(node_loader, hetero, input_nodes="paper"):
        expected, got = (model(b.x_dict, b.edge_index_dict)["paper"] for b in (plain, padded))
        n = plain["paper"].batch_size
        assert torch.allclose(got[:n], expected[:n], atol=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is:DeprecationWarning")  # torch importing its compiler
def test_a_model_is_compiled_once(data):
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    net = Net(SAGEConv, trim=True)
    torch._dynamo.reset()
    model = torch.compile(net.layers, backend=backend, dynamic=False, fullgraph=True)
    for batch in node_loader(data, pad="auto"):
        model(batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges)
    assert len(compiled) == 1


# The loader


def test_batches_that_do_not_fit_get_larger_sizes():
    """Batches of probes are small: their seeds have no neighbours; those of others have many."""
    edge_index = torch.stack([torch.arange(3000) % 2000, torch.arange(3000) % 30 + 1300])
    data = Data(x=torch.ones(2000, 1), edge_index=edge_index)
    loader = node_loader(data, num_neighbors=[-1], batch_size=20, shuffle=False, pad="auto")
    batches = list(loader)
    counts = {(batch.num_nodes, batch.num_edges) for batch in batches}
    assert 1 < len(counts) <= 3
    assert sum(int(batch.edge_mask.sum()) for batch in batches) == 3000
    fitting = sum(batch.num_nodes == batches[0].num_nodes for batch in batches)
    report = loader.stats()
    assert report.pad_fit_rate == fitting / 100 < 1
    assert f"padded: {report.pad_fit_rate:.1%} of the batches fit" in str(report)
    report = node_loader(data).stats()
    assert report.pad_fit_rate is None
    assert "padded" not in str(report)


def test_sizes_are_those_of_the_arguments(data):
    """They depend neither on threads nor on the seed, so they are the same after a restart."""
    first, other = node_loader(data, pad="auto"), node_loader(data, pad="auto", seed=9, num_workers=2)
    state = first.state_dict()
    expected = list(first)
    other.load_state_dict(state)
    assert other._padding.sizes == first._padding.sizes == node_loader(data, pad="auto", seed=None)._padding.sizes
    assert all_same(expected, list(other))
    assert all_same(expected, list(copy.copy(node_loader(data, pad="auto"))))


def test_without_seeds(data):
    assert list(node_loader(data, input_nodes=torch.empty(0, dtype=torch.int64), shuffle=False, pad="auto")) == []
    assert list(node_loader(data, batch_size=100, drop_last=True, pad="auto")) == []


def test_a_transform_of_the_sample(data):
    def halve(out: Any) -> Any:
        out = copy.copy(out)
        out.row, out.col, out.edge = (v[::2] for v in (out.row, out.col, out.edge))
        out.num_sampled_nodes = out.num_sampled_edges = None
        return out

    for plain, padded in both(node_loader, data, transform_sampler_output=halve):
        check(plain, padded)


def test_a_transform_sees_the_masks(data):
    loader = node_loader(data, pad="auto", transform=lambda batch: batch.node_mask.sum() + batch.seed_mask.sum())
    assert all(int(n) > 8 for n in list(loader)[:-1])


class Users(BaseSampler):
    """A sampler of the user's own."""

    def sample_from_nodes(self, index: Any) -> Any:
        raise NotImplementedError

    sample_from_edges = sample_from_nodes


def test_wrong_arguments(data):
    with pytest.raises(InputError, match="pad to be None or 'auto', got 'max'"):
        node_loader(data, pad="max")
    with pytest.raises(InputError, match="batch_sampler"):
        node_loader(data, pad="auto", batch_sampler=[[1, 2], [3]], batch_size=1, shuffle=None)
    with pytest.raises(InputError, match=r"Expected a NeighborSampler or HGTSampler .* got a Users"):
        NodeLoader(data, Users(), batch_size=8, pad="auto")
    with pytest.raises(InputError, match="up to batch_size=8 seeds"):
        node_loader(data, pad="auto")(range(9))
    for name in MASKS:
        named = copy.copy(data)
        named[name] = torch.zeros(60)
        with pytest.raises(FeatureError, match=f"attribute '{name}'"):
            node_loader(named, pad="auto")
        node_loader(named)


def test_all_tensors_are_the_batches_own(data):
    """What a step writes into a batch is not seen in another one."""
    batches = list(node_loader(data, pad="auto"))
    owned = [{t.untyped_storage().data_ptr() for t in tensors_in(batch)} for batch in batches]
    assert not owned[0] & owned[1]


def test_types_stay(hetero):
    batch = next(iter(node_loader(hetero, input_nodes="paper", pad="auto")))
    assert isinstance(batch, HeteroData)
    assert set(batch.node_mask_dict) == set(hetero.node_types)
    assert set(batch.edge_mask_dict) == set(hetero.edge_types)
