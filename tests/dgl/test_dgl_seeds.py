"""``dgl.seed`` and ``torch.manual_seed`` fix what has no seed of its own, each time they are called."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from sampler_graphs import edges_of, graph

import manyhop_dgl
from manyhop_dgl import LaborSampler, NeighborSampler, PerSourceUniform, as_edge_prediction_sampler, compat
from manyhop_dgl.samplers import arguments

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

SEEDINGS = {"dgl.seed": dgl.seed, "dgl.random.seed": dgl.random.seed, "torch": torch.manual_seed}
SAMPLERS = {
    "neighbours": lambda: NeighborSampler([3, 2]).sample,
    "labor": lambda: LaborSampler([3, 2]).sample,
    "edges": lambda: as_edge_prediction_sampler(NeighborSampler([3, 2]), negative_sampler=PerSourceUniform(2)).sample,
    "tensors": lambda: lambda g, ids: manyhop_dgl.sample_tensors(g, ids, [2]).input_nodes.tolist(),
    "negatives": lambda: lambda g, ids: PerSourceUniform(2)(g, ids)[1].tolist(),
}


def flat(batch):
    """All ids of a batch of blocks, to compare batches by."""
    pairs = [[side.tolist() for side in graph.edges()] for graph in batch[1:-1] if isinstance(graph, dgl.DGLGraph)]
    return [batch[0].tolist(), pairs, [list(edges_of(block).values()) for block in batch[-1]]]


@pytest.mark.parametrize("seed", SEEDINGS.values(), ids=SEEDINGS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_seeding_before_a_call_fixes_a_sampler(seed, name):
    g, sample = graph(), SAMPLERS[name]()

    def draw(value=None):
        if value is not None:
            seed(value)
        found = sample(g, torch.arange(20))
        return flat(found) if isinstance(found, tuple) else found

    first, second = draw(3), draw()
    assert first != second
    assert draw(4) != first
    assert [draw(3), draw()] == [first, second]


def test_labor_whose_calls_depend_on_each_other_keeps_a_seed():
    g, sampler = graph(), LaborSampler([3], batch_dependency=0)
    dgl.seed(3)
    first = flat(sampler.sample(g, torch.arange(20)))
    dgl.seed(4)
    assert flat(sampler.sample(g, torch.arange(20))) == first
    sampler.set_seed()
    assert flat(sampler.sample(g, torch.arange(20))) != first


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity opt")
def test_worker_processes_of_dgl_draw_differently():
    """They are copies, of DGL's generator too; torch seeds each, in each epoch."""
    g, ids = graph(), torch.arange(8).repeat(2)
    dgl.seed(3)
    batches = dgl.dataloading.DataLoader(g, ids, NeighborSampler([2, 2]), batch_size=8, num_workers=2)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append([[flat(batch) for batch in batches] for _ in range(2)])
    assert runs[0] == runs[1]
    (a, b), (c, d) = runs[0]
    assert a[2] != b[2]
    assert [a, b] != [c, d]


def test_a_process_that_has_imported_nothing_else_yet():
    script = "import manyhop_dgl, dgl; dgl.seed(3); from manyhop_dgl.samplers.arguments import draw; print(draw())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    torch.manual_seed(3)
    assert done.stdout == f"{int(torch.empty((), dtype=torch.int64).random_())}\n", done.stderr


def test_dgl_that_was_imported_before(monkeypatch):
    """``dgl.seed`` may have been taken by others already: what it calls is replaced."""
    calls = []
    module = SimpleNamespace(_CAPI_SetSeed=calls.append)
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setitem(sys.modules, "dgl.random", module)
    monkeypatch.setattr(compat.multiprocessing.spawn, "get_preparation_data", None)
    compat.activate()
    module._CAPI_SetSeed(3)
    first = arguments.draw()
    torch.manual_seed(3)
    assert first == int(torch.empty((), dtype=torch.int64).random_())
    assert calls == [3]
