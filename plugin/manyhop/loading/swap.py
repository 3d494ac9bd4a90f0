"""Put an adapter's classes where those of a library are, for code that is not to be changed."""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Namespace = dict[str, Any]


class Swap:
    """The names of a library, which mean an adapter's classes while it is installed.

    Names that are not in a module's namespace (attributes of classes, default arguments) stay as they are, and so do
    the base classes of existing classes and the names of these bases in their modules.

    Args:
        package: the adapter, which has a function ``install``.
        library: the library's package.
        pairs: what the library has, and what the adapter has in its place.
        skip: modules of the library to be left alone.
    """

    def __init__(self, package: str, library: str, pairs: Sequence[tuple[Any, Any]], skip: Sequence[str] = ()) -> None:
        self._package, self._library, self._skip = package, library, frozenset(skip)
        self._ours = {id(theirs): ours for theirs, ours in pairs}
        self._theirs = {id(ours): theirs for theirs, ours in pairs}
        self._lock = threading.Lock()
        self._replaced: list[tuple[Namespace, str]] = []
        self._installed = False
        self._before: Any = None

    def install(self) -> None:
        """Replace what there is, in this process and in those that ``multiprocessing`` starts from it.

        Can be called again, for what has been imported since.
        """
        with self._lock:
            for name, namespace in self._modules():
                if name not in self._skip:
                    self._replace(name, namespace)
            self._installed = True
            if self._before is None:  # else it is there still, as somebody has wrapped it
                self._before = multiprocessing.spawn.get_preparation_data
                self._hook: Any = self._preparation_data
                multiprocessing.spawn.get_preparation_data = self._hook

    def uninstall(self) -> None:
        """Put the library's classes back where ``install`` found them, and in all of the library.

        Modules that took the names while they meant the adapter's keep these.
        """
        with self._lock:
            if not self._installed:
                return
            for namespace, name in self._replaced:
                self._restore(namespace, name)
            self._replaced.clear()
            for name, namespace in self._modules():
                if name.partition(".")[0] == self._library:
                    for attribute in list(namespace):
                        self._restore(namespace, attribute)
            self._installed = False
            if self._before is not None and multiprocessing.spawn.get_preparation_data is self._hook:
                multiprocessing.spawn.get_preparation_data = self._before
                self._before = None

    def _modules(self) -> Iterator[tuple[str, Namespace]]:
        for name, module in list(sys.modules.items()):
            namespace = getattr(module, "__dict__", None)
            if type(namespace) is dict and name.partition(".")[0] != self._package:
                yield name, namespace

    def _replace(self, module: str, namespace: Namespace) -> None:
        values = list(namespace.items())
        found = [(k, v) for k, v in values if id(v) in self._ours]
        if not found:
            return
        # `Base.__init__(self, ...)` in a class of this module means the base that the class has.
        classes = [v for _, v in values if issubclass(type(v), type)]  # isinstance would ask the object itself
        bases = {id(base) for cls in classes if cls.__module__ == module for base in cls.__bases__}
        for name, theirs in found:
            if id(theirs) not in bases or theirs.__module__ == module:
                namespace[name] = self._ours[id(theirs)]
                self._replaced.append((namespace, name))

    def _restore(self, namespace: Namespace, name: str) -> None:
        theirs = self._theirs.get(id(namespace.get(name)))
        if theirs is not None:
            namespace[name] = theirs

    def _preparation_data(self, name: str) -> dict[str, Any]:
        """What ``multiprocessing`` sends to a new process first; unpickling it installs the adapter there."""
        data: dict[str, Any] = self._before(name)
        return data | {self._package: _InstallWhenUnpickled(self._package)} if self._installed else data


class _InstallWhenUnpickled:
    def __init__(self, package: str) -> None:
        self._package = package

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _install, (self._package,)


def _install(package: str) -> None:
    importlib.import_module(package).install()
