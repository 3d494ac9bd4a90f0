"""What the rows of batches were read from, as it was when they were."""

from __future__ import annotations

from manyhop.loading.adapter import Columns
from manyhop.loading.gpu.runtime import GPURuntime


class State:
    """The state of a loader's tensors.

    Args:
        gpu: the part of the loader that works on a GPU.
        columns: the tensors.
    """

    __slots__ = ("_fits", "_gpu", "_placed", "_versions")

    def __init__(self, gpu: GPURuntime, columns: Columns) -> None:
        self._gpu, self._fits = gpu, columns.fits
        self._placed = gpu.columns(columns)
        self._versions = gpu.versions()

    def holds(self) -> bool:
        """Whether nothing has been replaced or changed in place since. Asked between two training steps: quick."""
        for tensor, version in self._versions:
            if tensor._version != version:
                return False
        return self._gpu.placed is self._placed and self._fits(self._placed)
