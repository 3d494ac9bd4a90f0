"""Seed edges of several types in one batch, on GPUs and with fixed sizes: the batches of the CPU."""

import pytest
import torch
from grouped import StandIn, compare
from helpers_pyg import all_same
from padded import both
from test_typed_seed_edges import CITES, HAS, WRITES, make, of_types, seeds
from torch_geometric.sampler import NegativeSampling

from manyhop_pyg import GivenNegatives


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
