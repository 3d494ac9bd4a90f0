"""The state of the tensors that the rows of batches were read from."""

from __future__ import annotations

from manyhop.loading.adapter import Columns
from manyhop.loading.gpu.runtime import GPURuntime


class State:
    """A snapshot of the versions of a loader's tensors.

    Args:
        gpu: the GPU runtime of the loader.
        columns: the tensors.
    """

    __slots__ = ("_fits", "_gpu", "_placed", "_versions")

    def __init__(self, gpu: GPURuntime, columns: Columns) -> None:
        self._gpu, self._fits = gpu, columns.fits
        self._placed = gpu.columns(columns)
        self._versions = gpu.versions()

    def is_current(self) -> bool:
        """Return whether no tensor has been replaced or changed in place since. Fast: runs between training steps."""
        for tensor, version in self._versions:
            if tensor._version != version:
                return False
        return self._gpu.placed is self._placed and self._fits(self._placed)
