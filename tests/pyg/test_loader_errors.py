"""Bad input is refused when a loader is made, with what was expected, what came, and what to do."""

import math
from types import SimpleNamespace
from typing import Any

import gpu_stand_ins
import numpy as np
import pytest
import torch
from helpers_pyg import name_of
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import NumNeighbors

from manyhop.errors import FeatureError, GraphError, InputError
from manyhop_pyg import (
    FeatureStore,
    GraphStore,
    HGTSampler,
    LinkLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
)

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
CASES: dict[tuple[type, str], list[tuple[dict[str, Any], str]]] = {
    (NeighborLoader, "data"): [
        (dict(input_nodes=torch.tensor([0, 60])), r"in \[0, 60\), got 60"),
        (dict(input_nodes=torch.tensor([-1])), "got -1"),
        (dict(input_nodes=torch.zeros(59, dtype=torch.bool)), r"shape \[60\], got \[59\]"),
        (dict(input_nodes=torch.zeros(3)), "integers"),
        (dict(input_nodes=torch.zeros(3, 3).long()), "1-dimensional"),
        (
            dict(input_nodes=torch.ones(60, dtype=torch.uint8)),
            r"got torch.uint8, a dtype of masks.*mask.nonzero\(\).*ids.long\(\)",
        ),
        (dict(input_nodes=np.ones(60, dtype=np.uint8)), "got torch.uint8, a dtype of masks"),
        (dict(input_nodes=("paper", torch.tensor([0]))), "no types"),
        (dict(input_nodes="paper"), "no types"),
        (dict(input_nodes=["a", "b", "c"]), "integers|tensor"),
        (dict(num_neighbors=[2, -2]), "-2"),
        (dict(num_neighbors=5), r"\[10\]"),
        (dict(num_neighbors="55"), "list"),
        (dict(num_neighbors=[2.5]), "integers"),
        (dict(num_neighbors=[True]), "integers"),
        (dict(num_neighbors={WRITES: [2]}), "as a list"),
        (dict(subgraph_type="indirect"), "subgraph_type"),
        (dict(temporal_strategy="first"), "temporal_strategy"),
        (dict(weight_attr="nothing"), "'nothing', got none"),
        (dict(weight_attr={("_N", "_E", "_N"): "edge_weight"}), "weight_attr as the name of an attribute, got {"),
        (dict(time_attr=["time"]), r"time_attr as the name of an attribute, got \['time'\]"),
        (dict(weight_attr="x"), "got one of nodes"),
        (dict(time_attr="nothing"), "'nothing' of nodes or of edges"),
        (dict(time_attr="name"), "one entry per node"),
        (dict(time_attr="x"), "integers or floats"),
        (dict(input_time=torch.zeros(60)), "conflicting"),
        (dict(time_attr="time", input_time=torch.zeros(3)), r"shape \[60\]"),
        (dict(time_attr="time", input_time=torch.full((60,), torch.nan)), "NaN"),
        (dict(time_attr="time", weight_attr="edge_weight", temporal_strategy="last"), "ignores weights"),
        (dict(time_window=3), "time_attr"),
        (dict(time_attr="time", time_window=-1), "time_window in the unit of the times, at least 0, got -1"),
        (dict(is_sorted=True), "not in order"),
        (dict(batch_size=0), "batch_size to be an integer of at least 1, got 0"),
        (dict(batch_size="8"), "batch_size to be an integer of at least 1, got '8'"),
        (dict(batch_size=2.0), "batch_size to be an integer of at least 1, got 2.0"),
        (dict(num_workers="2"), "num_workers to be an integer of at least 0, got '2'"),
        (dict(num_workers=True), "num_workers to be an integer"),
        (dict(num_workers=1, prefetch_factor=2.5), "prefetch_factor to be an integer of at least 1, got 2.5"),
        (dict(num_workers=1, timeout="5"), "timeout in seconds, at least 0, got '5'"),
        (dict(worker_init_fn=3), "worker_init_fn to be a function, got 3"),
        (dict(generator=3), "generator to be a torch.Generator, got 3"),
        (dict(seed=True), "seed to be an integer, got True"),
        (dict(seed=1.5), "seed to be an integer, got 1.5"),
        (dict(transform=3), "transform to be a function"),
        (dict(transform_sampler_output=3), "transform_sampler_output to be a function"),
        (dict(distributed=True, rank_timeout="5"), "rank_timeout in seconds, more than 0, got '5'"),
        (dict(distributed=True, rank_timeout=math.inf), "rank_timeout in seconds, at most 100000000, got inf"),
        (dict(sampler=5), "sampler to be iterable, got 5"),
        (dict(timeout=3), "timeout=0"),
        (dict(batch_size=None), "batch_size"),
        (dict(collate_fn=list), "collate_fn"),
        (dict(dataset=[1, 2]), "no dataset"),
        (dict(custom_cls=Data), "custom_cls"),
        (dict(input_id=[1, 2]), r"input_id of shape \[60\], got \[2\]"),
        (dict(input_id="abc"), "input_id as a tensor or an array of numbers, got a str"),
        (dict(time_attr="time", input_time=torch.arange(60), time_window="3"), "time_window in the unit of the times"),
    ],
    (NeighborLoader, "hetero"): [
        (dict(input_nodes=None), "name the type"),
        (dict(input_nodes="papers"), "Unknown node type 'papers'"),
        (dict(input_nodes=("papers", None)), "Unknown node type 'papers'"),
        (dict(input_nodes=("paper", torch.tensor([40]))), "got 40"),
        (dict(input_nodes=torch.tensor([1])), "'type'"),
        (dict(input_nodes=("paper", None, 3)), "'type'"),
        (dict(num_neighbors={WRITES: [2]}), "every edge type, got none for"),
        (dict(num_neighbors=NumNeighbors({("a", "b", "c"): [2]}, default=[1])), "exist in the graph"),
        (
            dict(num_neighbors=NumNeighbors({WRITES: [2, 2]}, default=[1])),
            "hops must be the same across all edge types",
        ),
        (dict(num_neighbors={"paper": [2]}), r"num_neighbors by edge type, such as .*, got the keys \['paper'\]"),
        (
            dict(num_neighbors={("author", "paper", 3): [2]}),
            r"num_neighbors by edge type, such as .* got the keys \[\('author'",
        ),
    ],
    (LinkNeighborLoader, "data"): [
        (dict(edge_label=torch.zeros(299)), r"edge_label as a tensor of shape \[300\]"),
        (dict(edge_label_index=torch.tensor([[0], [60]])), "got 60"),
        (dict(edge_label_index=torch.tensor([0, 1])), r"\[2, num_edges\]"),
        (dict(edge_label_index=(WRITES, None)), "no types"),
        (dict(edge_label=torch.zeros(300), neg_sampling="triplet"), "undefined"),
        (dict(edge_label_time=torch.zeros(300)), "conflicting"),
        (dict(time_attr="time"), "conflicting"),
        (dict(time_attr="time", edge_label_time=torch.zeros(3)), "edge_label_time"),
        (dict(neg_sampling=dict(mode="triplet", amount=0.5)), "integer"),
        (dict(neg_sampling=NegativeSampling("binary", 1, dst_weight=torch.ones(3))), "weight"),
        (dict(neg_sampling=NegativeSampling("triplet", 1, dst_weight="abc")), "dst_weight .* as a tensor"),
        (dict(exclude_true_negatives=True), "pass neg_sampling"),
        (dict(neg_sampling="x"), "neg_sampling as 'binary', 'triplet', NegativeSampling or GivenNegatives, got 'x'"),
        (dict(neg_sampling=3), "neg_sampling as .* got 3"),
        (dict(neg_sampling_ratio="1"), "neg_sampling_ratio in negatives per edge, at least 0, got '1'"),
        (dict(neg_sampling_ratio=-1), "neg_sampling_ratio in negatives per edge"),
        (dict(neg_sampling_ratio=1.0, neg_sampling="triplet"), "either neg_sampling or neg_sampling_ratio, got both"),
        (dict(neg_sampling="binary", exclude_true_negatives="no"), "exclude_true_negatives to be True or False"),
        ({"exclude_seed_edges": "reverse"}, "Expected exclude_seed_edges to be None or one of"),
        ({"reverse_eids": torch.arange(300)}, "reverse_eids is for exclude_seed_edges='reverse_id', got None"),
        ({"exclude_seed_edges": "self", "reverse_etypes": {}}, "reverse_etypes is for exclude_seed_edges='reverse_typ"),
        ({"exclude_seed_edges": "reverse_types", "reverse_etypes": {}}, "has none. Use 'reverse_id'"),
        ({"exclude_seed_edges": "reverse_id", "reverse_eids": torch.arange(9)}, r"of shape \[300\], one per edge, got"),
        ({"exclude_seed_edges": "reverse_id", "reverse_eids": torch.arange(300) - 1}, r"in \[0, 300\), got -1"),
        ({"exclude_seed_edges": "reverse_id", "reverse_eids": [1]}, r"shape \[300\], one per edge, got \[1\]"),
    ],
    (LinkNeighborLoader, "hetero"): [
        (dict(edge_label_index=None), "name the type"),
        (dict(edge_label_index=torch.tensor([[0], [0]])), "name the type"),
        (dict(edge_label_index=("author", "likes", "paper")), "Unknown edge type"),
        (dict(edge_label_index=(("author", "writes", "papers"), torch.tensor([[0], [0]]))), "papers"),
        (dict(edge_label_index=(WRITES, torch.tensor([[30], [0]]))), "got 30"),
        (dict(edge_label_index=(WRITES, None, 3)), "3 entries"),
        ({"exclude_seed_edges": "reverse_id"}, "Use 'reverse_types'"),
        ({"exclude_seed_edges": "reverse_types"}, "needs reverse_etypes=.*got None"),
        (
            {"exclude_seed_edges": "reverse_types", "reverse_etypes": {CITES: CITES}},
            "needs reverse_etypes=.*'cites'",
        ),
        (
            {"exclude_seed_edges": "reverse_types", "reverse_etypes": {WRITES: ("a", "b", "c")}},
            "Unknown edge type",
        ),
        (
            {"exclude_seed_edges": "reverse_types", "reverse_etypes": {WRITES: CITES}},
            "to lead from 'paper' to 'author'",
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "source", "arguments", "message"),
    [(*of, *case) for of, cases in CASES.items() for case in cases],
    ids=name_of,
)
def test_arguments(request, kind, source, arguments, message):
    typed = (
        {} if source == "data" else {"input_nodes": "paper"} if kind is NeighborLoader else {"edge_label_index": WRITES}
    )
    with pytest.raises(ValueError, match=message):
        kind(request.getfixturevalue(source), **{"num_neighbors": [2]} | typed | arguments)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32], ids=str)
def test_samplers_take_ids_and_no_masks(data, hetero, dtype):
    given = torch.ones(60, dtype=dtype)
    sampler = NeighborSampler(data, [2])
    for sample in (
        lambda: sampler.sample_from_nodes(NodeSamplerInput(None, given)),
        lambda: sampler.sample_from_edges(EdgeSamplerInput(None, given, given)),
        lambda: HGTSampler(hetero, [2]).sample_from_nodes(NodeSamplerInput(None, given[:9], input_type="paper")),
    ):
        with pytest.raises(InputError, match=f"as (ids|a 1-dimensional tensor of integers), got {dtype}"):
            sample()


@pytest.mark.filterwarnings("ignore:There exist type names:UserWarning")  # of PyG
def test_fanouts_of_types_with_double_underscores():
    one, two = ("a__b", "to", "c"), ("a", "b__to", "c")
    data = HeteroData()
    for node_type in ("a", "a__b", "c"):
        data[node_type].x = torch.zeros(6, 1)
    data[one].edge_index = torch.arange(6).repeat(2, 1)
    data["c", "to", "a"].edge_index = torch.arange(6).repeat(2, 1)
    batch = next(iter(NeighborLoader(data, NumNeighbors({one: [1]}, default=[0]), "c", batch_size=6)))
    assert [batch[t].edge_index.size(1) for t in data.edge_types] == [6, 0]
    data[two].edge_index = torch.arange(6).repeat(2, 1)
    with pytest.raises(
        InputError, match=r"as a list .* joined names are the same.*\('a__b', 'to', 'c'\) and \('a', 'b_"
    ):
        NeighborLoader(data, NumNeighbors({one: [1]}, default=[0]), "c")
    batch = next(iter(NeighborLoader(data, [1], "c", batch_size=6)))
    assert [batch[t].edge_index.size(1) for t in (one, two)] == [6, 6]


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_weights(data, bad):
    data.edge_weight[7] = bad
    with pytest.raises(GraphError, match="edge 7"):
        NeighborLoader(data, [2], weight_attr="edge_weight")


def test_times_on_both_levels(hetero):
    hetero["paper"].time = torch.arange(40)
    hetero[WRITES].time = torch.arange(120)
    with pytest.raises(GraphError, match="either node times or edge times"):
        NeighborLoader(hetero, [2], "paper", time_attr="time")


def test_typed_seeds_without_times(hetero):
    hetero["author"].time = torch.arange(30)
    with pytest.raises(InputError, match="pass input_time"):
        next(iter(NeighborLoader(hetero, [2], "paper", time_attr="time")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(x=torch.zeros(59, 4), num_nodes=60), "'x' to have one row per node"),
        (dict(y=torch.zeros(59)), "'y' to have one row per node"),
        (dict(train_mask=torch.zeros(61, dtype=torch.bool)), "'train_mask'"),
        (dict(edge_attr=torch.zeros(299, 1)), r"'edge_attr' to have one row per edge \(300\), got 299"),
        (dict(edge_weight=torch.zeros(301)), "'edge_weight'"),
    ],
)
def test_features_of_wrong_length(data, change, message):
    for name, value in change.items():
        data[name] = value
    with pytest.raises(FeatureError, match=message):
        NeighborLoader(data, [2])


def test_typed_features_of_wrong_length(hetero):
    hetero["paper"].y = torch.zeros(39)
    with pytest.raises(FeatureError, match="'y' of 'paper'"):
        NeighborLoader(hetero, [2], "paper")


@pytest.mark.parametrize(
    "attributes",
    [
        dict(y=torch.tensor([1])),
        dict(y=torch.zeros(12)),
        dict(token_mask=torch.ones(512, dtype=torch.bool)),
        dict(train_mask=torch.ones(10, 60, dtype=torch.bool)),
        dict(edge_attr=torch.randn(1, 4), edge_weight=torch.ones(150)),
    ],
)
def test_attributes_of_neither_nodes_nor_edges_are_passed_on_whole(data, hetero, attributes):
    for name, value in attributes.items():
        data[name] = value
    batches = [
        next(iter(NeighborLoader(data, [2], batch_size=3, num_workers=n, pad=p))) for n, p in ((0, None), (1, "auto"))
    ]
    for name, value in attributes.items():
        assert all(torch.equal(batch[name], value) for batch in batches)
        (hetero[WRITES] if name.startswith("edge") else hetero["paper"])[name] = value
    typed = next(iter(NeighborLoader(hetero, [2], "paper", batch_size=3)))
    for name, value in attributes.items():
        assert torch.equal((typed[WRITES] if name.startswith("edge") else typed["paper"])[name], value)


def test_a_label_for_each_graph():
    def graph(n):
        return Data(x=torch.randn(n, 2), edge_index=torch.randint(n, (2, 60)), y=torch.tensor([n]))

    batch = next(iter(NeighborLoader(Batch.from_data_list([graph(20), graph(30)]), [2], batch_size=4)))
    assert batch.y.tolist() == [20, 30]
    assert batch.x.size(0) == batch.n_id.numel()


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        (torch.tensor([[0], [60]]), r"\[0, 60\), got 60"),
        (torch.tensor([[0.0], [1.0]]), "float32"),
        (torch.tensor([0, 1]), r"\[2, num_edges\]"),
        ([[0], [1]], "list"),
    ],
)
def test_edges(edge_index, message):
    with pytest.raises(GraphError, match=message):
        NeighborLoader(Data(x=torch.zeros(60, 1), edge_index=edge_index), [2])


def test_typed_edges(hetero):
    hetero["paper", "to", "venue"].edge_attr = torch.zeros(3)
    with pytest.raises(GraphError, match="no edge_index"):
        NeighborLoader(hetero, [2], "paper")
    data = HeteroData()
    data["a"].x = torch.zeros(3, 1)
    data["a", "to", "b"].edge_index = torch.tensor([[0], [0]])
    with pytest.raises(GraphError, match="'b'"):
        NeighborLoader(data, [2], "a")


def test_things_that_are_no_data():
    with pytest.raises(InputError, match="HeteroData"):
        NeighborLoader({"x": 1}, [2])
    with pytest.raises(InputError, match="sample_from_nodes"):
        NodeLoader(Data(x=torch.zeros(3, 1)), node_sampler=3)


def test_samplers_name_what_they_need(data):
    sampler = NeighborSampler(data, [2], time_attr="edge_time")
    with pytest.raises(InputError, match="Expected time_attr with time_window=3, got None"):
        NeighborLoader(data, [2], time_window=3)
    with pytest.raises(InputError, match="pass time_attr"):
        NodeLoader(data, NeighborSampler(data, [2]), input_time=torch.zeros(60))
    with pytest.raises(InputError, match="sample_direction"):
        NeighborSampler(data, [2], sample_direction="up")
    with pytest.raises(InputError, match="temporal_strategy"):
        sampler.temporal_strategy = "first"


@pytest.mark.parametrize(("num_workers", "there"), [(0, False), (2, False), (0, True)])
def test_times_that_come_with_each_call(data, on_gpu, monkeypatch, num_workers, there):
    memory = SimpleNamespace(**vars(gpu_stand_ins.MEMORY) | {"cache_bytes": 1 << 20})
    monkeypatch.setattr("manyhop.loading.gpu.runtime.decide_memory", lambda *_, **__: memory)
    on_gpu(there)
    sampler = NeighborSampler(data, [2], time_attr="edge_time")
    loaders = [NodeLoader(data, sampler, num_workers=num_workers), LinkLoader(data, sampler, num_workers=num_workers)]
    for loader, name in zip(loaders, ("input_time", "edge_label_time"), strict=True):
        with pytest.raises(InputError, match=f"a time for every seed.* pass {name}"):
            list(loader)
    seeds, time = torch.arange(5), torch.full((5,), 9)
    out = sampler.sample_from_nodes(NodeSamplerInput(seeds, seeds, time))
    assert torch.equal(loaders[0].filter_fn(out).edge_index, torch.stack([out.row, out.col]))
    assert bool((data.edge_time[loaders[0].batch(seeds, input_time=time).e_id] <= 9).all())
    pairs = data.edge_index[:, :5]
    assert bool((data.edge_time[loaders[1].batch(pairs, edge_label_time=time).e_id] <= 9).all())


@pytest.mark.parametrize("empty", [torch.tensor([]), [], np.array([])], ids=["tensor", "list", "array"])
def test_no_seeds_of_any_dtype(data, hetero, empty):
    assert list(NeighborLoader(data, [2], empty)) == []
    assert list(NeighborLoader(hetero, [2], ("paper", empty))) == []
    assert NeighborLoader(data, [2]).batch(empty).num_nodes == 0
    assert list(LinkNeighborLoader(data, [2], torch.empty(2, 0))) == []
    out = NeighborSampler(data, [2]).sample_from_nodes(NodeSamplerInput(None, torch.as_tensor(empty)))
    assert out.node.numel() == 0


def test_positions_past_the_inputs(data):
    loader = NeighborLoader(data, [2], data.train_mask, batch_size=2, sampler=[0, 10**6])
    with pytest.raises(InputError, match=r"positions of inputs in \[0, \d+\), got 1000000"):
        list(loader)


@pytest.mark.parametrize("as_stores", [False, True])
def test_times_in_a_graph_of_as_many_nodes_as_edges(as_stores):
    times = {"time": torch.arange(5), "edge_time": torch.arange(5), "node_time": torch.arange(5) + 10}
    data = Data(x=torch.rand(5, 2), edge_index=torch.stack([torch.arange(5), torch.arange(5).roll(1)]), **times)
    if as_stores:
        store = FeatureStore()
        for name, value in times.items():
            store.put_tensor(value, group_name=None, attr_name=name, index=None)
        edges = GraphStore()
        edges.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(5, 5))
        data = store, edges
    assert NeighborSampler(data, [1], time_attr="node_time").node_time.equal(times["node_time"])
    sampler = NeighborSampler(data, [1], time_attr="edge_time")
    assert sampler.node_time is None
    assert sampler.edge_time.equal(times["edge_time"])
    with pytest.raises(InputError, match=r"got 'time' with 5 entries .* as many nodes as edges.*'edge_time'"):
        NeighborSampler(data, [1], time_attr="time")


def test_a_sample_without_what_batches_are_labelled_with():
    data = Data(x=torch.rand(6, 3), edge_index=torch.randint(0, 6, (2, 12)))
    nodes, links = NeighborLoader(data, [2], batch_size=3), LinkNeighborLoader(data, [2], batch_size=3)
    seeds = torch.tensor([1, 2])
    around_nodes = nodes.node_sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
    with pytest.raises(InputError, match="an input_id for each seed, got None"):
        nodes.filter_fn(around_nodes)
    around_nodes.metadata = (seeds, None)
    assert torch.equal(nodes.filter_fn(around_nodes).input_id, seeds)
    with pytest.raises(InputError, match="metadata of a sample for LinkNeighborLoader as a tuple of 4"):
        links.filter_fn(around_nodes)
    around_nodes.metadata = None
    with pytest.raises(InputError, match="tuple of 2 entries, got None"):
        nodes.filter_fn(around_nodes)
    around_edges = links.link_sampler.sample_from_edges(EdgeSamplerInput(None, seeds, seeds))
    assert "input_id" not in links.filter_fn(around_edges)  # as in PyG
