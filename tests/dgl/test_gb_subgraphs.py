"""Sampled subgraphs, what is taken out of them, and the functions that they are made with."""

import pytest
import torch
from gb_graphs import batches, edges_of, random_graph, random_hetero_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

BIG = 1 << 40


def layer(**changes):
    parts = {
        "sampled_csc": gb.CSCFormatBase(indptr=torch.tensor([0, 1, 3, 4]), indices=torch.tensor([0, 1, 2, 0])),
        "original_column_node_ids": torch.tensor([10, 11, 12]),
        "original_row_node_ids": torch.tensor([13, 14, 15]),
        "original_edge_ids": torch.tensor([19, 20, 21, 22]),
    }
    return gb.SampledSubgraphImpl(**(parts | changes))


def test_csc_has_to_fit():
    with pytest.raises(InputError, match=r"end with the number of indices \(2\), got 3"):
        gb.CSCFormatBase(torch.tensor([0, 3]), torch.tensor([1, 2]))
    with pytest.raises(InputError, match="as tensors, got list"):
        gb.CSCFormatBase([0, 1], torch.tensor([1]))
    text = repr(gb.CSCFormatBase(torch.tensor([0, 1]), torch.tensor([4])))
    assert text == "CSCFormatBase(indptr=tensor([0, 1]),\n              indices=tensor([4]))"


def test_subgraphs_have_edges():
    with pytest.raises(InputError, match="sampled_csc as CSCFormatBase"):
        gb.SampledSubgraphImpl()
    with pytest.raises(InputError, match="source:relation:destination"):
        gb.SampledSubgraphImpl({"follows": gb.CSCFormatBase(torch.tensor([0, 0]), torch.tensor([]))})


def test_excluded_edges_go_and_nodes_stay():
    left = layer().exclude_edges(torch.tensor([[14, 11], [13, 12], [99, 10]]))
    assert left.sampled_csc.indptr.tolist() == [0, 1, 2, 2]
    assert left.sampled_csc.indices.tolist() == [0, 2]
    assert left.original_edge_ids.tolist() == [19, 21]
    assert left.original_row_node_ids.tolist() == [13, 14, 15]
    assert left.original_column_node_ids.tolist() == [10, 11, 12]


def test_excluding_where_rows_and_columns_are_nodes():
    left = layer(original_row_node_ids=None, original_column_node_ids=None, original_edge_ids=None)
    left = left.exclude_edges(torch.tensor([[1, 1]]))
    assert left.sampled_csc.indptr.tolist() == [0, 1, 2, 3]
    assert left.sampled_csc.indices.tolist() == [0, 2, 0]
    assert left.original_edge_ids is None


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        (torch.empty(0, 2, dtype=torch.int64), [19, 20, 21, 22]),
        (torch.tensor([[10, 13]]), [19, 20, 21, 22]),
        (torch.tensor([[14 + BIG, 11], [14, 11], [15, 11 + BIG]]), [19, 21, 22]),
    ],
    ids=["nothing", "turned", "beyond int32"],
)
def test_edges_that_are_not_there(pairs, left):
    rows = torch.tensor([13, 14, 15]) + (BIG if len(pairs) == 3 else 0)
    assert layer(original_row_node_ids=rows).exclude_edges(pairs).original_edge_ids.tolist() == left


def test_excluding_by_type():
    csc = gb.CSCFormatBase(torch.tensor([0, 1, 2]), torch.tensor([0, 1]))
    hetero = gb.SampledSubgraphImpl(
        {"A:r:B": csc, "B:q:B": csc},
        {"B": torch.tensor([10, 11])},
        {"A": torch.tensor([13, 14]), "B": torch.tensor([10, 11])},
        {"A:r:B": torch.tensor([5, 6]), "B:q:B": torch.tensor([7, 8])},
    )
    left = hetero.exclude_edges({"A:r:B": torch.tensor([[14, 11]]), "unknown:x:y": torch.tensor([[0, 0]])})
    assert left.original_edge_ids["A:r:B"].tolist() == [5]
    assert left.original_edge_ids["B:q:B"].tolist() == [7, 8]
    assert hetero.original_edge_ids["A:r:B"].tolist() == [5, 6]
    with pytest.raises(InputError, match="heterogeneous; got a Tensor"):
        hetero.exclude_edges(torch.tensor([[14, 11]]))
    with pytest.raises(InputError, match=r"got a tensor torch.int64 \[1, 3\]"):
        hetero.exclude_edges({"A:r:B": torch.tensor([[14, 11, 2]])})


@pytest.mark.parametrize("reverse", [False, True])
def test_seed_edges_are_excluded_from_all_layers(reverse):
    graph = random_graph(num_nodes=12, num_edges=80)
    pairs = graph.edges[:, :6].T
    pipe = batches("seeds", pairs, batch_size=6).sample_neighbor(graph, [-1, -1])
    whole = next(iter(pipe))
    (left,) = pipe.exclude_seed_edges(include_reverse_edges=reverse)
    gone = {tuple(pair) for pair in pairs.tolist()}
    gone |= {(dst, src) for src, dst in gone} if reverse else set()
    for before, after in zip(whole.sampled_subgraphs, left.sampled_subgraphs, strict=True):
        assert edges_of(after) == [edge for edge in edges_of(before) if edge[:2] not in gone]
        assert len(edges_of(after)) < len(edges_of(before))


def test_seed_edges_are_excluded_by_type_and_as_a_function():
    graph = random_hetero_graph()
    name, reverse = "user:likes:item", "item:liked:user"
    pairs = gb.HeteroItemSet({name: gb.ItemSet(graph.edges[name][:, :10].T, names="seeds")})
    pipe = gb.ItemSampler(pairs, batch_size=10).sample_neighbor(graph, [torch.tensor([-1, -1, -1])])
    (whole,) = pipe
    (left,) = pipe.transform(lambda minibatch: gb.exclude_seed_edges(minibatch, True, {name: reverse}))
    gone = {tuple(pair) for pair in graph.edges[name][:, :10].T.tolist()}
    for etype, excluded in ((name, gone), (reverse, {(dst, src) for src, dst in gone}), ("user:follows:user", set())):
        before, after = (edges_of(minibatch.sampled_subgraphs[0], etype) for minibatch in (whole, left))
        assert after == [edge for edge in before if edge[:2] not in excluded]
        assert (len(before) > len(after)) == bool(excluded)
    with pytest.raises(InputError, match="only with include_reverse_edges=True"):
        gb.exclude_seed_edges(whole, reverse_etypes_mapping={name: reverse})
    with pytest.raises(InputError, match="Pass edge type -> reverse edge type"):
        gb.exclude_seed_edges(whole, include_reverse_edges=True)
    with pytest.raises(InputError, match="got none"):
        gb.exclude_seed_edges(gb.MiniBatch())
    with pytest.raises(InputError, match="layers are sampled, got one without"):
        gb.exclude_seed_edges(gb.MiniBatch(seeds=torch.zeros(1, 2)))
    for mapping, unknown in (
        ({"user:like:item": reverse}, "user:like:item"),
        ({name: "item:like:user"}, "item:like:user"),
    ):
        with pytest.raises(InputError, match=f"edge types of the graph, .* got '{unknown}'"):
            gb.exclude_seed_edges(whole, True, mapping)


def test_layers_for_pyg():
    x = torch.rand(3, 4)
    (source, target), edge_index, size = layer().to_pyg(x)
    assert source is x
    assert torch.equal(target, x[:3])
    assert edge_index.tolist() == [[0, 1, 2, 0], [0, 1, 1, 2]]
    assert edge_index.dtype == torch.int64
    assert size == (3, 3)
    small = layer(sampled_csc=gb.CSCFormatBase(torch.tensor([0, 2]).int(), torch.tensor([1, 2]).int())).to_pyg(x)
    assert (small.x[1].shape, small.size, small.edge_index.dtype) == ((1, 4), (3, 1), torch.int64)
    with pytest.raises(InputError, match=r"without types.*got a dict"):
        layer().to_pyg({"a": x})
    with pytest.raises(InputError, match="at least 3 nodes, got 2"):
        layer().to_pyg(x[:2])


def test_layers_for_pyg_by_type():
    graph = random_hetero_graph()
    seeds = gb.HeteroItemSet({"user": gb.ItemSet(torch.arange(5), names="seeds")})
    (minibatch,) = gb.ItemSampler(seeds, batch_size=5).sample_neighbor(graph, [torch.tensor([-1, -1, -1])])
    (layer,) = minibatch.sampled_subgraphs
    x = {name: torch.rand(ids.numel(), 2) for name, ids in minibatch.input_nodes.items()}
    (source, target), edge_index, size = layer.to_pyg(x)
    assert source is x
    for name in graph.edges:
        src, _, dst = name.split(":")
        assert size[name] == (x[src].size(0), layer.original_column_node_ids[dst].numel())
        assert torch.equal(target[dst], x[dst][: size[name][1]])
        ends = (
            layer.original_row_node_ids[src][edge_index[name][0]],
            layer.original_column_node_ids[dst][edge_index[name][1]],
        )
        assert torch.equal(torch.stack(ends), graph.edges[name][:, layer.original_edge_ids[name]])
    with pytest.raises(InputError, match=r"by node type.*got a Tensor"):
        layer.to_pyg(x["user"])
    with pytest.raises(InputError, match="both ends of 'user:likes:item', got those of"):
        layer.to_pyg({"user": x["user"]})


def test_reverse_edges():
    pairs = torch.tensor([[0, 2], [1, 1]])
    assert gb.add_reverse_edges(pairs).tolist() == [[0, 2], [1, 1], [2, 0], [1, 1]]
    with pytest.raises(InputError, match=r"got a tuple\. Pass torch\.stack"):
        gb.add_reverse_edges((pairs[:, 0], pairs[:, 1]))  # as in DGL 2.1
    by_type = gb.add_reverse_edges({"A:r:B": pairs, "B:q:A": pairs}, {"A:r:B": "B:q:A", "C:c:C": "C:d:C"})
    assert by_type["A:r:B"] is pairs
    assert by_type["B:q:A"].tolist() == [[0, 2], [1, 1], [2, 0], [1, 1]]
    assert gb.add_reverse_edges({"A:r:B": torch.tensor([[0, 1]])}, {"A:r:B": "B:q:A"})["B:q:A"].tolist() == [[1, 0]]


def test_unique_and_compact_keeps_the_order():
    nodes, places = gb.unique_and_compact([torch.tensor([7, 3, 7]), torch.tensor([1, 3])])
    assert nodes.tolist() == [7, 3, 1]
    assert [place.tolist() for place in places] == [[0, 1, 0], [2, 1]]
    by_type = gb.unique_and_compact({"A": [torch.tensor([4, 4])], "B": [torch.tensor([2])]})
    assert by_type[0]["A"].tolist() == [4]
    assert by_type[1]["A"][0].tolist() == [0, 0]


def test_compacting_csc_formats():
    one = gb.CSCFormatBase(torch.tensor([0, 2, 3]), torch.tensor([1, 2, 2]))
    other = gb.CSCFormatBase(torch.tensor([0, 1, 3]), torch.tensor([5, 7, 6]))
    columns = {"n1": torch.tensor([1, 2]), "n2": torch.tensor([5, 6])}
    rows, csc = gb.unique_and_compact_csc_formats({"n1:e1:n2": one, "n2:e2:n1": other}, columns)
    assert (rows["n1"].tolist(), rows["n2"].tolist()) == ([1, 2], [5, 6, 7])
    assert (csc["n1:e1:n2"].indices.tolist(), csc["n2:e2:n1"].indices.tolist()) == ([0, 1, 1], [0, 2, 1])
    rows, csc = gb.unique_and_compact_csc_formats(other, torch.tensor([6, 9]))
    assert (rows.tolist(), csc.indices.tolist()) == ([6, 9, 5, 7], [2, 3, 0])
    with pytest.raises(InputError, match=r"nodes they stand for \(1\), got 2"):
        gb.unique_and_compact_csc_formats(other, torch.tensor([6]))


def test_compacting_with_times_keeps_repetitions():
    csc = {
        "n2:e2:n1": gb.CSCFormatBase(torch.tensor([0, 1, 3]), torch.tensor([5, 4, 6])),
        "n1:e1:n1": gb.CSCFormatBase(torch.tensor([0, 1, 3]), torch.tensor([1, 2, 3])),
    }
    columns, times = {"n1": torch.tensor([2, 4])}, {"n1": torch.tensor([10, 20])}
    rows, compacted, row_times = gb.compact_csc_format(csc, columns, times)
    assert (rows["n1"].tolist(), rows["n2"].tolist()) == ([2, 4, 1, 2, 3], [5, 4, 6])
    assert compacted["n2:e2:n1"].indices.tolist() == [0, 1, 2]
    assert compacted["n1:e1:n1"].indices.tolist() == [2, 3, 4]
    assert (row_times["n1"].tolist(), row_times["n2"].tolist()) == ([10, 20, 10, 20, 20], [10, 20, 20])
