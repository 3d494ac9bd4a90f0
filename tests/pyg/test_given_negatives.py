"""LinkNeighborLoader with negatives that are given, not drawn."""

import pytest
import torch
from helpers_pyg import check_batch

from manyhop.errors import InputError
from manyhop_pyg import BidirectionalNeighborSampler, GivenNegatives, LinkLoader, LinkNeighborLoader

WRITES = ("author", "writes", "paper")


def table(width=3, n=300, bound=60):
    return torch.randint(0, bound, (n, width), generator=torch.Generator().manual_seed(3))


def hard(src, dst):
    """Two destinations that are functions of the endpoints."""
    assert src.dtype == dst.dtype == torch.int64
    return torch.stack([(src + 7 * dst) % 60, (3 * src + 1) % 60], 1)


def make(data, negatives, **options):
    options = {"batch_size": 40, "shuffle": True, "seed": 1} | options
    return LinkNeighborLoader(data, [3, 2], neg_sampling=negatives, **options)


OPTIONS = [
    {},
    {"disjoint": True},
    {"pad": "auto"},
    {"filter_per_worker": False},
    {"exclude_seed_edges": "self"},
    {"time_attr": "edge_time", "edge_label_time": torch.arange(300) % 20},
    {"batch_sampler": [[3, 5, 5], [8]], "batch_size": 1, "shuffle": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(list(options)))
@pytest.mark.parametrize("kind", ["tensor", "function"])
def test_negatives_are_those_given(data, kind, options):
    given = table() if kind == "tensor" else hard
    for batch in make(data, GivenNegatives(given, None if kind == "tensor" else 2), **options):
        if "pad" not in options:
            check_batch(batch, data)
        n = batch.seed_mask.sum() if "pad" in options else len(batch.input_id)
        at = batch.input_id[:n]
        src, dst = data.edge_index[:, at]
        assert torch.equal(batch.n_id[batch.src_index[:n]], src)
        assert torch.equal(batch.n_id[batch.dst_pos_index[:n]], dst)
        expected = given[at] if kind == "tensor" else hard(src, dst)
        assert torch.equal(batch.n_id[batch.dst_neg_index[:n]], expected)
        if "disjoint" in options:
            assert torch.equal(batch.batch[batch.dst_neg_index], torch.arange(n).view(-1, 1).expand(expected.shape))


def test_one_negative_is_a_vector(data):
    given = table(1)
    for shaped in (given, given[:, 0]):
        batch = next(iter(make(data, GivenNegatives(shaped))))
        assert torch.equal(batch.n_id[batch.dst_neg_index], given[batch.input_id, 0])


@pytest.mark.parametrize("amount", [None, 4, 100])
@pytest.mark.parametrize("disjoint", [False, True])
def test_in_the_batch(data, amount, disjoint):
    plain = make(data, None, disjoint=disjoint)
    for batch, other in zip(make(data, GivenNegatives("in_batch", amount), disjoint=disjoint), plain, strict=True):
        assert torch.equal(batch.n_id, other.n_id)
        p = batch.input_id.numel()
        width = p - 1 if amount is None else min(amount, p - 1)
        assert batch.dst_neg_index.shape == (p, width)
        for a in range(width):
            assert torch.equal(batch.dst_neg_index[:, a], batch.dst_pos_index.roll(-a - 1))


@pytest.mark.parametrize("amount", [None, 1, 20])
def test_in_the_padded_batch(data, amount):
    """The last one has 10 seed edges."""
    given = GivenNegatives("in_batch", amount)
    plain, padded = (list(make(data, given, batch_size=29, pad=pad)) for pad in (None, "auto"))
    width = amount or 28
    for one, other in zip(plain, padded, strict=True):
        n, few = one.dst_neg_index.shape
        negatives = other.dst_neg_index
        assert negatives.shape == (29, width)
        real = other.seed_mask.view(-1, 1) & (torch.arange(width) < few)
        assert torch.equal(other.node_mask[negatives], real)
        assert torch.equal(other.n_id[negatives[:n, :few]], one.n_id[one.dst_neg_index])
    assert [few for _, few in [one.dst_neg_index.shape for one in (plain[0], plain[-1])]] == [width, min(width, 9)]


def test_a_batch_of_given_seeds(data):
    pairs = torch.tensor([[3, 4], [9, 50]])
    batch = make(data, GivenNegatives(hard, 2)).batch(pairs)
    assert torch.equal(batch.n_id[batch.dst_neg_index], hard(*pairs))
    assert make(data, GivenNegatives("in_batch")).batch(pairs).dst_neg_index.shape == (2, 1)
    with pytest.raises(InputError, match="Pass GivenNegatives a function"):
        make(data, GivenNegatives(table())).batch(pairs)


NEGATIVES = [
    (GivenNegatives(table(3, 9)), {}, "for the 300 seed edges, one row for each, got 9 rows"),
    (GivenNegatives(table() + 60), {}, r"Expected negatives in \[0, 60\)"),
    (GivenNegatives(table()), {"exclude_true_negatives": True}, "given ones are used unchanged"),
    (GivenNegatives("in_batch"), {"time_attr": "time", "edge_label_time": torch.arange(300)}, "another seed edge"),
    (GivenNegatives(table()), {"edge_label": torch.arange(300)}, "'edge_label' needs to be undefined"),
    (GivenNegatives(lambda src, dst: src.tolist(), 2), {}, r"of shape \[40, 2\], .* got \[40\]"),
    (GivenNegatives(lambda src, dst: src, 2), {}, r"\[40, 2\], a row of destinations per seed edge, got \[40\]"),
    (GivenNegatives(lambda src, dst: hard(src, dst) - 60, 2), {}, r"in \[0, 60\), got -"),
]


@pytest.mark.parametrize(("negatives", "options", "message"), NEGATIVES)
def test_wrong_arguments(data, negatives, options, message):
    with pytest.raises(InputError, match=message):
        list(make(data, negatives, **options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hard",), "Expected negatives as a tensor, a function or 'in_batch', got 'hard'"),
        ((torch.rand(3, 2),), "Expected negatives as integers of shape"),
        ((table() > 0,), "Expected negatives as ids, got torch.bool"),
        ((table(), 2), "Expected amount=3, the width of dst, got 2"),
        ((hard,), "that the function returns, got None"),
        (("in_batch", 0), "amount to be an integer of at least 1, got 0"),
    ],
)
def test_wrong_negatives(arguments, message):
    with pytest.raises(InputError, match=message):
        GivenNegatives(*arguments)


def test_other_samplers(data):
    with pytest.raises(InputError, match="NeighborSampler for GivenNegatives"):
        LinkLoader(data, BidirectionalNeighborSampler(data, [2]), neg_sampling=GivenNegatives(table()))
