"""Exact samples of contract version 2, in every mode: whoever changes one must raise ``CONTRACT_VERSION``.

``python tests/sampling/test_reference_golden.py`` writes the file anew, after such a change.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from manyhop.graph import EdgeInput, build_graph
from manyhop.loading.pipeline import BatchPlan
from manyhop.sampling import (
    CONTRACT_VERSION,
    BatchKey,
    CPUHGTSampler,
    CPULaborSampler,
    CPUSampler,
    EdgeRequest,
    EdgeSampler,
    HGTSpec,
    LaborSpec,
    NegativeSpec,
    NeighborSpec,
    NodeRequest,
    ReferenceHGTSampler,
    ReferenceLaborSampler,
    ReferenceSampler,
)
from manyhop.sampling.random import below, draw

FILE = Path(__file__).with_name("golden_contract_v2.json")
KEY = BatchKey(2026, 3, 14)
WATCHES, WATCHED, KNOWS = ("user", "watches", "film"), ("film", "watched", "user"), ("user", "knows", "user")
NUM_NODES = {"user": 16, "film": 8}
SEEDS = {"user": torch.tensor([3, 12, 3, 7])}
TIMES = {"user": torch.tensor([9, 4, 6, 2])}


def make_graph(*, weights=False, dwarfed=False, edge_times=False, node_times=False):
    i = torch.arange(96)
    user, film, friend = (
        torch.from_numpy(below(draw(np.uint64(n), i.numpy()), m)) for n, m in ((1, 16), (2, 8), (3, 16))
    )
    weight = torch.where(i % 4 == 0, 1e9, i % 5) if dwarfed else (i % 5).double() / 4
    extra = {"weight": weight} if weights else {}
    extra |= {"time": (11 * i) % 10} if edge_times else {}
    edges = {
        KNOWS: EdgeInput(row=friend, col=user, **extra),
        WATCHES: EdgeInput(row=user, col=film, **extra),
        WATCHED: EdgeInput(row=film, col=user),
    }
    node_time = {"user": torch.arange(16) * 5 % 10, "film": torch.arange(8)} if node_times else None
    return build_graph(NUM_NODES, edges, node_time=node_time)


def as_lists(x):
    """A result as JSON: only what has a length, edge types as strings."""
    if isinstance(x, torch.Tensor):
        return x.tolist()
    if isinstance(x, dict):
        return {k if isinstance(k, str) else k[1]: as_lists(v) for k, v in x.items()}
    if not hasattr(x, "__dataclass_fields__"):
        return x
    found = {k: getattr(x, k) for k in x.__dataclass_fields__}
    return {k: as_lists(v) for k, v in found.items() if k != "edge_weight" or v is not None}


def neighbors(backend, k=(3, 2), *, graph=None, times=None, window=None, exclude=None, **spec):
    graph = make_graph() if graph is None else graph
    sampler = backend(graph, NeighborSpec(fanouts=dict.fromkeys(graph.edge_types, k), **spec))
    return sampler.sample(NodeRequest(key=KEY, seeds=SEEDS, time_max=times, time_min=window, exclude=exclude))


def labor(backend, k=(3, 2), **spec):
    graph = make_graph(weights=spec.get("weighted", False))
    sampler = LABOR[backend](graph, LaborSpec(fanouts=dict.fromkeys(graph.edge_types, k), **spec))
    return sampler.sample(NodeRequest(key=KEY, seeds=SEEDS))


def edges(backend, mode, amount, *, exclude_true=False, temporal=None, src_weight=None, dst_weight=None):
    graph = make_graph(node_times=temporal is not None)
    disjoint = temporal is not None
    spec = NeighborSpec(fanouts=dict.fromkeys(graph.edge_types, (2,)), disjoint=disjoint, temporal=temporal)
    negatives = None if mode is None else NegativeSpec(mode=mode, amount=amount, exclude_true=exclude_true)
    weights = {"src_weight": src_weight, "dst_weight": dst_weight}
    sampler = EdgeSampler(backend(graph, spec), graph, WATCHES, negatives=negatives, disjoint=disjoint, **weights)
    time = torch.tensor([4, 9, 1]) if temporal else None
    src, dst = torch.tensor([5, 1, 5]), torch.tensor([2, 0, 7])
    return sampler.sample(EdgeRequest(key=KEY, edge_type=WATCHES, src=src, dst=dst, time_max=time))


def hgt(backend, n, seeds=SEEDS, **spec):
    sampler = HGT[backend](make_graph(), HGTSpec(num_samples=dict.fromkeys(NUM_NODES, (n, n)), **spec))
    return sampler.sample(NodeRequest(key=KEY, seeds=seeds))


def shuffled(n):
    plan = BatchPlan(n, 7, shuffle=True, seed=KEY.seed)
    return [plan.indices(KEY.epoch, b).tolist() for b in range(2)]


RAMP = torch.arange(16.0)
IN_TIME = {"disjoint": True, "times": TIMES}
HGT = {ReferenceSampler: ReferenceHGTSampler, CPUSampler: CPUHGTSampler}
LABOR = {ReferenceSampler: ReferenceLaborSampler, CPUSampler: CPULaborSampler}
REVERSE = {KNOWS: KNOWS, WATCHES: WATCHED, WATCHED: WATCHES}
CASES = {
    "uniform": lambda backend: neighbors(backend),
    "replace": lambda backend: neighbors(backend, replace=True),
    "all neighbours": lambda backend: neighbors(backend, (-1,)),
    "expand all": lambda backend: neighbors(backend, (2, 1), expand="all"),
    "disjoint": lambda backend: neighbors(backend, disjoint=True),
    "weighted": lambda backend: neighbors(backend, graph=make_graph(weights=True), weighted=True),
    "weighted replace": lambda backend: neighbors(backend, graph=make_graph(weights=True), weighted=True, replace=True),
    "weighted scan": lambda backend: neighbors(backend, graph=make_graph(weights=True, dwarfed=True), weighted=True),
    "edge times": lambda backend: neighbors(backend, graph=make_graph(edge_times=True), temporal="uniform", **IN_TIME),
    "node times": lambda backend: neighbors(backend, graph=make_graph(node_times=True), temporal="uniform", **IN_TIME),
    "window": lambda backend: neighbors(
        backend, graph=make_graph(edge_times=True), temporal="uniform", window={"user": TIMES["user"] - 3}, **IN_TIME
    ),
    "last": lambda backend: neighbors(backend, graph=make_graph(edge_times=True), temporal="last", **IN_TIME),
    "induced": lambda backend: neighbors(backend, (1, 1), subgraph="induced"),
    "bidirectional": lambda backend: neighbors(backend, (2, 1), subgraph="bidirectional", reverse=REVERSE),
    "seed edges": lambda backend: edges(backend, None, 0),
    "binary": lambda backend: edges(backend, "binary", 2.5),
    "binary weighted": lambda backend: edges(backend, "binary", 2, src_weight=RAMP, dst_weight=RAMP[:8]),
    "binary never true": lambda backend: edges(backend, "binary", 20, exclude_true=True),
    "binary temporal": lambda backend: edges(backend, "binary", 3, temporal="uniform"),
    "triplet": lambda backend: edges(backend, "triplet", 4),
    "triplet never true": lambda backend: edges(backend, "triplet", 6, exclude_true=True),
    "triplet temporal": lambda backend: edges(backend, "triplet", 3, temporal="last"),
    "hgt": lambda backend: hgt(backend, 2),
    "hgt all": lambda backend: hgt(backend, 100),
    "hgt cut": lambda backend: hgt(backend, 5, max_neighbors=3),
    "hgt uncut": lambda backend: hgt(backend, 5, max_neighbors=None),
    "exclude": lambda backend: neighbors(backend, exclude={KNOWS: torch.arange(0, 96, 3), WATCHES: torch.arange(50)}),
    "labor": lambda backend: labor(backend),
    "labor of a layer": lambda backend: labor(backend, layer_dependency=True, batch_dependency=4),
    "labor weighted": lambda backend: labor(backend, weighted=True),
    "labor importance": lambda backend: labor(backend, importance=2, expand="new"),
    "labor converged": lambda backend: labor(backend, (2, -1), importance=-1, weighted=True),
    "labor exact": lambda backend: labor(backend, method="exact"),
    "labor exact weighted": lambda backend: labor(backend, method="exact", weighted=True),
    "labor exact replace": lambda backend: labor(backend, method="exact", replace=True),
    "shuffle": lambda _: [shuffled(n) for n in (8, 9, 1000, 10**9)],
}


def test_version():
    assert FILE.name == f"golden_contract_v{CONTRACT_VERSION}.json"
    assert list(json.loads(FILE.read_text())) == list(CASES)


@pytest.mark.parametrize("backend", [ReferenceSampler, CPUSampler])
@pytest.mark.parametrize("name", CASES)
def test_samples_are_those_of_the_contract(name, backend):
    assert as_lists(CASES[name](backend)) == json.loads(FILE.read_text())[name]


if __name__ == "__main__":
    FILE.write_text(
        "{\n"
        + ",\n".join(f"{json.dumps(n)}: {json.dumps(as_lists(make(ReferenceSampler)))}" for n, make in CASES.items())
        + "\n}\n"
    )
