"""Arguments of the wrong kind are errors that name them, in GraphBolt's interface."""

import pytest
import torch

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

ITEMS = gb.ItemSet(torch.arange(6), names="seeds")
GRAPH = gb.fused_csc_sampling_graph(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gb.ItemSampler(ITEMS, 2, shuffle="no"), "shuffle to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2, drop_last="no"), "drop_last to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2, minibatcher=3), "minibatcher to be a function, got 3"),
        (lambda: gb.ItemSampler(ITEMS, 2, seed="x"), "seed to be an integer, got 'x'"),
        (lambda: gb.ItemSampler(ITEMS, 2).sample_neighbor(GRAPH, [2], replace="no"), "replace to be True or False"),
        (lambda: gb.ItemSampler(ITEMS, 2).sample_neighbor(GRAPH, [2], deduplicate="no"), "deduplicate to be True"),
        (lambda: gb.ItemSampler(ITEMS, 2).sample_uniform_negative(GRAPH, True), "got True"),
        (lambda: gb.ItemSampler(ITEMS, 2).exclude_seed_edges("no"), "include_reverse_edges to be True or False"),
        (lambda: gb.DataLoader(gb.ItemSampler(ITEMS, 2), num_workers="2"), "num_workers to be an integer of at least"),
        (lambda: gb.DataLoader(gb.ItemSampler(ITEMS, 2), persistent_workers="no"), "persistent_workers to be True"),
        (lambda: gb.DataLoader(gb.ItemSampler(ITEMS, 2), overlap_feature_fetch="no"), "overlap_feature_fetch to be"),
        (lambda: gb.OnDiskDataset(3), "path as a path, got 3"),
        (lambda: gb.preprocess_ondisk_dataset(None), "dataset_dir as a path, got None"),
    ],
)
def test_arguments_of_graphbolt(make, message):
    with pytest.raises(InputError, match=message):
        make()
