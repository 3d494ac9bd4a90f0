"""``pad="auto"``: batches of fixed sizes, with the rows of those without padding."""

import copy
from typing import Any

import pytest
import torch
from helpers_pyg import Foreign, both, link_loader, name_of, node_loader, stores_of
from test_stores_of_graphs import typed_stores
from torch_geometric.data import Data
from torch_geometric.nn import HeteroConv, SAGEConv, global_max_pool
from torch_geometric.sampler import NegativeSampling

from manyhop.errors import FeatureError, InputError
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import FeatureStore, GraphStore, HGTLoader, NeighborSampler, NodeLoader

MASKS = ("node_mask", "edge_mask", "seed_mask")


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


def test_stores(data, hetero):
    for plain, padded in both(node_loader, stores_of(data, "y", "edge_attr"), input_nodes=torch.arange(60)):
        check(plain, padded)
    for plain, padded in both(
        node_loader, typed_stores(hetero, FeatureStore(), GraphStore()), input_nodes=("paper", torch.arange(40))
    ):
        for t in plain.node_types:
            if "x" in plain[t]:
                check_rows(plain[t], padded[t], padded[t].node_mask, {"x": padded[t].node_mask})


# The loader


def test_batches_that_do_not_fit_get_larger_sizes():
    """Batches of probes are small: their seeds have no neighbours; those of others have many."""
    edge_index = torch.stack([torch.arange(3000) % 2000, torch.arange(3000) % 30 + 1300])
    data = Data(x=torch.ones(2000, 1), edge_index=edge_index)
    loader = node_loader(data, num_neighbors=[-1], batch_size=20, shuffle=False, pad="auto", num_workers=2)
    batches = list(loader)
    counts = {(batch.num_nodes, batch.num_edges) for batch in batches}
    assert 1 < len(counts) <= 3
    assert sum(int(batch.edge_mask.sum()) for batch in batches) == 3000
    fitting = sum(batch.num_nodes == batches[0].num_nodes for batch in batches)
    report = loader.stats()
    assert report.pad_fit_rate == fitting / 100 < 1
    assert f"padded: {report.pad_fit_rate:.1%} of the batches fit" in str(report)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert loader.stats().totals["padded"] == 101  # batches made ahead do not count
    report = node_loader(data).stats()
    assert report.pad_fit_rate is None
    assert "padded" not in str(report)


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


def test_wrong_arguments(data):
    with pytest.raises(InputError, match="pad to be None or 'auto', got 'max'"):
        node_loader(data, pad="max")
    with pytest.raises(InputError, match="batch_sampler"):
        node_loader(data, pad="auto", batch_sampler=[[1, 2], [3]], batch_size=1, shuffle=None)
    with pytest.raises(InputError, match=r"Expected a NeighborSampler or HGTSampler .* got a Foreign"):
        NodeLoader(data, Foreign(), batch_size=8, pad="auto")
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
