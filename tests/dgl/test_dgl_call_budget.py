"""What a batch of DGL's loader costs Python."""

import pytest
import torch
from call_budget import BATCHES, WARM_UP, check_calls
from test_dgl_loader_tensors import graph

from manyhop_dgl import DataLoader, NeighborSampler

SEEDS = torch.arange(4 * (WARM_UP + BATCHES + 4)) % 100


@pytest.mark.parametrize(("options", "budget"), [({}, 293), ({"output": "tensors"}, 167)])
def test_a_batch_of_nodes(options, budget):
    sampler = NeighborSampler([4, 3], seed=1, prefetch_node_feats=["x"], prefetch_labels=["y"])
    loader = DataLoader(graph("ours"), SEEDS, sampler, batch_size=4, shuffle=True, seed=3, **options)
    check_calls(loader, budget)
