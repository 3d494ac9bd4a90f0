"""The second of two loaders over the same data finds the copies of the first."""

from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

import manyhop_pyg
from manyhop.memory.stores import spread
from manyhop.memory.stores.copies import Copy, Kept, forget


def test_copies_that_are_current():
    device = torch.device("cpu")
    x = torch.zeros(3)
    assert Copy.find(x, device, compare=False) is None
    copy = Copy.of(x, device)
    assert Copy.find(x, device, compare=False) is not None
    assert Copy.find(torch.zeros(3), device, compare=False) is None
    x += 1
    assert Copy.find(x, device, compare=False) is None
    again = Copy.of(x, device)
    assert Copy.find(x, device, compare=False) is not None
    del copy, again
    assert Copy.find(x, device, compare=False) is None


@pytest.mark.gpu
def test_two_loaders_share_them():
    data = Data(x=torch.zeros(1000, 1 << 18), edge_index=torch.randint(0, 1000, (2, 5000)))
    loaders = []
    before = torch.cuda.memory_allocated()  # by this process: others may use the GPU, too
    for _ in range(2):
        loaders.append(manyhop_pyg.NeighborLoader(data, [2], batch_size=10, device="cuda"))
    places = [loader._gpu.memory.placement for loader in loaders]
    assert [p.place_of("x") for p in places] == ["device", "device"]
    assert places[0].gpu_bytes >= data.x.nbytes > places[1].gpu_bytes
    assert data.x.nbytes <= torch.cuda.memory_allocated() - before < 1.5 * data.x.nbytes


def test_what_is_spread_ends_with_the_run_and_copies_do_not():
    x, device = torch.ones(3), torch.device("cpu")
    copy, spread, other = Copy.of(x, device), Kept(x).keep("sharded"), Kept(x).keep("distributed")
    assert Kept.find(x, "sharded") is spread
    assert Kept.find(x, "distributed") is other
    assert Copy.find(x, "sharded") is None  # of another kind
    forget(["sharded", "distributed"])
    assert Kept.find(x, "sharded") is None
    assert Kept.find(x, "distributed") is None
    assert Copy.of(x, device) is copy


def test_memory_that_is_resident_on_all_ranks(monkeypatch):
    memory = SimpleNamespace(whole=torch.ones(3, 2), copy_from=lambda rows: None)
    monkeypatch.setattr(spread, "make_memory", lambda *_: memory)
    x, device = torch.arange(6.0).view(3, 2), torch.device("cpu")
    rows = spread.SpreadRows.of(x, "sharded", "x", 1.0)
    copy = Copy.of(x, device)
    resident = spread.ResidentMemory([("x", x)], None, device)
    assert resident.places("x", together=False) == {"sharded", "device"}
    assert resident.rows("x", "sharded") is rows
    resident.keep_common([resident.facts(), {"copied": ["x"], "spread": {}}])  # the other rank has a copy only
    assert resident.places("x", together=True) == {"device"}
    assert copy.is_current()
    x += 1
    assert spread.SpreadRows.find(x, "sharded") is None
    assert spread.ResidentMemory([("x", x)], None, device).places("x", together=True) == frozenset()
