"""What the rows of batches were read from, as it was when they were."""

from __future__ import annotations

from torch import Tensor

from manyhop.loading.adapter import Columns
from manyhop.loading.gpu.runtime import GPURuntime


class State:
    """The state of a loader's tensors.

    Args:
        gpu: the part of the loader that works on a GPU.
        columns: the tensors.
    """

    __slots__ = ("_columns", "_gpu", "_placed", "_versions")

    def __init__(self, gpu: GPURuntime, columns: Columns) -> None:
        self._gpu, self._columns = gpu, columns
        self._placed = gpu.columns(columns)
        self._versions = [
            (value, value._version)
            for value in self._placed.sources
            if type(value) is Tensor and not value.is_inference()  # whose changes torch does not count
        ]

    def holds(self) -> bool:
        """Whether nothing has been replaced or changed in place since. Asked between two training steps: quick."""
        for tensor, version in self._versions:
            if tensor._version != version:
                return False
        return self._gpu.columns(self._columns) is self._placed
