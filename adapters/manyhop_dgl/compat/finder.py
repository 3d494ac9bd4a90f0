"""What Python is given for two modules of DGL that need a C++ library built for this torch, and for old torchdata."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from manyhop.hints import pip_install
from manyhop_dgl.torch_graphs import dispatch

_INSTEAD = {
    "dgl.graphbolt": "Use manyhop_dgl.graphbolt in its place: import manyhop_dgl.graphbolt as gb",
    "dgl.sparse": (
        "g.adj_external() and g.adj_tensors('csr') give adjacency matrices without it, DGL's message passing "
        "(g.update_all, dgl.ops) and torch.sparse multiply with them"
    ),
}
_reasons: dict[str, str] = {}


def unavailable() -> dict[str, str]:
    """The modules of DGL that cannot work with this torch, each with the reason; empty where all of them can.

    ``dgl.graphbolt`` and ``dgl.sparse`` are the candidates. What has been imported is known; of the rest it is said
    whether DGL has a library for this torch.
    """
    if importlib.util.find_spec("dgl") is None:
        return {"dgl": f"DGL is not installed: {pip_install('dgl')}"}
    return {name: reason for name in _INSTEAD if (reason := _reasons.get(name) or _no_library(name))}


class Finder(MetaPathFinder):
    """Finds ``dgl.graphbolt`` and ``dgl.sparse`` where Python would, and loads them so that a failure is no end.

    What is done to other modules once they have been imported is in ``FOLLOWED``. Modules of torchdata that are not
    there any more are served from torch.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of one of these modules; ``None`` for any other."""
        if name.startswith("torchdata."):
            return _torchdata_spec(name, path, target)
        if name not in _INSTEAD and name not in FOLLOWED:
            package = name.rpartition(".")[0]
            while package:
                if package in _reasons:
                    beneath = PathFinder.find_spec(name, path, target) is not None
                    raise ImportError(_message(package, name, beneath=beneath), name=name)
                package = package.rpartition(".")[0]
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Attempt(spec.loader) if name in _INSTEAD else _Followed(spec.loader, FOLLOWED[name])
        return spec


def _torchdata_spec(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    from manyhop_dgl.compat.torchdata import spec_of

    return None if PathFinder.find_spec(name, path, target) is not None else spec_of(name)


class _Followed(Loader):
    """Loads a module, and does something to it."""

    def __init__(self, real: Loader, follow: Callable[[Any], None]) -> None:
        self._real, self._follow = real, follow

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._follow(module)


def follow_seed(module: Any) -> None:
    """Let ``dgl.seed(n)`` seed what this package draws, too.

    Args:
        module: ``dgl.random``, whose ``seed`` calls ``_CAPI_SetSeed``: references to it taken before follow, too.
    """
    set_seed = module._CAPI_SetSeed

    def set_both(val: int) -> None:
        from manyhop_dgl.samplers.seeding import seed

        set_seed(val)
        seed(val)

    module._CAPI_SetSeed = set_both


FOLLOWED: dict[str, Callable[[Any], None]] = {
    "dgl.random": follow_seed,
    "dgl.heterograph_index": dispatch.follow_index,
    "dgl.backend.pytorch.sparse": dispatch.follow_kernels,
    "dgl.frame": dispatch.follow_frame,
    "dgl.subgraph": dispatch.follow_subgraph,
    "dgl.transforms.to_block": dispatch.follow_to_block,
}
"""Modules of DGL -> what is done to them once they have been imported."""


class _Attempt(Loader):
    """Loads the real module; where its library is missing or refused, says so, or loads the stand-in."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        reason = _no_library(name)
        if reason is None:
            before = set(sys.modules)
            try:
                self._real.exec_module(module)
                return
            except (ImportError, OSError) as error:
                reason = f"{type(error).__name__}: {error}"
                for other in set(sys.modules) - before:
                    if other.startswith(name + "."):
                        del sys.modules[other]
        _reasons[name] = reason
        if name != "dgl.graphbolt":
            raise ImportError(_message(name, name), name=name)
        _stand_in(module)


def _stand_in(module: ModuleType) -> None:
    """Fill ``dgl.graphbolt`` with what the rest of DGL uses of it, and an error for everything else."""
    from manyhop_dgl.compat import graphbolt as stand_in

    for attribute in [name for name in vars(module) if not name.startswith("__")]:
        delattr(module, attribute)
    vars(module).update({name: getattr(stand_in, name) for name in stand_in.__all__})

    def missing(attribute: str) -> object:
        what = f"{module.__name__}.{attribute}"
        raise AttributeError(_message(module.__name__, what), name=attribute, obj=module)

    module.__doc__ = stand_in.__doc__
    module.__file__ = stand_in.__file__  # "cannot import name ... from 'dgl.graphbolt' (this file)"
    vars(module)["__getattr__"] = missing


def _message(package: str, what: str, *, beneath: bool = False) -> str:
    """Why something is not available, and what to use instead; ``beneath``: it is a module of the package."""
    instead = _INSTEAD[package]
    if package == "dgl.graphbolt" and beneath:
        instead += ", and take names from that: it has no modules beneath it"
    elif package == "dgl.graphbolt" and what != package:
        instead = _in_place_of(what.rpartition(".")[2])
    return f"{what} is not available: {_reasons[package]}. {instead}."


def _in_place_of(name: str) -> str:
    """Return what to use in place of a name of ``dgl.graphbolt``."""
    if name.startswith("__"):  # which tools ask every module for
        return _INSTEAD["dgl.graphbolt"]
    from manyhop_dgl import graphbolt

    if hasattr(graphbolt, name):
        return _INSTEAD["dgl.graphbolt"]
    return (
        f"manyhop_dgl.graphbolt, which stands in for it, has no {name} either. The table 'What is there' in "
        "docs/graphbolt.md says what it has in place of GraphBolt's names"
    )


def _no_library(name: str) -> str | None:
    """Why no build of the module's C++ library is for this torch; ``None`` if there is one."""
    stem = {"dgl.graphbolt": "graphbolt_pytorch", "dgl.sparse": "dgl_sparse_pytorch"}[name]
    pattern = re.compile(rf"(?:lib)?{stem}_([0-9][^+]*)\.(?:so|dylib|dll)")
    folder = {"dgl.graphbolt": "graphbolt", "dgl.sparse": "dgl_sparse"}[name]
    spec = importlib.util.find_spec("dgl")
    places = [*(spec.submodule_search_locations or [] if spec else [])]
    for variable in ("DGL_LIBRARY_PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        places += [place for place in os.environ.get(variable, "").split(os.pathsep) if place]
    found = {
        match[1]
        for place in places
        for file in (Path(place) / folder).glob(f"*{stem}_*")
        if (match := pattern.fullmatch(file.name))
    }
    version = torch.__version__.partition("+")[0]
    if version in found:
        return None
    builds = ", ".join(sorted(found)) or "no version"
    return f"the C++ library of {name} has no build for torch {version} (this DGL brings builds for {builds})"
