"""The registry of engines: each entry equals the reference, and follows tables that move."""

import gc
import weakref

import pytest
import torch
from test_gpu_labor import few_labor_programs  # noqa: F401  # a fixture
from test_gpu_sampler import DEVICE, few_programs  # noqa: F401  # a fixture
from test_labor import assert_same

import manyhop.sampling
from manyhop.errors import GraphError, InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, PlacedGraph, build_graph
from manyhop.memory import pinned
from manyhop.memory.pinned import is_pinned
from manyhop.sampling import (
    BatchKey,
    HGTSpec,
    LaborSpec,
    NeighborSpec,
    NodeRequest,
    ReferenceHGTSampler,
    ReferenceLaborSampler,
    ReferenceSampler,
)
from manyhop.sampling.engines import engine_for, placed_engine

NUM_NODES = 30
REFERENCE = {NeighborSpec: ReferenceSampler, HGTSpec: ReferenceHGTSampler, LaborSpec: ReferenceLaborSampler}
SPECS = {
    NeighborSpec: NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (3, 2)}),
    HGTSpec: HGTSpec(num_samples={HOMOGENEOUS_NODE: (4, 4)}, max_neighbors=5),
    LaborSpec: LaborSpec(fanouts={HOMOGENEOUS_EDGE: (3, 2)}),
}
REQUESTS = [
    NodeRequest(key=BatchKey(1, 2, batch), seeds={HOMOGENEOUS_NODE: torch.tensor(seeds)})
    for batch, seeds in enumerate(([0, 7, 7], [29]))
]


def make_graph(defer=False):
    random = torch.Generator().manual_seed(0)
    row, col = torch.randint(0, NUM_NODES, (2, 200), generator=random)
    return build_graph({HOMOGENEOUS_NODE: NUM_NODES}, {HOMOGENEOUS_EDGE: EdgeInput(row=row, col=col)}, defer=defer)


def expected(spec):
    return [REFERENCE[type(spec)](make_graph(), spec).sample(request) for request in REQUESTS]


def move(graph):
    """Move the tables, as sharing them with another process does, and spoil the memory that they leave."""
    for table in graph.tables():
        left = table.clone().untyped_storage()
        old = table.untyped_storage()
        table.set_(left, 0, table.shape)
        torch.tensor([], dtype=table.dtype).set_(old, 0, table.shape).fill_(0)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_every_engine_equals_the_reference(kind, backend):
    spec, graph = SPECS[kind], make_graph()
    on_gpu = backend == "gpu"
    there = PlacedGraph.of(graph, torch.device(DEVICE), "device").graph if on_gpu else graph
    engine = engine_for(there, spec, DEVICE if on_gpu else "cpu", backend=backend)
    assert engine.collective is False
    want = expected(spec)
    assert_same(engine.sample(REQUESTS[0]), want[0])
    for sample, same in zip(engine.begin(REQUESTS).finish(), want, strict=True):
        assert_same(sample, same)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_tables_are_made_where_an_engine_reads_them(few_are_many, kind, backend):
    graph = make_graph(defer=True)
    if backend == "gpu":
        engine = placed_engine(PlacedGraph.of(graph, torch.device(DEVICE), "device"), SPECS[kind])
    else:
        engine = engine_for(graph, SPECS[kind])
    assert not graph.is_made
    assert_same(engine.sample(REQUESTS[0]), expected(SPECS[kind])[0])
    assert graph.is_made == (backend == "cpu")


@pytest.mark.parametrize("kind", SPECS)
def test_an_engine_of_the_cpu_follows_tables_that_move(kind):
    graph, spec = make_graph(), SPECS[kind]
    engine, want = engine_for(graph, spec), expected(spec)
    assert_same(engine.sample(REQUESTS[0]), want[0])
    begun = engine.begin(REQUESTS)
    move(graph)
    for sample, same in zip(begun.finish(), want, strict=True):
        assert_same(sample, same)


def test_an_engine_of_the_cpu_is_made_when_it_is_first_needed(monkeypatch):
    made = []
    kind = manyhop.sampling.CPUSampler
    monkeypatch.setattr(manyhop.sampling, "CPUSampler", lambda *a, **k: made.append(a) or kind(*a, **k))
    engine = engine_for(make_graph(), SPECS[NeighborSpec])
    pending = engine.begin(REQUESTS)
    assert made == []
    pending.finish()
    engine.sample(REQUESTS[0])
    assert len(made) == 1


def test_what_no_engine_can_do():
    graph, spec = make_graph(), SPECS[NeighborSpec]
    with pytest.raises(InputError, match=r"Expected a spec and a backend among .*LaborSpec \(gpu\).*, got str \(cpu\)"):
        engine_for(graph, "spec")
    with pytest.raises(InputError, match=r"got NeighborSpec \(cugraph\)"):
        engine_for(graph, spec, backend="cugraph")
    for kind, wrong in ((NeighborSpec, {}), (LaborSpec, {}), (HGTSpec, {})):
        field = "num_samples" if kind is HGTSpec else "fanouts"
        with pytest.raises(InputError, match=field):
            engine_for(graph, kind(**{field: wrong}))
    with pytest.raises(GraphError, match="contiguous on cpu"):
        engine_for(PlacedGraph.of(graph, torch.device("meta"), "device").graph, spec)


class StandIn:
    """An engine of a GPU, noting what it is made of."""

    collective = False

    def __init__(self, graph, spec, device):
        self.graph, self.spec, self.device = graph, spec, device

    def sample(self, request):
        return self.begin([request])

    def begin(self, requests):
        return self, requests


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setitem(vars(manyhop.sampling), "GPUSampler", StandIn)


@pytest.mark.usefixtures("stand_in")
def test_one_engine_for_all_that_sample_alike():
    there = PlacedGraph.of(make_graph(), torch.device("meta"), "device")
    engine = placed_engine(there, SPECS[NeighborSpec])
    assert isinstance(engine, StandIn)
    assert placed_engine(there, NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (3, 2)})) is engine
    assert placed_engine(there, NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (3, 3)})) is not engine
    assert (engine.graph, engine.device) == (there.graph, torch.device("meta"))
    gone = weakref.ref(there), weakref.ref(engine)
    del there, engine
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.usefixtures("stand_in")
def test_an_engine_of_a_gpu_follows_pinned_tables_that_move(driver, pinned_from):
    graph = make_graph()
    pinned_from(4 * (NUM_NODES + 2))
    there = PlacedGraph.of(graph, torch.device("meta"), "pinned")
    csc, own = there.graph.csc[HOMOGENEOUS_EDGE], graph.csc[HOMOGENEOUS_EDGE]
    assert csc.colptr.device.type == "meta"  # each read of another table needs it
    assert (csc.row.data_ptr(), csc.perm.data_ptr()) == (own.row.data_ptr(), own.perm.data_ptr())
    assert is_pinned(own.row)
    assert is_pinned(own.perm)
    engine = placed_engine(there, SPECS[NeighborSpec])
    first, _ = engine.begin(REQUESTS)
    assert engine.sample(REQUESTS[0])[0] is first
    move(graph)
    before = pinned.registry.generation
    second, _ = engine.begin(REQUESTS)
    assert second is not first
    assert is_pinned(own.row)
    assert is_pinned(own.perm)
    assert pinned.registry.generation > before
