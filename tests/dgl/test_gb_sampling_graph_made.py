"""Sampling graphs: copied, saved, shared, made of others, and refused."""

import pytest
import torch
from gb_graphs import EDGE_TYPES, NODE_TYPES, picked, random_graph, small

import manyhop_dgl.graphbolt as gb
from manyhop.errors import GraphError, InputError
from manyhop.graph import HOMOGENEOUS_EDGE


def test_saved_graphs_load_without_running_code(tmp_path):
    graph = small(p=torch.rand(8))
    torch.save(graph, tmp_path / "graph.pt")
    assert repr(torch.load(tmp_path / "graph.pt", weights_only=True)) == repr(graph)


def test_names_that_are_gone():
    with pytest.raises(
        AttributeError, match=r"copy_to_shared_memory is not part of manyhop's GraphBolt\. Use placement"
    ):
        small().copy_to_shared_memory("name")
    with pytest.raises(
        AttributeError, match=r"load_from_shared_memory is not part of manyhop's GraphBolt\. Use placem"
    ):
        gb.load_from_shared_memory("name")
    assert not hasattr(small(), "nothing")


def test_graphs_without_edges_of_tensors_without_a_dtype():
    none, indptr = torch.tensor([]), torch.zeros(6, dtype=torch.int64)
    plain = gb.fused_csc_sampling_graph(indptr, none)
    assert plain.total_num_edges == 0
    assert plain.sample_neighbors(torch.tensor([0, 4]), torch.tensor([2])).sampled_csc.indptr.tolist() == [0, 0, 0]
    typed = gb.fused_csc_sampling_graph(indptr, none, torch.tensor([0, 3, 5]), none, NODE_TYPES, EDGE_TYPES)
    assert typed.num_edges == {"a:x:a": 0, "a:y:b": 0, "b:z:a": 0}
    sub = small().sample_neighbors({"a": torch.tensor([0]), "b": none}, torch.tensor([-1]))
    assert sub.sampled_csc["b:z:a"].indices.numel() == 2
    assert sub.sampled_csc["a:y:b"].indptr.tolist() == [0]


def test_wrong_graphs():
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    make = gb.fused_csc_sampling_graph
    names = {"node_type_to_id": {"a": 0}, "edge_type_to_id": {"a:x:a": 0}}
    for arguments, options, message in (
        ((indptr.float(), indices), {}, "csc_indptr as a 1-D tensor of integers"),
        ((indptr, indices.to_sparse()), {}, "indices as a 1-D tensor of integers, got a tensor .* of layout"),
        ((indptr, indices.view(1, 2)), {}, "indices as a 1-D tensor"),
        ((indptr[:0], indices), {}, r"\[num_nodes \+ 1\]"),
        ((indptr, indices), {**names, "edge_type_to_id": {"a:x:b": 0}}, "Unrecognized node type b"),
        ((indptr, indices), {**names, "node_type_to_id": {"a": 1}}, "type ids from 0"),
        ((indptr, indices), {**names, "node_type_to_id": {"a": "0"}}, "should be int"),
        ((indptr, indices), {**names, "node_type_to_id": {1: 0}}, "should be string"),
        ((indptr, indices), {**names, "node_type_offset": torch.tensor([0, 1, 2])}, r"\|ntypes\| \+ 1"),
        ((indptr, indices), {"type_per_edge": torch.zeros(3, dtype=torch.int64)}, r"type_per_edge of shape \[2\]"),
        ((indptr, indices), {"edge_attributes": {"p": torch.ones(3)}}, r"edge attribute 'p' of shape \[2"),
        ((indptr, indices), {"node_attributes": {"t": torch.ones(3)}}, r"node attribute 't' of shape \[2"),
    ):
        with pytest.raises(GraphError, match=message):
            make(*arguments, **options)
    with pytest.raises(InputError, match="edge type as"):
        make(indptr, indices, **{**names, "edge_type_to_id": {"a:x": 0}})
    with pytest.raises(GraphError, match=r"\[0, 2\), got 5"):
        make(indptr, torch.tensor([0, 5])).topology()
    with pytest.raises(GraphError, match="rise from 0"):
        make(torch.tensor([0, 2, 1]), indices).topology()
    graph = small()
    graph.type_per_edge = torch.full((8,), 1)
    with pytest.raises(GraphError, match="lead to nodes of type 'b', got 6 that do not"):
        graph.topology()
    graph = small()
    graph.type_per_edge = torch.full((8,), 7)
    with pytest.raises(GraphError, match="below the number of edge types, 3, got 7"):
        graph.topology()
    graph = small()
    graph.node_type_offset = torch.tensor([0, 3, 6])
    with pytest.raises(GraphError, match="rise from 0 to 5"):
        graph.topology()


def test_wrong_samples():
    graph = small(p=torch.tensor([-1.0] * 8), n=torch.ones(8, dtype=torch.int64), wide=torch.ones(8, 2))
    nodes = {"a": torch.tensor([0])}
    for options, message in (
        ({"nodes": {"c": torch.tensor([0])}}, r"types \['a', 'b'\], got 'c'"),
        ({"nodes": {"a": torch.tensor([3])}}, r"type 'a' in \[0, 3\), got 3"),
        ({"nodes": {"a": torch.tensor([-1])}}, r"got -1"),
        ({"nodes": {"a": torch.tensor([0.0])}}, "1-dimensional tensor of integers"),
        ({"nodes": {"a": torch.ones(5, dtype=torch.uint8)}}, "a dtype of masks"),
        ({"fanouts": torch.tensor([1, 2])}, "expected 3, got 2"),
        ({"fanouts": torch.tensor([-2])}, "-1 or greater"),
        ({"fanouts": torch.tensor([[1]])}, "1-D tensor"),
        ({"fanouts": 1.5}, "an integer or a 1-D tensor"),
        ({"probs_name": "q"}, "Unknown edge attribute 'q'"),
        ({"probs_name": "n"}, "floating-point or boolean"),
        ({"probs_name": "wide"}, r"of shape \[8\]"),
        ({"probs_name": "p"}, "not negative"),
    ):
        with pytest.raises(InputError, match=message):
            graph.sample_neighbors(**{"nodes": nodes, "fanouts": torch.tensor([1]), **options})
    with pytest.raises(InputError, match="the same form"):
        graph.topology().spec([torch.tensor([1, 2, 3]), 2])
    with pytest.raises(InputError, match="the same form"):
        graph.topology(fused=True).spec([torch.tensor([1, 2, 3])])


def test_dgl_graphs():
    import manyhop_dgl  # noqa: F401  # makes dgl importable

    dgl = pytest.importorskip("dgl", "2.1")
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 30, (2, 150), generator=generator)
    g = dgl.graph((src, dst), num_nodes=30)
    g.ndata["x"], g.edata["w"] = torch.arange(30), torch.arange(150)
    graph = gb.from_dglgraph(g, is_homogeneous=True, include_original_edge_id=True)
    ids = graph.edge_attributes[gb.ORIGINAL_EDGE_ID]
    column = torch.repeat_interleave(graph.csc_indptr.diff())
    assert torch.equal(graph.indices, src[ids])
    assert torch.equal(column, dst[ids])
    assert torch.equal(graph.edge_attributes["w"], ids)  # data are in the order of the edges
    assert torch.equal(graph.node_attributes["x"], torch.arange(30))
    assert graph.num_nodes == 30

    hetero = dgl.heterograph(
        {("u", "likes", "i"): ([0, 1, 2, 2], [0, 0, 1, 1]), ("i", "liked", "u"): ([0, 1], [2, 2])}, idtype=torch.int32
    )
    graph = gb.from_dglgraph(hetero, include_original_edge_id=True)
    assert graph.indices.dtype == graph.csc_indptr.dtype == torch.int32
    assert graph.num_nodes == {"i": 2, "u": 3}
    assert graph.num_edges == {"i:liked:u": 2, "u:likes:i": 4}
    sub = graph.sample_neighbors({"i": torch.tensor([1, 0])}, -1)
    assert picked(sub, "u:likes:i") == [(2, 0), (2, 0), (0, 1), (1, 1)]
    assert sub.original_edge_ids["u:likes:i"].tolist() == [2, 3, 0, 1]
    hetero.nodes["u"].data["x"] = torch.ones(3)
    with pytest.raises(GraphError, match=r"node data 'x' for all node types.*got none for \['i'\]"):
        gb.from_dglgraph(hetero)


@pytest.mark.parametrize("num_types", [1, 3, 7])
@pytest.mark.parametrize("ids", [None, torch.int32, torch.int64, torch.int16])
def test_splitting_is_the_same_compiled_and_in_torch(num_types, ids):
    """Both ways of sorting a sample by type: that of CPUs, and that of GPUs."""
    from manyhop.sampling import BatchKey, NodeRequest

    generator = torch.Generator().manual_seed(num_types)
    plain = random_graph(150, 1125, ids=False)
    bounds = (
        torch.cat([torch.tensor([0, 150]), torch.randint(0, 151, (num_types - 1,), generator=generator)]).sort().values
    )
    kind_of = torch.searchsorted(bounds, torch.arange(150), right=True) - 1
    kind_of = kind_of.clamp(max=num_types - 1)
    column = torch.repeat_interleave(plain.csc_indptr.diff())
    names = {f"n{i}": i for i in range(num_types)}
    graph = gb.fused_csc_sampling_graph(
        plain.csc_indptr,
        plain.indices,
        bounds,
        kind_of[plain.indices] * num_types + kind_of[column],
        names,
        {f"n{i}:to:n{j}": i * num_types + j for i in range(num_types) for j in range(num_types)},
        edge_attributes={} if ids is None else {gb.ORIGINAL_EDGE_ID: torch.randperm(plain.total_num_edges).to(ids)},
        node_attributes={"t": torch.arange(150)},
    )
    for options in ({}, {"node_time": "t"}):
        topology = graph.topology(fused=True, **options)
        spec = topology.spec([3, 4], temporal=bool(options))
        seeds = {"_N": torch.randint(0, 150, (20,), generator=generator)}
        times = {"_N": torch.full((20,), 120)} if options else None
        sample = topology.sampler(spec).sample(NodeRequest(key=BatchKey(1, 2, 3), seeds=seeds, time_max=times))
        splitter = topology.splitter
        one, other = splitter._on_cpu(sample), splitter._on_gpu(sample)
        for name in ("node", "row", "col", "edge_id"):
            found, expected = getattr(one, name), getattr(other, name)
            assert list(found) == list(expected)
            assert all(torch.equal(found[t], expected[t]) for t in found)
        assert one.num_sampled_nodes == other.num_sampled_nodes
        assert one.num_sampled_edges == other.num_sampled_edges
        assert (one.tree is None) == (not options)
        if options:
            assert all(torch.equal(one.tree[t], other.tree[t]) for t in names)
        assert sum(x.numel() for x in one.row.values()) == sample.row[HOMOGENEOUS_EDGE].numel() > 0
        assert all(one.edge_index(t).data_ptr() == one.row[t].data_ptr() for t in one.row)  # without a copy


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ids_out_of_range_raise_where_they_are_first_read(dtype):
    """As in GraphBolt, a graph is made of its tensors without reading them, and reads them where they are."""
    indices, nodes = torch.tensor([1, 2, 3, 77], dtype=dtype), torch.tensor([3], dtype=dtype)
    graph = gb.fused_csc_sampling_graph(torch.arange(5, dtype=dtype), indices)
    for wrong in (77, -1):
        indices[3] = wrong
        with pytest.raises(GraphError, match=rf"in \[0, 4\), got {wrong}"):
            graph.sample_neighbors(nodes, 2)
        indices[3] = 2
        assert graph.sample_neighbors(nodes, 2).sampled_csc.indices.tolist() == [2]
