"""What loaders on GPUs leave to the caller: batches whose rows ranks exchange, failures of warming up."""

from typing import Any

import pytest
import torch
from gpu_stand_ins import exchange_nothing
from helpers_pyg import stores_of
from torch import Tensor

from manyhop.loading.gpu import warm_up
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import LinkNeighborLoader, NeighborLoader
from manyhop_pyg.loaders.adapter import Batches

OF_THE_CALLER = ("is_padding", "_orig_edge_index")
"""Attributes whose memory is of the caller's stream."""


def addresses(tensors: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("data", {}),
        ("data", {"disjoint": True, "time_attr": "time", "input_time": torch.arange(60)}),
        ("data", {"subgraph_type": "bidirectional"}),
        ("data", {"pad": "auto"}),
        ("stores", {}),
        ("stores", {"disjoint": True, "pad": "auto"}),
        ("hetero", {"input_nodes": "paper"}),
        ("hetero", {"input_nodes": {"paper": None, "author": torch.arange(9)}}),
        ("links", {"neg_sampling": "triplet"}),
        ("links", {"neg_sampling": "binary", "edge_label": torch.arange(300) % 3, "pad": "auto"}),
    ],
)
def test_all_memory_of_batches_is_known_when_they_are_received(request, monkeypatch, on_gpu, kind, options):
    """It may be used again only when the caller's stream is done with it."""
    data = request.getfixturevalue("hetero" if kind == "hetero" else "data")
    on_gpu()
    if kind == "links":
        loader: Any = LinkNeighborLoader(data, [3], batch_size=40, seed=1, **options)
    else:
        source = stores_of(data) if kind == "stores" else data
        loader = NeighborLoader(source, [3, 2], batch_size=8, seed=1, **options)
    exchange_nothing(monkeypatch.setattr, loader)
    monkeypatch.setattr(loader, "distributed", True)
    received: list[set[int]] = []

    def hand_out(self: Batches, batch: Any, really: Any = Batches.hand_out) -> Any:
        values = [value for some in self.values(batch) for value in some]
        received.append(addresses(tensors_in(values)))
        return really(self, batch)

    monkeypatch.setattr(Batches, "hand_out", hand_out)
    batches = list(loader)
    assert len(received) == len(batches) > 0
    for known, batch in zip(received, batches, strict=True):
        for store in batch.stores:
            assert addresses(value for name, value in store.items() if own(name, value)) <= known


def own(name: str, value: object) -> bool:
    return isinstance(value, Tensor) and name not in OF_THE_CALLER


def test_what_fails_in_the_caller_names_the_batch(data, monkeypatch, on_gpu):
    on_gpu()
    loader = NeighborLoader(data, [3, 2], batch_size=8, seed=1, num_workers=1)
    exchange_nothing(monkeypatch.setattr, loader)

    def fail(self: Any, batch: Any, out: Any) -> None:
        if out.metadata[0][0] == 16:
            raise ValueError("a label")

    monkeypatch.setattr(NeighborLoader, "_label", fail)
    with pytest.raises(ValueError, match="a label") as caught:
        list(loader)
    assert any("batch 2" in note for note in caught.value.__notes__)


def test_what_fails_while_a_loader_warms_up_is_left_to_the_batches(data, on_gpu, monkeypatch):
    monkeypatch.setattr(warm_up, "_gather", lambda *_: 1 // 0)
    monkeypatch.setattr(warm_up, "_begin", lambda *_: 1 // 0)
    on_gpu()
    assert len(list(NeighborLoader(data, [3, 2], batch_size=8))) == 8
