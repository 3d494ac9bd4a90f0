"""Seeds that are links between more than two nodes: as they are, by type, with times."""

import pytest
import torch
from gb_graphs import batches, check_layers, random_graph, random_hetero_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

LINKS = torch.tensor([[5, 3, 5, 9], [9, 0, 5, 1]])


@pytest.mark.parametrize("stage", ["sample_neighbor", "sample_layer_neighbor", "sample_in_subgraph"])
def test_hyperlinks(stage):
    names, labels, indexes = ("seeds", "labels", "indexes"), torch.tensor([1, 0]), torch.tensor([0, 0])
    fanouts = [] if stage == "sample_in_subgraph" else [[2, 2]]
    (minibatch,) = getattr(batches(names, (LINKS, labels, indexes)), stage)(random_graph(), *fanouts)
    check_layers(minibatch, torch.tensor([5, 3, 9, 0, 1]))
    assert minibatch.compacted_seeds.tolist() == [[0, 1, 0, 2], [2, 3, 0, 4]]
    assert minibatch.indexes.tolist() == [0, 0]
    assert minibatch.labels.tolist() == [1, 0]
    assert minibatch.seed_nodes is None


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("user:item:user:user", ["user", "item", "user", "user"]),
        ("user:a:user:b:item:c:item", ["user", "user", "item", "item"]),
    ],
)
def test_hyperlinks_by_type(name, types):
    links = gb.HeteroItemSet({name: gb.ItemSet(LINKS, names="seeds")})
    (minibatch,) = gb.ItemSampler(links, batch_size=2).sample_neighbor(random_hetero_graph(), [2, 2])
    columns = minibatch.sampled_subgraphs[-1].original_column_node_ids
    for i, node_type in enumerate(types):
        place = minibatch.compacted_seeds[name][:, i]
        assert torch.equal(columns[node_type][place], LINKS[:, i])
    for ids in columns.values():
        assert ids.unique().numel() == ids.numel()


def test_times_of_hyperlinks():
    graph, times = random_graph(num_nodes=20, num_edges=300, time=torch.arange(300)), torch.tensor([100, 250])
    (minibatch,) = batches(("seeds", "timestamp"), (LINKS, times)).temporal_sample_neighbor(
        graph, [-1], edge_timestamp_attr_name="time"
    )
    (layer,) = minibatch.sampled_subgraphs
    assert torch.equal(layer.original_column_node_ids[minibatch.compacted_seeds], LINKS)
    limit = torch.repeat_interleave(times.repeat_interleave(4), layer.sampled_csc.indptr.diff())
    assert bool((layer.original_edge_ids < limit).all())
    assert int(layer.original_edge_ids.max()) > 100


def test_wrong_hyperlinks():
    links = gb.HeteroItemSet({"user:likes:item": gb.ItemSet(LINKS, names="seeds")})
    with pytest.raises(InputError, match=r"'user:likes:item' to have 3 nodes, or 2 where .* got 4"):
        list(gb.ItemSampler(links, batch_size=2).sample_neighbor(random_hetero_graph(), [2]))
    with pytest.raises(InputError, match=r"or \[n, k\] .*, got \[2, 2, 2\]"):
        list(batches("seeds", LINKS.view(2, 2, 2)).sample_neighbor(random_graph(), [2]))
    with pytest.raises(InputError, match=r"\[num_pairs, 2\] to draw negatives for, got \[2, 4\]"):
        list(batches("seeds", LINKS).sample_uniform_negative(random_graph(), 1))
    assert gb.seed_type_str_to_ntypes("user:likes:item", 2) == ["user", "item"]
    assert gb.seed_type_str_to_ntypes("query:user:item", 3) == ["query", "user", "item"]
    with pytest.raises(InputError, match=r"'source:relation:destination', got \['user', 'item'\]"):
        gb.seed_type_str_to_ntypes(["user", "item"], 2)
    with pytest.raises(InputError, match=r"'source:relation:destination', got \['user', 'likes', 'item'\]"):
        gb.etype_str_to_tuple(["user", "likes", "item"])
