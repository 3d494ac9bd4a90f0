"""Stages that sample, against what looking at every edge finds."""

import pytest
import torch
from gb_graphs import ETYPES, batches, check_layers, edges_of, in_edges, random_graph, random_hetero_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

ALL = torch.tensor([-1, -1, -1])


def of_users(items=None, names="seeds", batch_size=6):
    items = torch.arange(6) if items is None else items
    return gb.ItemSampler(gb.HeteroItemSet({"user": gb.ItemSet(items, names=names)}), batch_size=batch_size)


@pytest.mark.parametrize("stage", ["sample_neighbor", "sample_layer_neighbor"])
def test_all_neighbours_are_the_in_edges(stage):
    graph, seeds = random_graph(), torch.tensor([5, 17, 3])
    (minibatch,) = getattr(batches("seeds", seeds), stage)(graph, [-1, -1])
    check_layers(minibatch, seeds)
    outer, inner = minibatch.sampled_subgraphs
    assert edges_of(inner) == in_edges(graph.edges, seeds)
    assert edges_of(outer) == in_edges(graph.edges, inner.original_row_node_ids)
    assert set(inner.original_row_node_ids.tolist()) == {e[0] for e in edges_of(inner)} | {5, 17, 3}
    assert minibatch.edge_ids(0) is outer.original_edge_ids
    assert minibatch.node_ids() is minibatch.input_nodes


@pytest.mark.parametrize("stage", ["sample_neighbor", "sample_layer_neighbor"])
def test_fanouts_count_per_node_and_the_last_is_that_of_the_seeds(stage):
    graph, seeds = random_graph(), torch.arange(10)
    (minibatch,) = getattr(batches("seeds", seeds, batch_size=10), stage)(graph, [4, 2])
    degree = graph.edges[1].bincount(minlength=60)
    for layer, fanout in zip(minibatch.sampled_subgraphs, (4, 2), strict=True):
        expected = degree[layer.original_column_node_ids].clamp(max=fanout)
        assert torch.equal(layer.sampled_csc.indptr.diff(), expected)
        edges = edges_of(layer)
        assert set(edges) <= set(in_edges(graph.edges, layer.original_column_node_ids))
        assert len(set(edges)) == len(edges)
    check_layers(minibatch, seeds)
    assert minibatch.input_nodes.unique().numel() == minibatch.input_nodes.numel()


@pytest.mark.parametrize("stage", ["sample_neighbor", "sample_layer_neighbor"])
def test_masks_and_weights(stage):
    mask = torch.arange(400) % 3 == 0
    graph = random_graph(mask=mask, weight=mask.float())
    for name in ("mask", "weight"):
        pipe = getattr(batches("seeds", torch.arange(10), batch_size=10), stage)(graph, [-1], prob_name=name)
        (layer,) = next(iter(pipe)).sampled_subgraphs
        assert edges_of(layer) == [e for e in in_edges(graph.edges, torch.arange(10)) if e[2] % 3 == 0]
    with pytest.raises(InputError, match="Unknown edge attribute 'prob'"):
        next(iter(getattr(batches("seeds", torch.arange(10)), stage)(graph, [2], prob_name="prob")))


def test_hetero():
    graph = random_hetero_graph()
    (minibatch,) = of_users().sample_neighbor(graph, [ALL, ALL])
    outer, inner = minibatch.sampled_subgraphs
    seeds = {"user": torch.arange(6), "item": torch.tensor([], dtype=torch.int64)}
    for name in ETYPES:
        dst = name.split(":")[2]
        assert edges_of(inner, name) == in_edges(graph.edges[name], seeds[dst])
        assert edges_of(outer, name) == in_edges(graph.edges[name], inner.original_row_node_ids[dst])
    assert set(minibatch.input_nodes) == {"user", "item"}
    assert torch.equal(minibatch.input_nodes["user"][:6], torch.arange(6))


@pytest.mark.parametrize("form", [torch.tensor, list])
def test_fanouts_by_type(form):
    graph = random_hetero_graph()
    (minibatch,) = of_users().sample_neighbor(graph, [form([2, 0, 1]), form([1, 3, 2])])
    for layer, fanouts in zip(minibatch.sampled_subgraphs, ([2, 0, 1], [1, 3, 2]), strict=True):
        for (name, csc), fanout in zip(layer.sampled_csc.items(), fanouts, strict=True):
            dst = name.split(":")[2]
            degree = graph.edges[name][1].bincount(minlength=30)[layer.original_column_node_ids[dst]]
            assert torch.equal(csc.indptr.diff(), degree.clamp(max=fanout))


@pytest.mark.parametrize("fanouts", [[4, 3], [4, ALL]], ids=["one", "last"])
def test_a_fanout_for_all_types_together(fanouts):
    graph = random_hetero_graph()
    (minibatch,) = of_users().sample_neighbor(graph, fanouts)
    for layer, fanout in zip(minibatch.sampled_subgraphs, fanouts, strict=True):
        if not isinstance(fanout, int):
            continue
        for ntype, columns in layer.original_column_node_ids.items():
            into = [name for name in ETYPES if name.endswith(f":{ntype}")]
            degree = sum(graph.edges[name][1].bincount(minlength=30)[columns] for name in into)
            picked = sum(layer.sampled_csc[name].indptr.diff() for name in into)
            assert torch.equal(picked, degree.clamp(max=fanout))
        for name in ETYPES:
            assert set(edges_of(layer, name)) <= set(
                in_edges(graph.edges[name], layer.original_column_node_ids[name.split(":")[2]])
            )


def temporal_graph():
    return random_graph(num_nodes=20, num_edges=300, time=torch.arange(300))


def test_temporal_sampling_goes_back_in_time():
    graph, seeds, times = temporal_graph(), torch.tensor([5, 5, 7]), torch.tensor([100, 250, 9])
    pipe = batches("seeds", seeds)  # as datasets are shuffled and cut, so are their times
    (minibatch,) = batches(("seeds", "timestamp"), (seeds, times)).temporal_sample_neighbor(
        graph, [-1, -1], edge_timestamp_attr_name="time"
    )
    outer, inner = minibatch.sampled_subgraphs
    assert torch.equal(inner.original_column_node_ids, seeds)  # both copies: their times differ
    col = torch.repeat_interleave(inner.sampled_csc.indptr.diff())
    for i, (seed, time) in enumerate(zip(seeds.tolist(), times.tolist(), strict=True)):
        mine = inner.original_edge_ids[col == i].tolist()
        assert sorted(mine) == [k for k in range(time) if graph.edges[1, k] == seed]
    assert outer.original_column_node_ids.numel() == 3 + inner.sampled_csc.indices.numel()
    row_times = torch.cat([times, times[col]])
    outer_col = torch.repeat_interleave(outer.sampled_csc.indptr.diff())
    assert bool((outer.original_edge_ids < row_times[outer_col]).all())
    with pytest.raises(InputError, match="with a timestamp"):
        next(iter(pipe.temporal_sample_neighbor(graph, [2], edge_timestamp_attr_name="time")))
    pipe = batches(("seeds", "timestamp"), (seeds, torch.stack([times, times], dim=1)))
    with pytest.raises(InputError, match=r"for each seed or each positive pair, got \[3, 2\] for 3"):
        next(iter(pipe.temporal_sample_neighbor(graph, [2], edge_timestamp_attr_name="time")))


def test_probabilities_go_together_with_times():
    time = torch.arange(300)
    graph = random_graph(num_nodes=20, num_edges=300, time=time, weight=(time % 3 == 0).float())
    pipe = batches(("seeds", "timestamp"), (torch.arange(4), torch.full((4,), 200)))
    possible = [k for k in range(0, 300, 3) if graph.edges[1, k] < 4]
    for fanout, times, expected in (
        (-1, {}, possible),
        (-1, {"edge_timestamp_attr_name": "time"}, [k for k in possible if k < 200]),
        (2, {"edge_timestamp_attr_name": "time"}, None),
    ):
        (minibatch,) = pipe.temporal_sample_neighbor(graph, [fanout], prob_name="weight", **times)
        ids = minibatch.sampled_subgraphs[0].original_edge_ids.tolist()
        assert sorted(ids) == expected if expected is not None else {k for k in possible if k < 200}.issuperset(ids)
        assert len(ids) > 4


def test_times_of_links_go_to_both_ends_and_to_negatives():
    graph, times = temporal_graph(), torch.tensor([100, 250, 30])
    pairs = torch.tensor([[3, 5], [5, 9], [3, 1]])
    (minibatch,) = (
        batches(("seeds", "timestamp"), (pairs, times))
        .sample_uniform_negative(graph, 2)
        .temporal_sample_neighbor(graph, [-1], edge_timestamp_attr_name="time")
    )
    (layer,) = minibatch.sampled_subgraphs
    nodes, place = minibatch.seeds, minibatch.compacted_seeds
    of_pair = minibatch.indexes[:, None].expand(-1, 2)
    assert torch.equal(layer.original_column_node_ids[place], nodes)
    col = torch.repeat_interleave(layer.sampled_csc.indptr.diff())
    for node, at, pair in zip(nodes.view(-1).tolist(), place.view(-1).tolist(), of_pair.reshape(-1), strict=True):
        ids = sorted(layer.original_edge_ids[col == at].tolist())
        assert ids == [k for k in range(int(times[pair])) if graph.edges[1, k] == node]


def test_wrong_arguments():
    graph, pipe = random_graph(), batches("seeds", torch.arange(8))
    for stage in ("sample_neighbor", "sample_layer_neighbor", "temporal_sample_neighbor"):
        for fanouts in ([], "22"):
            with pytest.raises(InputError, match="at least one fanout"):
                getattr(pipe, stage)(graph, fanouts)
        with pytest.raises(InputError, match=r"as an integer or a 1-D tensor of integers, got 2\.5"):
            getattr(pipe, stage)(graph, [2, 2.5])
    with pytest.raises(InputError, match="greater than or equal to 0, got"):
        next(iter(pipe.sample_neighbor(graph, [-2])))
    with pytest.raises(InputError, match="Expected nodes in"):
        next(iter(batches("seeds", torch.tensor([60])).sample_neighbor(graph, [2])))
    with pytest.raises(InputError, match="a minibatch with seeds, got one without"):
        next(iter(batches("labels", torch.arange(8)).sample_neighbor(graph, [2])))
    with pytest.raises(InputError, match="to draw negatives for, got none"):
        next(iter(batches("labels", torch.arange(8)).sample_uniform_negative(graph, 1)))
    with pytest.raises(InputError, match=r"(?s)Fanouts should have the same number.*batch 0 of epoch 0"):
        next(iter(gb.DataLoader(of_users().sample_neighbor(random_hetero_graph(), [torch.tensor([1, 2])]))))


def test_each_copy_of_a_seed_node_has_a_column():
    """So that what a model gives for the last layer is in the order of the labels."""
    graph, seeds = random_graph(), torch.tensor([5, 17, 5])
    (minibatch,) = batches("seeds", seeds).sample_neighbor(graph, [-1])
    assert torch.equal(minibatch.sampled_subgraphs[0].original_column_node_ids, seeds)
    assert minibatch.compacted_seeds.tolist() == [0, 1, 2]
    of_nodes = sorted(in_edges(graph.edges, torch.tensor([5])) * 2 + in_edges(graph.edges, torch.tensor([17])))
    assert edges_of(minibatch.sampled_subgraphs[0]) == of_nodes
    mixed = gb.MiniBatch(seeds={"user": seeds, "user:likes:item": torch.tensor([[5, 1], [2, 1]])})
    (mixed,) = gb.MiniBatchTransformer([mixed]).sample_neighbor(random_hetero_graph(), [2])
    columns = mixed.sampled_subgraphs[0].original_column_node_ids
    assert (columns["user"].tolist(), columns["item"].tolist()) == ([5, 17, 2], [1])
    assert mixed.compacted_seeds["user"].tolist() == [0, 1, 0]
    assert mixed.compacted_seeds["user:likes:item"].tolist() == [[0, 0], [2, 0]]
