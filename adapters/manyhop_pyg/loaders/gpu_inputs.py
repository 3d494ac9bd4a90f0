"""The inputs of a loader (seed nodes, seed edges) on its GPU, which looks up those of each batch by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NodeSamplerInput

from manyhop.loading.pipeline import BatchPlan
from manyhop_pyg.typing import Inputs

if TYPE_CHECKING:
    from manyhop.loading.pipeline.gpu import GPUPositions

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

    def __init__(self, given: Inputs, columns: dict[str, Tensor], positions: GPUPositions) -> None:
        self._given, self._positions = given, positions
        self._names = [name for name, column in columns.items() if name in _IDS and column.dtype == torch.int64]
        self._ids = [columns[name].contiguous() for name in self._names]
        self._others = {name: column for name, column in columns.items() if name not in self._names}

    def of(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> InputGroup:
        """The inputs of some batches, as samplers take them, but on the GPU; enqueued on the current stream."""
        (index, *ids), sizes = self._positions(plan, epoch, batches, self._ids)
        columns = {"input_id": index} | dict(zip(self._names, ids, strict=True))
        columns |= {name: column.index_select(0, index) for name, column in self._others.items()}
        return InputGroup(self._given, columns, sizes)


class InputGroup(Sequence[Inputs]):
    """The inputs of some batches, one behind the other; those of a batch are made when they are asked for.

    Args:
        given: inputs of the same kind.
        columns: their tensors, by name, on the GPU.
        sizes: inputs of each batch.
    """

    def __init__(self, given: Inputs, columns: dict[str, Tensor], sizes: list[int]) -> None:
        self._given, self.columns, self.sizes = given, columns, sizes
        self._begins = list(accumulate(sizes, initial=0))

    @property
    def of_nodes(self) -> bool:
        """Whether these are seed nodes, without times."""
        return type(self._given) is NodeSamplerInput and self._given.time is None

    @property
    def input_type(self) -> Any:
        """The node or edge type; ``None`` without types."""
        return self._given.input_type

    def input_ids(self) -> list[Tensor]:
        """What batches call their inputs. Unsafe: autograd does not take a change of one for a change of all."""
        return list(self.columns["input_id"].unsafe_split_with_sizes(self.sizes))

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, i: int) -> Inputs: ...
    @overload
    def __getitem__(self, i: slice) -> InputGroup: ...
    def __getitem__(self, i: int | slice) -> Inputs | InputGroup:
        first, end, _ = (slice(i, i + 1) if isinstance(i, int) else i).indices(len(self))
        if isinstance(i, int) and not 0 <= i < len(self):
            raise IndexError(i)
        rows = slice(self._begins[first], self._begins[max(first, end)])
        columns = {name: column[rows].data for name, column in self.columns.items()}
        if isinstance(i, slice):
            return InputGroup(self._given, columns, self.sizes[first:end])
        one = object.__new__(type(self._given))
        one.__dict__.update(self._given.__dict__, **columns)
        return one


def inputs_on(device: torch.device, given: Inputs, sampler: BaseSampler) -> GPUInputs | None:
    """The inputs on a GPU; ``None`` where they are too many, or needed on the host: times of seeds are."""
    if type(given) not in (NodeSamplerInput, EdgeSamplerInput) or getattr(sampler, "is_temporal", False):
        return None
    columns = {name: value for name, value in vars(given).items() if isinstance(value, Tensor)}
    if sum(column.nbytes for column in columns.values()) > _MOST_BYTES:
        return None
    from manyhop.loading.pipeline.gpu import GPUPositions

    there = {name: column.to(device, torch.int64 if name in _NODES else None) for name, column in columns.items()}
    return GPUInputs(given, there, GPUPositions(device))
