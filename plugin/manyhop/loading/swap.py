"""Replace a library's classes by an adapter's, for code that cannot be changed or for a script to run."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import multiprocessing.spawn
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from manyhop.memory.places import LOADER_PLACES

Namespace = dict[str, Any]


class Swap:
    """Names of a library that refer to an adapter's classes while it is installed.

    Names outside of module namespaces (attributes of classes, default arguments) are unchanged. So are base classes of
    existing classes, and the names of these bases in their modules.

    Args:
        package: the adapter, which has a function ``install``.
        library: the library's package.
        pairs: objects of the library and their replacements.
        skip: modules of the library that are not changed.
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
        """Replace all names, in this process and in those that ``multiprocessing`` starts from it.

        Call it again for modules imported later.
        """
        with self._lock:
            for name, namespace in self._modules():
                if name not in self._skip:
                    self._replace(name, namespace)
            self._installed = True
            if self._before is None:  # otherwise it is still installed, wrapped by other code
                self._before = multiprocessing.spawn.get_preparation_data
                self._hook: Any = self._preparation_data
                multiprocessing.spawn.get_preparation_data = self._hook

    def uninstall(self) -> None:
        """Restore the names that ``install`` has replaced, and all names of the library.

        Other modules that imported a name in between keep the adapter's class.
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
        """Return the first data that ``multiprocessing`` sends to a process; unpickling them installs the adapter."""
        data: dict[str, Any] = self._before(name)
        return data | {self._package: _InstallWhenUnpickled(self._package)} if self._installed else data


class _InstallWhenUnpickled:
    def __init__(self, package: str) -> None:
        self._package = package

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _install, (self._package,)


def _install(package: str) -> None:
    importlib.import_module(package).install()


def run_as_main(package: str, library: str, install: Callable[[], None], file: str) -> None:
    """Run the script or module of the command line; exit like ``python``.

    ``file`` is the ``__main__`` of the adapter (``package``), which is removed from tracebacks.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}",
        usage=f"python -m {package} SCRIPT [ARGS...]\n       python -m {package} -m MODULE [ARGS...]\n"
        f"       python -m {package} --placement PLACE SCRIPT | -m MODULE [ARGS...]",
        description=f"Run a script or a module in which {library}'s loaders are manyhop's.",
        allow_abbrev=False,
    )
    help = "placement of loaders on GPUs that name none (MANYHOP_PLACEMENT)"
    parser.add_argument("--placement", metavar="PLACE", choices=LOADER_PLACES, help=help)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.argv = (options.module or []) + options.script  # after "--", arguments of a module are in `script`
    if not sys.argv:
        parser.error("Expected a script, or -m and a module, got none.")
    name = sys.argv[0]
    if options.module and not _is_there(name):
        parser.exit(1, f"{sys.executable}: No module named {name}\n")
    if not options.module and not os.path.exists(name):
        parser.error(f"can't open file '{os.path.abspath(name)}': no such file")
    if options.placement is not None:
        os.environ["MANYHOP_PLACEMENT"] = options.placement  # also for processes that the script starts
    install()
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{package}: {library}'s loaders and samplers in {name} are replaced by manyhop's.\n")
    sys.excepthook = partial(_excepthook, frozenset({__file__, file}))
    if options.module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    if os.path.isfile(name) and not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(name))
    runpy.run_path(name, run_name="__main__")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False


def _excepthook(
    ours: frozenset[str], kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print a traceback without the frames between the command and the script."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename not in ours and frame.f_globals.get("__name__") != "runpy":
            break
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)
