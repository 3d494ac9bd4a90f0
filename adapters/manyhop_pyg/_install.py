"""Put manyhop's loaders and samplers where PyG's are, for code that is not to be changed."""

from __future__ import annotations

import multiprocessing.spawn
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch_geometric.loader
import torch_geometric.sampler

from manyhop_pyg._hgt import HGTLoader, HGTSampler
from manyhop_pyg._link_loader import LinkLoader, LinkNeighborLoader
from manyhop_pyg._node_loader import NeighborLoader, NodeLoader
from manyhop_pyg._sampler import NeighborSampler

Namespace = dict[str, Any]

_PAIRS: list[tuple[type, type]] = [
    (torch_geometric.loader.NodeLoader, NodeLoader),
    (torch_geometric.loader.NeighborLoader, NeighborLoader),
    (torch_geometric.loader.LinkLoader, LinkLoader),
    (torch_geometric.loader.LinkNeighborLoader, LinkNeighborLoader),
    (torch_geometric.loader.HGTLoader, HGTLoader),
    (torch_geometric.sampler.NeighborSampler, NeighborSampler),
    (torch_geometric.sampler.HGTSampler, HGTSampler),
]
_OURS = {id(theirs): ours for theirs, ours in _PAIRS}
_THEIRS = {id(ours): theirs for theirs, ours in _PAIRS}

# It only asks whether a loader is PyG's, which ours are, too, and so are those of classes derived from PyG's before.
_ONLY_ASKS = "torch_geometric.nn.models.basic_gnn"

_lock = threading.Lock()
_replaced: list[tuple[Namespace, str]] = []
_preparation_data = multiprocessing.spawn.get_preparation_data
_installed = False
_hooked = False  # stays so after uninstall() where somebody has wrapped our hook


def install() -> None:
    """Let PyG's names mean manyhop's classes, in this process and in those that ``multiprocessing`` starts from it.

    Replaced are NodeLoader, NeighborLoader, LinkLoader, LinkNeighborLoader and HGTLoader in
    ``torch_geometric.loader``, NeighborSampler and HGTSampler in ``torch_geometric.sampler``, and what modules have
    already imported of them. Names that are not in a module's namespace (attributes of classes, default arguments) stay
    as they are, and so do the base classes of existing classes and the names of these bases in their modules. Can be
    called again, for what has been imported since.
    """
    global _installed, _hooked
    with _lock:
        for name, namespace in _modules():
            if name != _ONLY_ASKS:
                _replace(name, namespace)
        _installed = True
        if not _hooked:
            multiprocessing.spawn.get_preparation_data = _with_install
            _hooked = True


def uninstall() -> None:
    """Put PyG's classes back where ``install`` found them, and in all of PyG. Without ``install``: nothing happens.

    Modules that took the names while they meant manyhop's keep these.
    """
    global _installed, _hooked
    with _lock:
        if not _installed:
            return
        for namespace, name in _replaced:
            _restore(namespace, name)
        _replaced.clear()
        for name, namespace in _modules():
            if name.partition(".")[0] == "torch_geometric":
                for attribute in list(namespace):
                    _restore(namespace, attribute)
        _installed = False
        if multiprocessing.spawn.get_preparation_data is _with_install:
            multiprocessing.spawn.get_preparation_data = _preparation_data
            _hooked = False


def _modules() -> Iterator[tuple[str, Namespace]]:
    for name, module in list(sys.modules.items()):
        namespace = getattr(module, "__dict__", None)
        if type(namespace) is dict and name.partition(".")[0] != "manyhop_pyg":
            yield name, namespace


def _replace(module: str, namespace: Namespace) -> None:
    values = list(namespace.items())
    found = [(k, v) for k, v in values if id(v) in _OURS]
    if not found:
        return
    # `Base.__init__(self, ...)` in a class of this module means the base that the class has.
    classes = [v for _, v in values if issubclass(type(v), type)]  # isinstance would ask the object itself
    bases = {id(base) for cls in classes if cls.__module__ == module for base in cls.__bases__}
    for name, theirs in found:
        if id(theirs) not in bases or theirs.__module__ == module:
            namespace[name] = _OURS[id(theirs)]
            _replaced.append((namespace, name))


def _restore(namespace: Namespace, name: str) -> None:
    theirs = _THEIRS.get(id(namespace.get(name)))
    if theirs is not None:
        namespace[name] = theirs


def _with_install(name: str) -> dict[str, Any]:
    """What ``multiprocessing`` sends to a new process first; unpickling it installs manyhop there."""
    data = _preparation_data(name)
    return data | {"manyhop_pyg": _InstallWhenUnpickled()} if _installed else data


class _InstallWhenUnpickled:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return install, ()
