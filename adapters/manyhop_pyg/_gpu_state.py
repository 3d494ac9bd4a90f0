"""What the rows of batches are read from, as it was when they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

if TYPE_CHECKING:
    from manyhop_pyg._on_gpu import OnGPU
    from manyhop_pyg._plan import DataPlan


class State:
    """The state of a loader's data.

    Args:
        gpu: the part of the loader that knows its GPU.
        data: the loader's, ``Data``, ``HeteroData`` or a pair of stores of which the first one is ours.
    """

    __slots__ = ("_columns", "_data", "_gpu", "_plan", "_versions")

    def __init__(self, gpu: OnGPU, data: Any) -> None:
        self._gpu, self._data = gpu, data
        self._plan: DataPlan | None = None
        if isinstance(data, Data | HeteroData):
            self._plan = gpu.plan(data)
            self._versions = _versions(self._plan.sources)
        else:
            self._columns = data[0].columns()
            self._versions = _versions([column.tensor for column in self._columns])

    def holds(self) -> bool:
        """Whether nothing has been replaced or changed in place since. Asked between two training steps: quick."""
        for tensor, version in self._versions:
            if tensor._version != version:
                return False
        if self._plan is None:
            return self._data[0]._columns is self._columns
        return self._gpu.plan(self._data) is self._plan


def _versions(values: list[Any]) -> list[tuple[Tensor, int]]:
    """Tensors, and how often they have been changed in place, as far as torch counts that."""
    return [(value, value._version) for value in values if type(value) is Tensor and not value.is_inference()]
