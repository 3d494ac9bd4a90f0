"""Seed edges of several types in one batch, on GPUs and with fixed sizes: the batches of the CPU."""

import pytest
import torch
from grouped import StandIn, compare
from helpers_pyg import all_same
from test_typed_seed_edges import CITES, make, seeds
from torch_geometric.sampler import NegativeSampling

CASES = [
    {},
    {"neg_sampling": "binary", "exclude_true_negatives": True},
    {"neg_sampling": NegativeSampling("triplet", 2), "disjoint": True},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_groups_of_batches_are_those_of_the_cpu(hetero, on_gpu, options):
    compare(on_gpu, lambda: make(hetero, **options), epochs=1)
    assert max(StandIn.groups) > 1
    if "neg_sampling" not in options:
        label = {t: torch.arange(len(pairs[0])) for t, pairs in seeds(hetero).items() if pairs is not None}
        given = {t: seeds(hetero)[t] for t in label}
        compare(on_gpu, lambda: make(hetero, seeds=given, edge_label=label), epochs=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", CASES, ids=str)
def test_on_a_gpu_as_on_the_cpu(hetero, options):
    expected = list(make(hetero, device="cpu", **options))
    found = list(make(hetero, device="cuda", num_workers=1, **options))
    assert all(batch[CITES].edge_index.is_cuda for batch in found)
    assert all_same(expected, [batch.cpu() for batch in found])
