"""pylibcugraph, and the two compiled modules of raft-dask that its communicators need, without Dask.

raft-dask holds a binding of NCCL and one that puts a NCCL communicator into a handle of RAFT's. Its packages import
Dask, Dask-CUDA and UCXX before these two can be reached. Bare packages stand in for them while the two are loaded, so
that raft-dask may be installed without its dependencies.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from manyhop.errors import MissingExtraError

PURPOSE = "Sampling with cuGraph (engine='cugraph')"
_LIBRARIES = ("libucx", "libraft")  # which the two modules are linked to
_lock = threading.Lock()


@dataclass(frozen=True)
class Communication:
    """What joins GPUs for cuGraph."""

    nccl: Any
    """raft-dask's class of NCCL communicators."""
    inject: Any
    """Puts a communicator into a handle: ``(handle, nccl, world_size, rank, verbose)``."""


def install_command(cuda: str | None) -> str:
    """Return the commands that install cuGraph without Dask, for torch's version of CUDA."""
    cuda = (cuda or "13").split(".")[0]
    packages = [f"{name}-cu{cuda}" for name in ("raft-dask", "pylibcugraph")]
    return (
        f"pip install {packages[1]} cupy-cuda{cuda}x libucx-cu{cuda} && pip install --no-deps {packages[0]} "
        "(from the same release of RAPIDS)"
    )


def is_installed() -> bool:
    """Whether cuGraph is installed, and raft-dask's modules, which join GPUs. Imports nothing."""
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


def communication() -> Communication:
    """Return what joins GPUs for cuGraph, loaded when first needed.

    Raises:
        MissingExtraError: raft-dask is not installed, or its modules cannot be loaded.
    """
    try:
        with _lock, _bare_packages():
            nccl = importlib.import_module("raft_dask.common.nccl")
            utils = importlib.import_module("raft_dask.common.comms_utils")
    except ImportError as error:
        raise _missing("raft-dask", error) from error
    return Communication(nccl.nccl, utils.inject_comms_on_handle_coll_only)


def load() -> None:
    """Load all of it.

    Raises:
        MissingExtraError: some of it is not installed, or cannot be loaded.
    """
    pylibcugraph()
    communication()


def _missing(package: str, error: ImportError) -> MissingExtraError:
    import torch

    name, command = package.replace("-", "_"), install_command(torch.version.cuda)
    installed = importlib.util.find_spec(name) is not None
    problem = f"which cannot be loaded ({error})" if installed else None
    return MissingExtraError(package, "cu13", PURPOSE, problem=problem, advice=f"Install it with: {command}.")


@contextmanager
def _bare_packages() -> Iterator[None]:
    """In the body, modules of raft-dask are imported without its packages, unless these are there already."""
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
        for name in bare:  # whoever uses raft-dask itself imports it whole
            del sys.modules[name]
