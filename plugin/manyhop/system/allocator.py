"""One allocator of GPU memory: torch's, with expandable segments, also for RMM and CuPy.

Batches differ in size. With segments of fixed sizes, a slightly larger batch needs an additional segment. RMM's pool
below torch would lose ``record_stream``, pools of CUDA graphs, expandable segments and torch's statistics.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import sys
from collections.abc import MutableMapping
from typing import Any

from manyhop.errors import MissingExtraError

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables with torch's settings. Each supported version reads all of them."""

SETTING = "expandable_segments:True"

MESSAGE = (
    "The GPU was used before manyhop was imported, so torch's allocator has segments of fixed sizes: batches of "
    f"changing sizes will need more GPU memory. Import manyhop earlier, or set {VARIABLES[0]}={SETTING} (or "
    "expandable_segments:False, to leave it unchanged) before the program starts."
)


def configure(environ: MutableMapping[str, str], *, started: bool) -> bool:
    """Request expandable segments, unless the user has set a variable. Return whether it is too late.

    Args:
        environ: variables of the process, which children inherit.
        started: whether the process has used a GPU already.
    """
    if not _supported() or any(name in environ for name in VARIABLES):
        return False
    if not started:
        environ[VARIABLES[0]] = SETTING  # torch reads it when it first requests GPU memory
    return started


def _supported() -> bool:
    """Return whether segments can grow here. Under Windows' Linux (WSL), the first allocation fails on some GPUs."""
    return sys.platform == "linux" and "microsoft" not in platform.release().lower()


def cuda_started() -> bool:
    """Return whether this process has used a GPU through torch. Imports nothing."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # absent while torch itself is being imported
    return cuda is not None and bool(cuda.is_initialized())


def configure_at_import() -> None:
    """Run at the import of manyhop. It logs instead of warning, so that programs continue under ``-W error``."""
    if configure(os.environ, started=cuda_started()):
        logging.getLogger("manyhop").warning(MESSAGE)


_LEGACY, _PER_THREAD = 1, 2  # CUDA's other handles of default streams


def use_torch_memory() -> None:
    """Let RMM, and CuPy if it is installed, allocate on the current GPU with torch's allocator.

    For programs that use RAPIDS and torch: with two pools, neither can use the memory that the other has freed. Call it
    before RMM allocates anything, and do not call ``rmm.reinitialize()`` later.

    Raises:
        MissingExtraError: rmm is not installed.
    """
    import torch

    rmm, device = _rmm(), torch.cuda.current_device()
    memory = _TorchMemory(device)
    rmm.mr.set_per_device_resource(device, rmm.mr.CallbackMemoryResource(memory.allocate, memory.deallocate))
    if importlib.util.find_spec("cupy") is not None:
        import cupy
        from rmm.allocators.cupy import rmm_cupy_allocator

        cupy.cuda.set_allocator(rmm_cupy_allocator)


def share_memory_with_rapids() -> None:
    """Call :func:`use_torch_memory`, unless the user has set a memory resource of RMM for the current GPU.

    Raises:
        MissingExtraError: rmm is not installed.
    """
    import torch

    rmm = _rmm()
    if type(rmm.mr.get_per_device_resource(torch.cuda.current_device())) is rmm.mr.CudaMemoryResource:  # RMM's default
        use_torch_memory()


def _rmm() -> Any:
    if importlib.util.find_spec("rmm") is None:
        raise MissingExtraError("rmm", "cu13", "One pool of GPU memory for torch and RAPIDS")
    return importlib.import_module("rmm")


class _TorchMemory:
    """Blocks of torch's allocator, in the order of CUDA streams.

    torch returns a freed block to the next request of the stream that allocated it. That stream must therefore wait for
    the last stream that used the block.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._stream_of: dict[int, int] = {}  # block -> the stream that it was allocated on

    def allocate(self, nbytes: int, stream: Any) -> int:
        """Return the address of ``nbytes`` for work on ``stream`` (of RMM)."""
        import torch

        used = stream.__cuda_stream__()[1]
        # All threads have the same handle for their per-thread streams, which torch cannot distinguish. The default
        # stream is in order with all of them.
        owner = 0 if used in (_LEGACY, _PER_THREAD) else used
        try:
            block = int(torch.cuda.caching_allocator_alloc(nbytes, self.device, owner))
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error  # as RMM's callers expect
        if used == _PER_THREAD:
            self._wait(used, owner)
        if block:
            self._stream_of[block] = owner
        return block

    def deallocate(self, block: int, nbytes: int, stream: Any) -> None:
        """Free a block that was last used on ``stream``."""
        if not block or sys.is_finalizing():  # of no bytes, or the process ends
            return
        import torch

        used = stream.__cuda_stream__()[1]
        owner = self._stream_of.pop(block)
        if used != owner and not (owner == 0 and used == _LEGACY):
            self._wait(owner, used)
        torch.cuda.caching_allocator_delete(block)  # type: ignore[no-untyped-call]

    def _wait(self, waiting: int, working: int) -> None:
        self._stream(waiting).wait_stream(self._stream(working))

    def _stream(self, handle: int) -> Any:
        import torch

        if handle in (0, _LEGACY):
            return torch.cuda.default_stream(self.device)
        return torch.cuda.ExternalStream(handle, device=self.device)  # type: ignore[no-untyped-call]
