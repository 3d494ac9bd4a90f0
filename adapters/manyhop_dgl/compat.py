"""``import dgl`` on versions of torch without C++ libraries in DGL's wheel.

DGL 2.1 is the newest wheel for Linux on the registry. Its core works with any torch; two of its parts call into torch's
C++ and have builds for torch 2.0 to 2.2 only: ``dgl.graphbolt``, which DGL imports at once, and ``dgl.sparse``. This
module replaces them if they cannot be loaded, and changes nothing otherwise.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import multiprocessing.spawn
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from manyhop.hints import pip_install

__all__ = ["activate", "unavailable"]

_GRAPHBOLT = "dgl.graphbolt"
_INSTEAD = "Use manyhop_dgl.graphbolt in its place: import manyhop_dgl.graphbolt as gb"
_reasons: dict[str, str] = {}  # why dgl.graphbolt is not available, once it has been imported


def unavailable() -> dict[str, str]:
    """Return the modules of DGL that cannot work with this version of torch, each with the reason.

    ``dgl.graphbolt`` is the candidate. Once it has been imported, this is known; before, the answer is whether DGL has
    a library for this torch.
    """
    if importlib.util.find_spec("dgl") is None:
        return {"dgl": f"DGL is not installed: {pip_install('dgl')}"}
    reason = _reasons.get(_GRAPHBOLT) or _no_library()
    return {} if reason is None else {_GRAPHBOLT: reason}


class Finder(MetaPathFinder):
    """Finds ``dgl.graphbolt`` and ``dgl.sparse`` where Python would, and loads them without their libraries.

    ``followed`` contains functions that change other modules after their import.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of one of these modules; ``None`` for any other."""
        if name.startswith(f"{_GRAPHBOLT}.") and _reasons:
            beneath = PathFinder.find_spec(name, path, target) is not None
            raise ImportError(_message(name, beneath=beneath), name=name)
        if not name.startswith("dgl.") or (name not in _EXECUTE and name not in followed()):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _EXECUTE.get(name, _execute_followed))
        return spec


class _Loader(Loader):
    """Creates a module as Python's loader does, and executes it by a function of that loader and the module."""

    def __init__(self, real: Loader, execute: Callable[[Loader, ModuleType], None]) -> None:
        self._real, self._execute = real, execute

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._execute(self._real, module)


def follow_seed(module: Any) -> None:
    """Let ``dgl.seed(n)`` also seed this package's draws.

    Args:
        module: ``dgl.random``, whose ``seed`` calls ``_CAPI_SetSeed``: earlier references to ``seed`` also follow.
    """
    set_seed = module._CAPI_SetSeed

    def set_both(val: int) -> None:
        from manyhop_dgl.samplers.arguments import seed

        set_seed(val)
        seed(val)

    module._CAPI_SetSeed = set_both


@functools.cache
def followed() -> dict[str, Callable[[ModuleType], None]]:
    """Return modules of DGL, and the function that changes each after its import."""
    from manyhop_dgl_cuda.dispatch import FOLLOWED

    return {"dgl.random": follow_seed, **FOLLOWED}


def _execute_graphbolt(real: Loader, module: ModuleType) -> None:
    """Execute the real module, or fill in the stand-in if its library cannot be loaded."""
    reason = _no_library()
    if reason is None:
        before = set(sys.modules)
        try:
            real.exec_module(module)
            return
        except (ImportError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
            for other in set(sys.modules) - before:
                if other.startswith(f"{_GRAPHBOLT}."):
                    del sys.modules[other]
    _reasons[_GRAPHBOLT] = reason
    _stand_in(module)


def _execute_sparse(real: Loader, module: ModuleType) -> None:
    """Execute the real module, with this package's operators if its library cannot be loaded."""
    try:
        real.exec_module(module)
    except (ImportError, OSError):
        if not hasattr(module, "SparseMatrix"):  # the library is looked for in the end
            raise
        from manyhop_dgl_cuda.sparse import operators

        for name in operators.__all__:
            setattr(torch.ops.dgl_sparse, name, getattr(operators, name))


def _execute_followed(real: Loader, module: ModuleType) -> None:
    """Execute the real module, then change it."""
    real.exec_module(module)
    followed()[module.__name__](module)


_EXECUTE = {_GRAPHBOLT: _execute_graphbolt, "dgl.sparse": _execute_sparse}


class FusedCSCSamplingGraph:
    """A class without instances, for ``isinstance(g, dgl.graphbolt.FusedCSCSamplingGraph)``."""

    def __init__(self) -> None:
        raise TypeError(
            "GraphBolt's graphs need its C++ library. Use manyhop_dgl.graphbolt.fused_csc_sampling_graph(...)."
        )


def expand_indptr(
    indptr: Tensor, dtype: torch.dtype | None = None, node_ids: Tensor | None = None, output_size: int | None = None
) -> Tensor:
    """Return the column of each entry of a CSC matrix.

    Args:
        indptr: ``[num_columns + 1]``, where each column's entries begin.
        dtype: of the result; that of ``node_ids`` if left out.
        node_ids: ``[num_columns]``: the name of each column; default: its position.
        output_size: the number of entries, if it is known.

    Returns:
        ``[num_entries]``.
    """
    if node_ids is None:
        if dtype is None:
            raise ValueError("Expected dtype or node_ids: one of them says which dtype the result has.")
        node_ids = torch.arange(indptr.numel() - 1, dtype=dtype, device=indptr.device)
    columns = torch.repeat_interleave(node_ids, indptr.diff(), output_size=output_size)
    return columns if dtype is None else columns.to(dtype)


def etype_tuple_to_str(c_etype: tuple[str, str, str]) -> str:
    """Join an edge type: ``("user", "likes", "item")`` -> ``"user:likes:item"``."""
    if not isinstance(c_etype, tuple) or len(c_etype) != 3:
        raise TypeError(f"Expected an edge type (source, relation, destination), got {c_etype!r}.")
    return ":".join(c_etype)


def _stand_in(module: ModuleType) -> None:
    """Fill ``dgl.graphbolt`` with the names that DGL uses, and an error for all others."""
    for attribute in [name for name in vars(module) if not name.startswith("__")]:
        delattr(module, attribute)
    for name in (FusedCSCSamplingGraph, etype_tuple_to_str, expand_indptr):
        setattr(module, name.__name__, name)

    def missing(attribute: str) -> object:
        what = f"{module.__name__}.{attribute}"
        raise AttributeError(_message(what), name=attribute, obj=module)

    module.__doc__ = __doc__
    module.__file__ = __file__  # "cannot import name ... from 'dgl.graphbolt' (this file)"
    vars(module)["__getattr__"] = missing


def _message(what: str, *, beneath: bool = False) -> str:
    """Explain why a name of GraphBolt, or a module ``beneath`` it, is not available, and what to use instead."""
    instead = _in_place_of(what.rpartition(".")[2])
    if beneath:
        instead = f"{_INSTEAD}, and take names from that: it has no modules beneath it"
    return f"{what} is not available: {_reasons[_GRAPHBOLT]}. {instead}."


def _in_place_of(name: str) -> str:
    """Return the replacement of a name of ``dgl.graphbolt``."""
    if name.startswith("__"):  # which tools ask every module for
        return _INSTEAD
    from manyhop_dgl import graphbolt

    try:
        getattr(graphbolt, name)
    except AttributeError as error:
        return str(error).removesuffix(".")
    return _INSTEAD


def _no_library() -> str | None:
    """Return the reason if no build of GraphBolt's C++ library fits this PyTorch; ``None`` if one does."""
    stem = "graphbolt_pytorch"
    pattern = re.compile(rf"(?:lib)?{stem}_([0-9][^+]*)\.(?:so|dylib|dll)")
    spec = importlib.util.find_spec("dgl")
    places = [*(spec.submodule_search_locations or [] if spec else [])]
    for variable in ("DGL_LIBRARY_PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        places += [place for place in os.environ.get(variable, "").split(os.pathsep) if place]
    found = {
        match[1]
        for place in places
        for file in (Path(place) / "graphbolt").glob(f"*{stem}_*")
        if (match := pattern.fullmatch(file.name))
    }
    version = torch.__version__.partition("+")[0]
    if version in found:
        return None
    builds = ", ".join(sorted(found)) or "no version"
    return f"the C++ library of {_GRAPHBOLT} has no build for torch {version} (this DGL brings builds for {builds})"


_lock = threading.Lock()
_preparation_data = multiprocessing.spawn.get_preparation_data


def activate() -> None:
    """Make ``import dgl`` work. Called when ``manyhop_dgl`` is imported; calling it again changes nothing.

    Processes that ``multiprocessing`` spawns activate it first of all, so that they can unpickle graphs.
    """
    with _lock:
        if any(isinstance(finder, Finder) for finder in sys.meta_path):
            return
        _forget_a_failed_import()
        _choose_the_backend()
        sys.meta_path.insert(0, Finder())
        for name, follow in followed().items():
            if name in sys.modules:
                follow(sys.modules[name])
        multiprocessing.spawn.get_preparation_data = _with_compat


def _forget_a_failed_import() -> None:
    """Forget a failed ``import dgl`` (in a cell of a notebook), so that the next one starts again.

    Python has removed the package from ``sys.modules``, but not its imported submodules, which would not become
    attributes of the new package.
    """
    if "dgl" not in sys.modules:
        for name in [name for name in sys.modules if name.startswith("dgl.")]:
            del sys.modules[name]
        importlib.invalidate_caches()


def _choose_the_backend() -> None:
    """Choose PyTorch if the user has chosen no backend.

    DGL would write its choice to the home directory, which may be read-only. Other processes could read the file before
    it is complete.
    """
    folder = os.environ.get("DGLDEFAULTDIR") or os.path.join(os.path.expanduser("~"), ".dgl")
    if not os.path.exists(os.path.join(folder, "config.json")):
        os.environ.setdefault("DGLBACKEND", "pytorch")


def _with_compat(name: str) -> dict[str, object]:
    """Return the data that ``multiprocessing`` sends to a new process, with this package's activation."""
    return {__name__: _ACTIVATE, **_preparation_data(name)}


class _ActivateWhenUnpickled:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return activate, ()


_ACTIVATE = _ActivateWhenUnpickled()

activate()
