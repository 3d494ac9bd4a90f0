"""pylibcugraph and the parts of raft-dask that it needs, without Dask; the handle of all GPUs, and arrays.

raft-dask contains bindings of NCCL and of RAFT's communicators. Importing its packages also imports Dask, Dask-CUDA and
UCXX. Empty packages replace them while the two bindings are loaded, so raft-dask can be installed without dependencies.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import MissingExtraError
from manyhop.ranks import control, world
from manyhop.ranks.cuda import check_gpus
from manyhop.system.allocator import share_memory_with_rapids

PURPOSE = "Sampling with cuGraph (engine='cugraph')"
_LIBRARIES = ("libucx", "libraft")  # which the two modules are linked to
_lock = threading.Lock()


def install_command(cuda: str | None) -> str:
    """Return the commands that install cuGraph without Dask, for torch's version of CUDA."""
    cuda = (cuda or "13").split(".")[0]
    packages = [f"{name}-cu{cuda}" for name in ("raft-dask", "pylibcugraph")]
    return (
        f"pip install {packages[1]} cupy-cuda{cuda}x libucx-cu{cuda} && pip install --no-deps {packages[0]} "
        "(from the same release of RAPIDS)"
    )


def is_installed() -> bool:
    """Return whether cuGraph is installed, and raft-dask's modules, which join GPUs. Imports nothing."""
    return all(importlib.util.find_spec(name) is not None for name in ("pylibcugraph", "raft_dask"))


def pylibcugraph() -> ModuleType:
    """Return pylibcugraph, loaded when first needed.

    Raises:
        MissingExtraError: it is not installed, or cannot be loaded.
    """
    try:
        with _lock, _bare_packages():
            return importlib.import_module("pylibcugraph")
    except ImportError as error:
        raise _missing("pylibcugraph", error) from error


def communication() -> tuple[Any, Any]:
    """Return the bindings that connect GPUs for cuGraph, loaded when first needed, as pylibcugraph.

    Returns:
        raft-dask's class of NCCL communicators, and ``(handle, nccl, world_size, rank, verbose)`` that sets that of a
        handle.

    Raises:
        MissingExtraError: one of them is not installed, or cannot be loaded.
    """
    pylibcugraph()
    try:
        with _lock, _bare_packages():
            nccl = importlib.import_module("raft_dask.common.nccl")
            utils = importlib.import_module("raft_dask.common.comms_utils")
    except ImportError as error:
        raise _missing("raft-dask", error) from error
    return nccl.nccl, utils.inject_comms_on_handle_coll_only


def _missing(package: str, error: ImportError) -> MissingExtraError:
    name, command = package.replace("-", "_"), install_command(torch.version.cuda)
    installed = importlib.util.find_spec(name) is not None
    problem = f"which cannot be loaded ({error})" if installed else None
    return MissingExtraError(package, "cu13", PURPOSE, problem=problem, advice=f"Install it with: {command}.")


@contextmanager
def _bare_packages() -> Iterator[None]:
    """Import modules of raft-dask without its packages in the body, unless these are already loaded."""
    if "raft_dask" in sys.modules or (spec := importlib.util.find_spec("raft_dask")) is None:
        yield
        return
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):  # not a wheel: the system's loader finds the library
            importlib.import_module(name).load_library()
    folder = Path(next(iter(spec.submodule_search_locations or [""])))
    bare = {"raft_dask": folder, "raft_dask.common": folder / "common"}
    for name, path in bare.items():
        package = ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    try:
        yield
    finally:
        for name in bare:  # a program that uses raft-dask imports it whole
            del sys.modules[name]


@dataclass(eq=False)
class Handle:
    """cuGraph's resources on one rank."""

    resources: Any
    """``pylibcugraph.ResourceHandle``."""
    stream: torch.cuda.Stream | None
    """On which cuGraph works; ``None``: the stand-in of tests, on the CPU."""
    world_size: int
    """Number of GPUs."""
    keeps: tuple[Any, ...]
    """Objects that must outlive the handle: RAFT's handle and the NCCL communicator."""


_handle: Handle | None = None


def handle(*, timeout: float) -> Handle:
    """Return the handle of this rank, made when first requested. All ranks of the run call it.

    Raises:
        InputError: no GPU, or multiple ranks with the same GPU.
        MissingExtraError: pylibcugraph or, for multiple ranks, raft-dask is not installed.
        RankError: a rank did not arrive in time.
    """
    global _handle
    if _handle is not None:
        return _handle
    ours = world.init(timeout=timeout)
    plc = pylibcugraph()
    device = check_gpus("cuGraph", timeout=timeout)
    share_memory_with_rapids()
    stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # the host waits for its kernels
    if ours.is_alone:
        raft, nccl = _raft_handle(stream), None
    else:
        raft, nccl = _joined(plc, ours, stream, timeout)
    _handle = Handle(plc.ResourceHandle(raft.getHandle()), stream, ours.world_size, (raft, nccl))
    world.at_shutdown(_close)
    return _handle


def _raft_handle(stream: torch.cuda.Stream) -> Any:
    """Return a RAFT handle that works on a torch stream."""
    from pylibraft.common import Handle as RaftHandle

    return RaftHandle(stream=stream.cuda_stream)


def _joined(plc: Any, ours: world.World, stream: torch.cuda.Stream, timeout: float) -> tuple[Any, Any]:
    """Return a handle that connects all ranks, and its own NCCL communicator."""
    make_nccl, inject = control.attempt("cuGraph's communicator", communication, timeout=timeout)
    facts = {"id": make_nccl.get_unique_id().hex() if ours.rank == 0 else ""}
    uid = control.exchange("cuGraph's communicator", facts, timeout=timeout)[0]["id"]
    nccl = make_nccl()
    nccl.init(ours.world_size, bytes.fromhex(uid), ours.rank)
    raft = _raft_handle(stream)
    inject(raft, nccl, ours.world_size, ours.rank, False)
    plc.comms.init_subcomms(raft, num_rows(ours.world_size))
    return raft, nccl


def num_rows(world_size: int) -> int:
    """Return the number of rows of the most square grid of GPUs: cuGraph cuts the adjacency matrix over it."""
    return next(rows for rows in range(math.isqrt(world_size), 0, -1) if world_size % rows == 0)


def _close() -> None:
    """Forget the handle: graphs that still exist keep it. Its communicator ends with the process."""
    global _handle
    _handle = None


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Make a stream current for torch and CuPy; ``None``: no GPU. It first waits for the caller's current stream."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream), _of_cupy(stream):
        yield


class Mark:
    """The work enqueued so far on the current stream of a device; on a CPU, no work."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def wait(self, tensors: Iterable[Tensor]) -> None:
        """Let the current stream wait for the work, and use tensors that it creates."""
        if self._event is None:
            return
        for tensor in tensors:
            stream = torch.cuda.current_stream(tensor.device)
            stream.wait_event(self._event)
            tensor.record_stream(stream)


def _of_cupy(stream: torch.cuda.Stream) -> Any:
    """Return a torch stream as a CuPy stream."""
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.cuda_stream)


def to_array(tensor: Tensor) -> Any:
    """Return a CuPy array over the memory of a tensor; in tests on a CPU, a numpy array."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    import cupy

    return cupy.asarray(tensor)


def to_tensor(array: Any, device: torch.device) -> Tensor:
    """Return a tensor over the memory of an array, which it keeps alive."""
    if device.type == "cpu" or array.size == 0:
        return torch.empty(0, dtype=torch.int64, device=device) if array.size == 0 else torch.from_numpy(array)
    return torch.as_tensor(array, device=device)
