"""Sampling graphs: their tables for the engine, sampling for one layer, copies, files, DGL's graphs, refused ones."""

import copy
import pickle
from collections import Counter
from functools import partial

import pytest
import torch
from gb_graphs import EDGE_TYPES, NODE_TYPES, picked, random_graph, small, table, typed_edges_of

import manyhop_dgl.graphbolt as gb
from manyhop.errors import GraphError, InputError
from manyhop.graph import HOMOGENEOUS_EDGE


def test_counts_and_description():
    graph = small()
    assert graph.num_nodes == {"a": 3, "b": 2}
    assert graph.num_edges == {"a:x:a": 3, "a:y:b": 2, "b:z:a": 3}
    assert (graph.total_num_nodes, graph.total_num_edges) == (5, 8)
    text = repr(graph)
    assert text.startswith("FusedCSCSamplingGraph(csc_indptr=tensor([0, 3, 5, 6, 8, 8])")
    assert "total_num_nodes=5, num_edges={'a:x:a': 3, 'a:y:b': 2, 'b:z:a': 3}" in text
    plain = gb.fused_csc_sampling_graph(graph.csc_indptr, graph.indices)
    assert (plain.num_nodes, plain.num_edges) == (5, 8)
    assert plain.topology().graph.is_homogeneous


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_tables_by_type(dtype):
    graph = small()
    graph.csc_indptr, graph.indices = graph.csc_indptr.to(dtype), graph.indices.to(dtype)
    topology = graph.topology()
    assert topology.graph.num_nodes == {"a": 3, "b": 2}
    assert topology.graph.edge_types == (("a", "x", "a"), ("a", "y", "b"), ("b", "z", "a"))
    for edge_type in EDGE_TYPES:
        assert table(topology, edge_type) == typed_edges_of(graph, edge_type)


def test_original_edge_ids_are_those_of_samples():
    ids = torch.tensor([2, 0, 1, 2, 0, 1, 1, 0])
    graph = small(**{gb.ORIGINAL_EDGE_ID: ids})
    for edge_type in EDGE_TYPES:
        found = {i: (u, v) for u, v, i in table(graph.topology(), edge_type)}
        assert found == {int(ids[i]): (u, v) for u, v, i in typed_edges_of(graph, edge_type)}
    for fanouts in (torch.tensor([-1]), torch.tensor([-1, -1, -1]), torch.tensor([2])):
        sub = graph.sample_neighbors({"a": torch.tensor([0, 1])}, fanouts)
        for edge_type in EDGE_TYPES:
            known = {(u, v): int(ids[i]) for u, v, i in typed_edges_of(graph, edge_type)}
            got = zip(picked(sub, edge_type), sub.original_edge_ids[edge_type].tolist(), strict=True)
            assert all(known[pair] == i for pair, i in got)
    assert small(ids=False).sample_neighbors({"a": torch.tensor([0])}, torch.tensor([-1])).original_edge_ids is None


def test_probabilities_and_masks():
    weights = torch.tensor([1.0, 2.0, 0.0, 1, 1, 1, 1, 3])
    graph = small(p=weights, mask=weights > 1.5)
    node = {"a": torch.tensor([0])}

    def draw(**options):
        sub = graph.sample_neighbors(node, torch.tensor([1]), **options)
        return tuple((t, u) for t in EDGE_TYPES for u, _ in picked(sub, t))

    assert {draw(probs_name="mask") for _ in range(20)} == {(("a:x:a", 1),)}
    for fanouts in ([-1], [5, 5, 5]):
        sub = graph.sample_neighbors(node, torch.tensor(fanouts), probs_name="p")
        assert [len(picked(sub, t)) for t in EDGE_TYPES] == [1, 0, 1]
    many = graph.sample_neighbors({"b": torch.tensor([0])}, torch.tensor([400]), replace=True, probs_name="p")
    counts = Counter(u for u, _ in picked(many, "a:y:b"))
    assert counts.total() == 400
    assert 250 < counts[1] < 350
    plain = gb.fused_csc_sampling_graph(graph.csc_indptr, graph.indices, edge_attributes={"m": weights > 1.5})
    assert picked(plain.sample_neighbors(torch.tensor([0, 3]), -1)) == [(3, 0), (1, 0), (4, 0), (0, 1), (1, 1)]
    assert picked(plain.sample_neighbors(torch.tensor([0, 3]), torch.tensor([-1]), probs_name="m")) == [(1, 0), (1, 1)]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("fanouts", [[-1], [5, 5, 5], [6]])
def test_only_earlier_edges_and_nodes(dtype, fanouts):
    graph = small()
    sample = graph.temporal_sample_neighbors
    graph.add_node_attribute("born", torch.tensor([10, 20, 30, 5, 40]).to(dtype))
    graph.add_edge_attribute("made", torch.tensor([7, 21, 3, 9, 22, 31, 8, 6]).to(dtype))
    born, made = graph.node_attributes["born"], graph.edge_attributes["made"]
    for kind, name, other in (("node", "born", None), ("edge", None, "made"), ("both", "born", "made")):
        for now in (5, 6, 20, 21, 22, 100):
            nodes = {"a": torch.tensor([0, 1]), "b": torch.tensor([0])}
            times = {t: torch.full((ids.numel(),), now, dtype=dtype) for t, ids in nodes.items()}
            sub = sample(
                nodes, times, torch.tensor(fanouts), node_timestamp_attr_name=name, edge_timestamp_attr_name=other
            )
            for edge_type in EDGE_TYPES:
                columns = nodes[edge_type[-1]].tolist()
                begin = 0 if edge_type[0] == "a" else 3
                expected = sorted(
                    (u, columns.index(v))
                    for u, v, i in typed_edges_of(graph, edge_type)
                    if v in columns and (kind == "edge" or born[u + begin] < now) and (kind == "node" or made[i] < now)
                )
                assert sorted(picked(sub, edge_type)) == expected
    graph.add_edge_attribute("even", torch.arange(8) % 2 == 0)
    sub = sample(nodes, times, torch.tensor(fanouts), probs_name="even", edge_timestamp_attr_name="made")
    for edge_type in EDGE_TYPES:
        columns = nodes[edge_type[-1]].tolist()
        expected = sorted(
            (u, columns.index(v)) for u, v, i in typed_edges_of(graph, edge_type) if v in columns and i % 2 == 0
        )
        assert sorted(picked(sub, edge_type)) == expected
    plain = sample(nodes, times, torch.tensor(fanouts))
    assert sum(len(picked(plain, t)) for t in EDGE_TYPES) == 7
    with pytest.raises(InputError, match="a time for each"):
        sample(nodes, {"a": times["a"]}, torch.tensor([1]), node_timestamp_attr_name="born")


def test_negative_destinations():
    graph = small()
    pairs = torch.tensor([[0, 1], [2, 0]])
    rows = graph.sample_negative_edges_uniform("a:y:b", pairs.int(), 2)
    assert rows.dtype == torch.int32
    assert torch.equal(rows[:2], pairs.int())
    assert rows[2:, 0].tolist() == [0, 0, 2, 2]
    plain = gb.fused_csc_sampling_graph(graph.csc_indptr, graph.indices)
    assert plain.sample_negative_edges_uniform(None, pairs, 300)[2:, 1].unique().tolist() == [0, 1, 2, 3, 4]
    for arguments in (("a:y:c", pairs, 1), ("a:y:b", pairs, 0), ("a:y:b", pairs.view(-1, 1), 1)):
        with pytest.raises(InputError):
            graph.sample_negative_edges_uniform(*arguments)


def test_tables_follow_changes():
    graph = small(p=torch.ones(8))
    first = graph.topology(probs_name="p")
    assert graph.topology(probs_name="p") is first
    graph.edge_attributes["p"][0] = 5
    second = graph.topology(probs_name="p")
    assert second is not first
    assert second.graph.csc["b", "z", "a"].weight[0] == 5
    assert second.graph.csc["b", "z", "a"].row.data_ptr() == first.graph.csc["b", "z", "a"].row.data_ptr()  # shared
    graph.indices = graph.indices.clone()
    graph.indices[1] = 2
    assert table(graph.topology(), "a:x:a") == typed_edges_of(graph, "a:x:a") != table(first, "a:x:a")
    graph.edge_attributes = {"q": torch.rand(8)}
    assert graph.topology(probs_name="q").weighted
    for missing in (partial(graph.topology, probs_name="p"), partial(graph.edge_attribute, "p")):
        with pytest.raises(GraphError, match="Unknown edge attribute 'p'"):
            missing()
    with pytest.raises(GraphError, match=r"Unknown node attribute 'p': expected one of \[\]"):
        graph.node_attribute("p")
    assert graph.edge_attribute(None) is None


def test_copies():
    graph = small(p=torch.rand(8))
    graph.topology()
    for other in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph)), graph.to("cpu")):
        assert other is not graph
        assert repr(other) == repr(graph)
        assert all(table(other.topology(), t) == typed_edges_of(graph, t) for t in EDGE_TYPES)
    if not torch.cuda.is_available():
        assert not graph.is_pinned()
        with pytest.raises(InputError, match="CUDA device"):
            graph.pin_memory_()


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cpu", "pinned", "cuda"])
def test_samples_on_a_gpu_are_those_of_the_cpu(where):
    graph = small(p=torch.rand(8), mask=torch.rand(8) > 0.3, **{gb.ORIGINAL_EDGE_ID: torch.arange(8, 16)})
    nodes = {"a": torch.tensor([2, 0, 0]), "b": torch.tensor([1])}
    there = graph.pin_memory_() if where == "cpu" else graph.to(where)
    on_gpu = {name: ids.cuda() for name, ids in nodes.items()}
    calls = [
        lambda g, seeds, fanouts=fanouts, name=name: g.sample_neighbors(seeds, torch.tensor(fanouts), probs_name=name)
        for fanouts in ([1], [2], [-1], [1, 2, 1])
        for name in (None, "p", "mask")
    ]
    for call in calls:
        torch.manual_seed(0)
        expected = call(graph, nodes)
        torch.manual_seed(0)
        got = call(there, on_gpu)
        assert all(got.sampled_csc[t].indices.is_cuda for t in EDGE_TYPES)
        got.to("cpu")  # in place
        for t in EDGE_TYPES:
            assert picked(got, t) == picked(expected, t)
            assert torch.equal(got.original_edge_ids[t], expected.original_edge_ids[t])


def test_saved_graphs_load_without_running_code(tmp_path):
    graph = small(p=torch.rand(8))
    torch.save(graph, tmp_path / "graph.pt")
    assert repr(torch.load(tmp_path / "graph.pt", weights_only=True)) == repr(graph)


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
    for name, tensor, message in (
        ("type_per_edge", torch.full((8,), 1), "lead to nodes of type 'b', got 6 that do not"),
        ("type_per_edge", torch.full((8,), 7), "below the number of edge types, 3, got 7"),
        ("node_type_offset", torch.tensor([0, 3, 6]), "rise from 0 to 5"),
    ):
        graph = small()
        setattr(graph, name, tensor)
        with pytest.raises(GraphError, match=message):
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
        *found, counts, edge_counts = splitter._on_cpu(sample)
        *expected, of_nodes, of_edges = splitter._on_gpu(sample)
        assert (counts, edge_counts) == (of_nodes, of_edges)
        for mine, theirs in zip(found, expected, strict=True):  # the trees come last
            assert (mine is None) == (theirs is None) == (mine is found[4] and not options)
            assert len(mine or ()) == len(theirs or ())
            assert all(map(torch.equal, mine or (), theirs or ()))
        one = topology.by_type(sample)
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
