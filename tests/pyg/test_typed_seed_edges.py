"""Seed edges of several types in one batch."""

import pytest
import torch
from grouped import StandIn, compare
from helpers_pyg import all_same, both, check_hetero_batch, same
from torch_geometric.sampler import NegativeSampling

from manyhop.errors import InputError, StateError
from manyhop_pyg import GivenNegatives, LinkNeighborLoader

WRITTEN, CITED = ("paper", "rev_writes", "author"), ("paper", "cited_by", "paper")
WRITES, CITES, HAS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "has", "field")


def seeds(hetero):
    return {WRITES: None, CITES: hetero[CITES].edge_index[:, :40], HAS: torch.tensor([[0, 1, 39], [5, 5, 0]])}


def hard(src, pos):
    """The two destinations after the positive one, of 40."""
    return (pos.view(-1, 1) + torch.arange(1, 3, device=pos.device)) % 40


def of_types(num_seeds=120):
    """Negatives given for each seed edge, by a function, and of the batch."""
    table = torch.arange(3 * num_seeds).view(-1, 3) * 7 % 40
    return {WRITES: GivenNegatives(table), CITES: GivenNegatives(hard, 2), HAS: GivenNegatives("in_batch", 1)}


def make(hetero, **options):
    options = {"batch_size": 16, "shuffle": True, "seed": 1} | options
    return LinkNeighborLoader(hetero, [3, 2], options.pop("seeds", None) or seeds(hetero), **options)


def ends(batch, edge_type, index):
    return torch.stack([batch[edge_type[0]].n_id[index[0]], batch[edge_type[2]].n_id[index[1]]])


@pytest.mark.parametrize(
    "options", [{}, {"neg_sampling": "binary"}, {"disjoint": True, "neg_sampling": "binary"}], ids=str
)
def test_each_seed_edge_is_in_one_batch(hetero, options):
    given = seeds(hetero) | {WRITES: hetero[WRITES].edge_index}
    label = {t: torch.arange(pairs.size(1)) + 1 for t, pairs in given.items()}
    found, mixed = {t: [] for t in given}, 0
    for batch in make(hetero, edge_label=label, **options):
        check_hetero_batch(batch, hetero)
        sizes = {t: batch[t].input_id.numel() for t in given}
        assert sum(sizes.values()) in (16, 163 % 16)
        assert "edge_label_index" not in batch["paper", "rev_writes", "author"]
        mixed += sum(n > 0 for n in sizes.values()) > 1
        for t, n in sizes.items():
            store = batch[t]
            assert (
                store.edge_label_index.size(1)
                == store.edge_label.numel()
                == n * (2 if "neg_sampling" in options else 1)
            )
            positive = store.edge_label_index[:, :n]
            assert torch.equal(ends(batch, t, positive), given[t][:, store.input_id])
            offset = 2 if "neg_sampling" in options and label[t].min() == 0 else 1
            assert torch.equal(store.edge_label[:n], store.input_id + offset)
            assert bool((store.edge_label[n:] == 0).all())
            found[t].append(store.input_id)
            if "disjoint" in options:
                tree = [batch[t[end]].batch[store.edge_label_index[end // 2]] for end in (0, 2)]
                assert torch.equal(*tree)
                before = sum(list(sizes.values())[: list(given).index(t)])
                assert torch.equal(tree[0], before + torch.arange(n).repeat(2))
    assert mixed > 3
    for t, parts in found.items():
        assert torch.cat(parts).sort().values.tolist() == list(range(given[t].size(1)))


def test_triplets(hetero):
    for batch in make(hetero, neg_sampling=NegativeSampling("triplet", 2)):
        for t in seeds(hetero):
            store, n = batch[t], batch[t].input_id.numel()
            assert store.src_index.shape == store.dst_pos_index.shape == (n,)
            assert store.dst_neg_index.shape == (n, 2)
            assert "edge_label_index" not in store
            assert bool((store.dst_neg_index < batch[t[2]].num_nodes).all())


def test_one_type_is_as_without_a_dict(hetero):
    options = {"neg_sampling": "binary", "exclude_true_negatives": True, "disjoint": True}
    pairs = hetero[CITES].edge_index
    for batch, expected in zip(
        make(hetero, seeds={CITES: None}, **options), make(hetero, seeds=(CITES, pairs), **options), strict=True
    ):
        assert same(batch, expected)


@pytest.mark.parametrize("mode", [None, "self", "reverse_types"])
def test_no_seed_edge_of_any_type_is_in_its_batch(hetero, mode):
    hetero[CITED].edge_index = hetero[CITES].edge_index.flip(0)
    given = {WRITES: None, CITES: None}
    reverse = {WRITES: WRITTEN, CITES: CITED} if mode == "reverse_types" else None
    found = dict.fromkeys((WRITES, WRITTEN, CITES, CITED), 0)
    for batch in make(hetero, seeds=given, exclude_seed_edges=mode, reverse_etypes=reverse, batch_size=40):
        check_hetero_batch(batch, hetero)
        for t, back in ((WRITES, WRITTEN), (CITES, CITED)):
            seeds = hetero[t].edge_index[:, batch[t].input_id]
            for one, pairs in ((t, seeds), (back, seeds.flip(0))):
                edges = ends(batch, one, batch[one].edge_index)
                found[one] += int(torch.isin(edges[0] * 64 + edges[1], pairs[0] * 64 + pairs[1]).sum())
    assert [n > 0 for n in found.values()] == {
        None: [True] * 4, "self": [False, True] * 2, "reverse_types": [False] * 4,
    }[mode]  # fmt: skip


def test_negatives_in_the_batch(hetero):
    for batch in make(hetero, neg_sampling=GivenNegatives("in_batch", 2)):
        for t in seeds(hetero):
            store, n = batch[t], batch[t].input_id.numel()
            assert store.dst_neg_index.shape == (n, min(2, max(n - 1, 0)))
            if n > 1:
                assert torch.equal(store.dst_neg_index[:, 0], store.dst_pos_index.roll(-1))


def test_negatives_in_the_padded_batch(hetero):
    given = GivenNegatives("in_batch", 2)
    plain, padded = make(hetero, neg_sampling=given), make(hetero, neg_sampling=given, pad="auto")
    for one, other in zip(plain, padded, strict=True):
        for t in seeds(hetero):
            n, few = one[t].dst_neg_index.shape
            negatives, mask = other[t].dst_neg_index, other[t[2]].node_mask
            assert negatives.shape == (len(other[t].seed_mask), 2)
            assert mask[negatives].sum() == n * few
            assert torch.equal(other[t[2]].n_id[negatives[:n, :few]], one[t[2]].n_id[one[t].dst_neg_index])


@pytest.mark.parametrize("disjoint", [False, True])
def test_negatives_of_their_own_for_each_type(hetero, disjoint):
    table = of_types()[WRITES].dst
    for batch in make(hetero, neg_sampling=of_types(), disjoint=disjoint):
        check_hetero_batch(batch, hetero)
        store, papers = batch[WRITES], batch["paper"].n_id
        assert torch.equal(papers[store.dst_neg_index], table[store.input_id])
        store = batch[CITES]
        assert torch.equal(papers[store.dst_neg_index], hard(None, papers[store.dst_pos_index]))
        n = batch[HAS].input_id.numel()
        assert batch[HAS].dst_neg_index.numel() == (n if n > 1 else 0)


def test_weights_and_amounts_of_their_own_for_each_type(hetero):
    weight = torch.zeros(40).index_fill(0, torch.tensor([3, 8]), 1)
    negatives = {
        WRITES: NegativeSampling("binary", dst_weight=weight),
        CITES: NegativeSampling("binary", 2),
        HAS: "binary",
    }
    for batch in make(hetero, neg_sampling=negatives):
        for t, amount in ((WRITES, 1), (CITES, 2), (HAS, 1)):
            n = batch[t].input_id.numel()
            assert batch[t].edge_label_index.size(1) == n * (1 + amount)
            if t == WRITES:
                drawn = ends(batch, t, batch[t].edge_label_index)[1, n:]
                assert torch.isin(drawn, torch.tensor([3, 8])).all()


def test_negatives_by_position_are_of_the_loaders_seeds(hetero):
    loader = make(hetero, neg_sampling=of_types())
    with pytest.raises(InputError, match="Pass GivenNegatives a function"):
        loader.batch({WRITES: hetero[WRITES].edge_index})
    functions = dict.fromkeys(seeds(hetero), GivenNegatives(hard, 2)) | {
        HAS: GivenNegatives(lambda src, dst: dst % 6, 1)
    }
    loader = make(hetero, neg_sampling=functions)
    batch = loader.batch({WRITES: hetero[WRITES].edge_index[:, :5], CITES: torch.tensor([[1], [2]])})
    assert batch["paper"].n_id[batch[CITES].dst_neg_index].tolist() == [[3, 4]]


def test_times(hetero):
    for store in hetero.edge_stores:
        store.time = torch.arange(store.num_edges) % 50
    given = {WRITES: hetero[WRITES].edge_index[:, :30], CITES: None}
    time = {WRITES: torch.full((30,), 10), CITES: torch.full((150,), 25)}
    for batch in make(hetero, seeds=given, edge_label_time=time, time_attr="time", neg_sampling="binary"):
        limit = torch.cat([batch[t].edge_label_time[: batch[t].input_id.numel()] for t in given])
        for t in given:
            assert torch.equal(batch[t].edge_label_time, time[t][:1].expand(batch[t].edge_label_index.size(1)))
        for t in hetero.edge_types:
            tree = batch[t[2]].batch[batch[t].edge_index[1]]
            assert bool((batch[t].time <= limit[tree]).all())


def test_single_batches(hetero):
    options = {"neg_sampling": "binary"}
    loader = make(hetero, **options)
    expected = list(loader)
    pairs = {
        t: ends(expected[1], t, expected[1][t].edge_label_index)[:, : expected[1][t].input_id.numel()]
        for t in seeds(hetero)
    }
    one = loader.batch(pairs, key=(1, 0, 1))
    for t in pairs:
        assert torch.equal(one[t].edge_label_index, expected[1][t].edge_label_index)
    other = seeds(hetero) | {HAS: torch.tensor([[0, 1, 39], [5, 5, 1]])}
    with pytest.raises(StateError, match="seed edges of each type"):
        make(hetero, seeds=other, **options).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neg_sampling": GivenNegatives(lambda src, dst: dst, 1)}, "by type for negatives from a tensor"),
        ({"neg_sampling": NegativeSampling("binary", dst_weight=torch.ones(40))}, "by type for weights"),
        ({"neg_sampling": {WRITES: "binary"}}, r"neg_sampling for each type of seed edges, .*cites.* among them"),
        ({"neg_sampling": dict.fromkeys((WRITES, CITES, HAS, WRITTEN), "binary")}, "by type for the types of the seed"),
        ({"neg_sampling": {WRITES: "binary", CITES: "triplet", HAS: "binary"}}, r"got \['binary', 'triplet'\]"),
        ({"neg_sampling": {WRITES: "binary", CITES: None, HAS: "binary"}}, "got None for .*cites"),
        ({"neg_sampling": {WRITES: "binary"}, "seeds": (WRITES, None)}, "without types for seed edges of one type"),
        ({"neg_sampling": of_types(5)}, "for the 120 seed edges, one row for each, got 5 rows"),
        ({"exclude_seed_edges": "reverse_types", "reverse_etypes": {WRITES: WRITTEN}}, "seed edges' type .*cites"),
        ({"edge_label": torch.ones(163)}, "edge_label as a dict for the types of the seeds"),
        ({"edge_label": {WRITES: torch.ones(120)}}, "edge_label as a dict"),
        ({"seeds": {("a", "b", "c"): None}}, "Unknown edge type"),
        ({"seeds": (CITES, None), "edge_label": {CITES: torch.ones(150)}}, "edge_label as a tensor"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_wrong_arguments(hetero, options, message):
    with pytest.raises(InputError, match=message):
        make(hetero, **options)


def in_range(src, pos):
    """Some destinations that there are of all types."""
    return torch.stack([pos % 5, (pos + 3) % 6], dim=1)


BY_TYPE = dict.fromkeys((WRITES, CITES, HAS), GivenNegatives(in_range, 2))
CASES = [
    {"exclude_seed_edges": "self"},
    {"neg_sampling": "binary", "exclude_true_negatives": True},
    {"neg_sampling": NegativeSampling("triplet", 2), "disjoint": True},
    {"neg_sampling": "binary", "pad": "auto"},
    {"neg_sampling": of_types()},
    {"neg_sampling": BY_TYPE, "pad": "auto", "disjoint": True},
]
NAMES = ["excluded", "exact", "disjoint", "padded", "given", "padded by type"]


@pytest.mark.parametrize("options", CASES, ids=NAMES)
def test_groups_of_batches_are_those_of_the_cpu(hetero, on_gpu, options):
    compare(on_gpu, lambda: make(hetero, **options), epochs=1)
    assert max(StandIn.groups) > 1
    if "neg_sampling" not in options:
        label = {t: torch.arange(len(pairs[0])) for t, pairs in seeds(hetero).items() if pairs is not None}
        given = {t: seeds(hetero)[t] for t in label}
        compare(on_gpu, lambda: make(hetero, seeds=given, edge_label=label), epochs=1)


@pytest.mark.parametrize(
    "negatives", [None, "binary", NegativeSampling("triplet", 2), BY_TYPE], ids=["none", "binary", "triplet", "by type"]
)
@pytest.mark.parametrize("disjoint", [False, True])
def test_fixed_sizes(hetero, negatives, disjoint):
    """Real rows and ends are those of the batch without padding; the ends of others are padding nodes."""
    given, size = seeds(hetero), 16
    names = ["src_index", "dst_pos_index", "dst_neg_index"] if isinstance(negatives, NegativeSampling | dict) else []
    for plain, padded in both(make, hetero, seeds=given, neg_sampling=negatives, disjoint=disjoint):
        for t in given:
            mask, n = padded[t].seed_mask, plain[t].input_id.numel()
            assert padded[t].input_id.tolist() == plain[t].input_id.tolist() + [0] * (size - n)
            pairs = {"edge_label_index": (t[0], t[2])} if not names else {}
            pairs |= dict(zip(names, [(t[0],), (t[2],), (t[2],)], strict=bool(names)))
            for name, kinds in pairs.items():
                ours, theirs = padded[t][name], plain[t][name]
                for k, end in enumerate(kinds):
                    index, expected = (ours[k], theirs[k]) if len(kinds) > 1 else (ours, theirs)
                    assert torch.equal(padded[end].n_id[index[mask]], plain[end].n_id[expected])
                    assert not padded[end].node_mask[index[~mask]].any()
            if not names:
                assert mask.numel() == size * (1 if negatives is None else 2)
        for t in hetero.node_types:
            mask = padded[t].node_mask
            assert torch.equal(padded[t].n_id[mask], plain[t].n_id)
            assert mask.numel() == padded[t].num_nodes


@pytest.mark.gpu
@pytest.mark.parametrize("options", CASES, ids=NAMES)
def test_on_a_gpu_as_on_the_cpu(hetero, options):
    expected = list(make(hetero, device="cpu", **options))
    found = list(make(hetero, device="cuda", num_workers=1, **options))
    assert all(batch[CITES].edge_index.is_cuda for batch in found)
    assert all_same(expected, [batch.cpu() for batch in found])
