"""What a minibatch of GraphBolt costs Python."""

import torch
from call_budget import BATCHES, WARM_UP, check_calls
from gb_graphs import batches, random_graph

import manyhop_dgl.graphbolt as gb


def test_a_minibatch():
    seeds = torch.arange(4 * (WARM_UP + BATCHES + 4)) % 60
    features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(torch.arange(180.0).view(60, 3))})
    pipe = batches(("seeds", "labels"), (seeds, seeds), batch_size=4, shuffle=True, seed=3)
    pipe = pipe.sample_neighbor(random_graph(), [3, 2]).fetch_feature(features, node_feature_keys=["feat"])
    check_calls(gb.DataLoader(pipe, num_workers=0, overlap_feature_fetch=False), 167)
