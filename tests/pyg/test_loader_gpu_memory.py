"""What a loader on a GPU reads stays what the user has. Without a GPU: copies lie in the memory of the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch_geometric.data import Data

from manyhop.loading.gpu.memory import GPUMemory, HostMemory, Sources
from manyhop_pyg.batch.columns import DataPlan

DEVICE = torch.device("meta")  # not where the data is: everything is copied


def memory(place: str) -> GPUMemory:
    choices = (SimpleNamespace(item=SimpleNamespace(name=repr("x"), nbytes=1), place=place, cache_bytes=0),)
    placement: Any = SimpleNamespace(features=choices, topology=choices[0])
    host = HostMemory([], None, DEVICE, required=place == "pinned")
    return GPUMemory(DEVICE, placement, host, also_there=False, timeout=1.0)


def test_a_change_in_place_concerns_only_what_was_placed_before() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4)
    ours = memory("device")
    before = Sources(ours)
    copies = before("x", x), before("y", y)
    assert before.is_current()
    x.add_(1)
    assert not before.is_current()
    after = Sources(ours)
    assert after("x", x) is not copies[0]
    assert after("y", y) is copies[1]  # once for all
    assert after.is_current()
    assert not before.is_current()  # another thread must not take what it knows for what is there now


def test_what_all_batches_share_is_sent_again_when_it_has_changed() -> None:
    data = Data(x=torch.zeros(4, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), scale=torch.tensor(1.0))
    plan = DataPlan(data, DEVICE, lambda name, value: value)
    assert plan.fits(data)
    data.scale.mul_(2)
    assert not plan.fits(data)
    assert DataPlan(data, DEVICE, lambda name, value: value).fits(data)
