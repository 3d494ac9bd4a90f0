"""The inputs of a loader (seed nodes, seed edges) on its GPU, which looks up those of each batch by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from manyhop.pipeline import BatchPlan

if TYPE_CHECKING:
    from manyhop.pipeline._gpu import GPUPositions

_NODES = {"node", "row", "col"}  # int64 for samplers
_IDS = _NODES | {"input_id"}
_MOST_BYTES = 64 << 20  # of all inputs: more are looked up on the host, where they are


class GPUInputs:
    """The columns of a loader's inputs on a GPU.

    Args:
        given: the inputs.
        columns: their tensors, by name.
        positions: which inputs are in a batch.
    """

    def __init__(self, given: Any, columns: dict[str, Tensor], positions: GPUPositions) -> None:
        self._given, self._positions = given, positions
        self._names = [name for name, column in columns.items() if name in _IDS and column.dtype == torch.int64]
        self._ids = [columns[name].contiguous() for name in self._names]
        self._others = {name: column for name, column in columns.items() if name not in self._names}

    def of(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> list[Any]:
        """The inputs of some batches, as samplers take them, but on the GPU; enqueued on the current stream."""
        given = self._given
        (index, *ids), sizes = self._positions(plan, epoch, batches, self._ids)
        columns = {"input_id": index} | dict(zip(self._names, ids, strict=True))
        columns |= {name: column.index_select(0, index) for name, column in self._others.items()}
        parts = {name: column.split_with_sizes(sizes) for name, column in columns.items()}
        # Batches get it: autograd must not take a change of one for a change of all.
        parts["input_id"] = tuple([part.data for part in parts["input_id"]])
        names, base, kind = list(parts), given.__dict__, type(given)
        inputs = []
        for values in zip(*parts.values(), strict=True):
            one = object.__new__(kind)
            one.__dict__.update(base, **dict(zip(names, values, strict=True)))
            inputs.append(one)
        return inputs


def inputs_on(device: torch.device, given: Any, sampler: Any) -> GPUInputs | None:
    """The inputs on a GPU; ``None`` where they are too many, or needed on the host: times of seeds are."""
    if type(given) not in (NodeSamplerInput, EdgeSamplerInput) or getattr(sampler, "is_temporal", False):
        return None
    columns = {name: value for name, value in vars(given).items() if isinstance(value, Tensor)}
    if sum(column.nbytes for column in columns.values()) > _MOST_BYTES:
        return None
    from manyhop.pipeline._gpu import GPUPositions

    there = {name: column.to(device, torch.int64 if name in _NODES else None) for name, column in columns.items()}
    return GPUInputs(given, there, GPUPositions(device))
