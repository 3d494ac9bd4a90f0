"""Sampling graphs: their tables for the engine, sampling for one layer, copies, shared memory, DGL's graphs."""

import copy
import itertools
import pickle
from collections import Counter
from functools import partial

import pytest
import torch
from gb_graphs import EDGE_TYPES, NODE_TYPES, picked, small, table, typed_edges_of

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


def test_layer_sampling_shares_neighbours():
    graph = gb.fused_csc_sampling_graph(torch.arange(0, 5000, 40)[:101], torch.arange(40).repeat(100))
    nodes = torch.arange(100)
    near = graph.sample_layer_neighbors(nodes, torch.tensor([5])).sampled_csc
    assert near.indptr.tolist() == list(range(0, 505, 5))
    assert near.indices.unique().numel() == 5  # all nodes have the same neighbours, and agree on five of them
    assert graph.sample_neighbors(nodes, torch.tensor([5])).sampled_csc.indices.unique().numel() == 40
    typed = small().sample_layer_neighbors({"a": torch.tensor([0])}, torch.tensor([2]))
    assert sum(len(picked(typed, t)) for t in EDGE_TYPES) == 2


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


def test_samplers_are_made_once():
    graph = small()
    topology = graph.topology_for([2, torch.tensor([3])])
    assert topology.fused
    assert topology is graph.topology_for([5], None)
    spec = topology.spec([2, 3])
    assert spec.fanouts == {HOMOGENEOUS_EDGE: (3, 2)}  # the last fanout is that of the seeds
    assert spec.expand == "all"
    assert topology.sampler(spec) is topology.sampler(topology.spec([2, 3]))
    assert topology.sampler(topology.spec([2, 3], replace=True)) is not topology.sampler(spec)
    by_type = graph.topology_for([torch.tensor([1, 2, 3]), torch.tensor([-1])])
    assert not by_type.fused
    assert by_type.spec([torch.tensor([1, 2, 3]), -1]).fanouts["a", "y", "b"] == (-1, 2)


def test_fused_samples_by_type_are_in_order():
    graph = small()
    topology = graph.topology_for([2, 2, 2])
    seeds = topology.seeds({"b": torch.tensor([0]), "a": torch.tensor([2, 0])})
    from manyhop.sampling import BatchKey, NodeRequest

    request = NodeRequest(key=BatchKey(0, 0, 0), seeds=seeds)
    mixed = topology.sampler(topology.spec([2, 2, 2])).sample(request)
    typed = topology.by_type(mixed)
    assert typed.node["a"][:2].tolist() == [2, 0]
    assert typed.node["b"][:1].tolist() == [0]
    for name in NODE_TYPES:
        assert sum(typed.num_sampled_nodes[name]) == typed.node[name].numel()
    fused = mixed.node["_N"]
    found = Counter()
    for t in topology.edge_types:
        begin = {"a": 0, "b": 3}
        src, dst = typed.node[t[0]][typed.row[t]] + begin[t[0]], typed.node[t[2]][typed.col[t]] + begin[t[2]]
        found.update(zip(src.tolist(), dst.tolist(), typed.edge_id[t].tolist(), strict=True))
        bounds = [0, *itertools.accumulate(typed.num_sampled_edges[t])]
        nodes = [*itertools.accumulate(typed.num_sampled_nodes[t[2]])]
        for hop, (low, high) in enumerate(itertools.pairwise(bounds)):
            col = typed.col[t][low:high]
            assert torch.equal(col, col.sort().values)
            assert (col < nodes[hop]).all()
    row, col, ids = mixed.row[HOMOGENEOUS_EDGE], mixed.col[HOMOGENEOUS_EDGE], mixed.edge_id[HOMOGENEOUS_EDGE]
    assert found == Counter(zip(fused[row].tolist(), fused[col].tolist(), ids.tolist(), strict=True))


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
