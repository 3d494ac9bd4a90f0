"""MiniBatch: its names, what is moved, blocks and pairs."""

import sys

import pytest
import torch
from gb_graphs import batches, random_graph, random_hetero_graph

import manyhop_dgl
import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def test_seed_nodes_and_seeds_are_two_names():
    nodes = torch.tensor([3, 1])
    assert torch.equal(gb.MiniBatch(seeds=nodes).seed_nodes, nodes)
    assert torch.equal(gb.MiniBatch(seed_nodes=nodes).seeds, nodes)
    assert gb.MiniBatch(seeds=torch.tensor([[3, 1]])).seed_nodes is None  # an edge
    assert gb.MiniBatch(seeds={"user": nodes}).seed_nodes == {"user": nodes}
    assert gb.MiniBatch(seeds={"user:follows:user": torch.tensor([[3, 1]])}).seed_nodes is None
    assert gb.MiniBatch().seeds is None
    minibatch = gb.MiniBatch()
    minibatch.seed_nodes = nodes
    assert minibatch.seeds is nodes


@pytest.mark.parametrize("name", ["node_pairs", "negative_srcs", "compacted_negative_dsts", "positive_node_pairs"])
def test_names_of_pairs_in_dgl_2_1(name):
    with pytest.raises(AttributeError, match=f"{name} is not part of manyhop's GraphBolt. Use .*seeds"):
        getattr(gb.MiniBatch(), name)


def test_given_negatives_under_a_name_of_dgl_2_1():
    items = gb.ItemSet((torch.arange(8).view(4, 2), torch.arange(4)), names=("node_pairs", "negative_dsts"))
    with pytest.raises(InputError, match=r"negative_dsts is not part of manyhop's GraphBolt\. Use seeds with labels"):
        next(iter(gb.ItemSampler(items, 2)))


def test_repr_shows_what_it_has_and_what_users_add():
    minibatch = gb.MiniBatch(seed_nodes=torch.tensor([3, 1]))
    minibatch.timestamp = torch.tensor([7, 7])
    text = repr(minibatch)
    assert text.startswith("MiniBatch(labels=None,\n          seeds=tensor([3, 1]),\n          indexes=None")
    assert "timestamp=tensor([7, 7])" in text
    assert "key" not in text


def test_to_moves_all_tensors():
    two = torch.tensor([0, 1])
    minibatch = gb.MiniBatch(seeds=two, labels=two, input_nodes=two, node_features={"x": two})
    minibatch.timestamp = two
    minibatch.to("meta")
    tensors = (minibatch.seeds, minibatch.labels, minibatch.input_nodes, minibatch.node_features["x"])
    assert {tensor.device.type for tensor in (*tensors, minibatch.timestamp)} == {"meta"}


def test_to_moves_layers_and_each_tensor_once():
    graph = random_graph()
    minibatch = next(iter(batches("seeds", torch.arange(8)).sample_neighbor(graph, [2, 2])))
    layers = minibatch.sampled_subgraphs
    minibatch.to("meta")
    assert layers[0].sampled_csc.indices.device.type == layers[1].original_edge_ids.device.type == "meta"
    assert minibatch.input_nodes is layers[0].original_row_node_ids
    assert layers[0].original_column_node_ids is layers[1].original_row_node_ids


def test_a_class_of_the_user_moves_itself():
    class Mine(gb.MiniBatch):
        def to(self, device):
            return gb.MiniBatch(seeds=self.seeds.to(device), labels="mine")

    (minibatch,) = gb.ItemSampler(gb.ItemSet(4), 4, lambda ids, names: Mine(seeds=ids)).copy_to("meta")
    assert (minibatch.seeds.device.type, minibatch.labels) == ("meta", "mine")


def test_no_blocks_without_layers(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)  # it is not needed
    assert gb.MiniBatch().blocks is gb.MiniBatch(sampled_subgraphs=[]).blocks is None


def test_pairs_with_labels_of_seeds():
    seeds, marks = torch.tensor([[0, 2], [1, 3]]), torch.tensor([1, 0])
    classes = gb.MiniBatch(compacted_seeds=seeds, labels=marks)
    (src, dst), labels = classes.node_pairs_with_labels
    assert (src.tolist(), dst.tolist(), labels.tolist()) == ([0, 1], [2, 3], [1, 0])
    assert labels.dtype == torch.int64  # classes of edges stay as they are
    name = "user:follows:user"
    pairs, labels = gb.MiniBatch(compacted_seeds={name: seeds}, labels={name: marks}).node_pairs_with_labels
    assert [end.tolist() for end in pairs[name]] == [[0, 1], [2, 3]]
    assert labels[name].tolist() == [1, 0]
    assert gb.MiniBatch(compacted_seeds=seeds).node_pairs_with_labels is None
    assert gb.MiniBatch(compacted_seeds=torch.tensor([0, 1]), labels=marks).node_pairs_with_labels is None


@pytest.fixture
def dgl():
    return pytest.importorskip("dgl", "2.1", reason="blocks are DGL's")


def test_blocks_by_type(dgl):
    graph = random_hetero_graph()
    seeds = gb.HeteroItemSet({"user": gb.ItemSet(torch.arange(5), names="seeds")})
    minibatch = next(iter(gb.ItemSampler(seeds, batch_size=5).sample_neighbor(graph, [torch.tensor([-1, -1, -1])] * 2)))
    blocks = minibatch.blocks
    assert blocks[1].num_dst_nodes("user") == 5
    assert blocks[1].num_dst_nodes("item") == 0
    assert torch.equal(blocks[0].srcnodes["item"].data[dgl.NID], minibatch.input_nodes["item"])
    layer = minibatch.sampled_subgraphs[1]
    for name, edges in graph.edges.items():
        src_type, _, dst_type = etype = tuple(name.split(":"))
        src, dst = blocks[1].edges(etype=etype, order="eid")
        ids = blocks[1].edges[etype].data[dgl.EID]
        assert torch.equal(layer.original_row_node_ids[src_type][src.long()], edges[0, ids])
        assert torch.equal(layer.original_column_node_ids[dst_type][dst.long()], edges[1, ids])
    assert blocks[1].num_edges(("item", "liked", "user")) == int((graph.edges["item:liked:user"][1] < 5).sum())


def test_blocks_where_edges_of_some_types_only_have_ids(dgl):
    csc = gb.CSCFormatBase(torch.tensor([0, 1]), torch.tensor([0]))
    nodes = {"a": torch.tensor([7]), "b": torch.tensor([8])}
    layer = gb.SampledSubgraphImpl({"a:x:b": csc, "b:y:a": csc}, nodes, nodes, {"a:x:b": torch.tensor([5])})
    (block,) = gb.MiniBatch(sampled_subgraphs=[layer]).blocks
    assert block.edges["x"].data[dgl.EID].tolist() == [5]
    assert dgl.EID not in block.edges["y"].data


def test_blocks_of_layers_without_positions(dgl):
    layer = gb.SampledSubgraphImpl(gb.CSCFormatBase(torch.tensor([0, 1]), torch.tensor([5])))
    with pytest.raises(InputError, match="Compact it first"):
        _ = gb.MiniBatch(sampled_subgraphs=[layer]).blocks


def test_to_pyg_data():
    pytest.importorskip("torch_geometric", reason="Data is PyG's")
    graph = random_graph()
    minibatch = next(
        iter(batches(("seeds", "labels"), (torch.arange(8), torch.arange(8))).sample_neighbor(graph, [3, 3]))
    )
    minibatch.node_features = {"feat": torch.rand(minibatch.input_nodes.numel(), 2)}
    data = minibatch.to_pyg_data()
    assert data.x is minibatch.node_features["feat"]
    assert data.y is minibatch.labels
    assert data.batch_size == 8
    assert data.n_id is minibatch.input_nodes
    outer = minibatch.sampled_subgraphs[0]
    col = torch.repeat_interleave(outer.sampled_csc.indptr.diff())
    assert set(zip(*data.edge_index.tolist(), strict=True)) >= set(
        zip(outer.sampled_csc.indices.tolist(), col.tolist(), strict=True)
    )
    assert data.edge_index.unique(dim=1).shape == data.edge_index.shape
    for seeds in (torch.rand(3, 2), {"a:b:c": torch.rand(3, 2)}):
        minibatch.seeds = seeds
        assert minibatch.to_pyg_data().batch_size == 3
    minibatch.node_features["more"] = torch.rand(3)
    with pytest.raises(InputError, match=r"got the features \['feat', 'more'\]"):
        minibatch.to_pyg_data()


def test_blocks_are_those_of_dgl(dgl):
    """With all neighbours, edge by edge."""
    graph = dgl.graph(tuple(random_graph().edges), num_nodes=60)
    seeds = torch.tensor([5, 17, 3])
    inputs, _, expected = dgl.dataloading.MultiLayerFullNeighborSampler(2).sample(graph, seeds)
    ours = gb.from_dglgraph(graph, is_homogeneous=True, include_original_edge_id=True)
    (minibatch,) = batches("seeds", seeds).sample_neighbor(ours, [-1, -1])
    assert minibatch.input_nodes.sort().values.tolist() == inputs.sort().values.tolist()
    ids = [layer.original_row_node_ids for layer in minibatch.sampled_subgraphs]
    assert torch.equal(minibatch.blocks[0].srcdata[dgl.NID], minibatch.input_nodes)
    assert minibatch.sampled_subgraphs[0].sampled_csc.indices.dtype == torch.int64  # not changed by looking at them
    for rows, block, theirs in zip(ids, minibatch.blocks, expected, strict=True):
        assert block.is_block
        assert block.idtype == torch.int32
        assert block.num_dst_nodes() == theirs.num_dst_nodes()
        assert block.num_src_nodes() == theirs.num_src_nodes()
        assert edges_by_id(block, rows, dgl.EID) == edges_by_id(theirs, theirs.srcdata[dgl.NID], dgl.EID)


def edges_by_id(block, rows, eid):
    """Edge of the graph -> its ends, as nodes of the graph; destinations are the first rows."""
    src, dst = block.edges(order="eid")
    ends = zip(rows[src.long()].tolist(), rows[dst.long()].tolist(), strict=True)
    return dict(zip(block.edata[eid].tolist(), ends, strict=True))


def test_install_and_back(dgl):
    with pytest.raises(AttributeError, match=r"manyhop_dgl\.graphbolt"):
        _ = dgl.graphbolt.ItemSampler
    before = dict(vars(dgl.graphbolt))
    manyhop_dgl.install()
    try:
        assert dgl.graphbolt.ItemSampler is gb.ItemSampler
        manyhop_dgl.install()
    finally:
        manyhop_dgl.uninstall()
    assert dict(vars(dgl.graphbolt)) == before
