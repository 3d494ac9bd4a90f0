"""Run a user's script or module as ``python`` would, with an adapter installed: ``python -m ADAPTER train.py ARGS``."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType

from manyhop.memory.places import LOADER_PLACES


def run_as_main(package: str, library: str, install: Callable[[], None], file: str) -> None:
    """Run what the command line names; exits as that does.

    Args:
        package: the adapter's name.
        library: the library's name, for the help.
        install: called before the script runs.
        file: the adapter's ``__main__``, which tracebacks leave out.
    """
    usage = (
        f"usage: python -m {package} SCRIPT [ARGS...]\n       python -m {package} -m MODULE [ARGS...]\n"
        f"       python -m {package} --placement PLACE SCRIPT | -m MODULE [ARGS...]\n"
    )
    args = sys.argv[1:]
    if args and args[0] in ("-h", "--help"):
        print(
            f"{usage}\nRun a script or a module in which {library}'s loaders are manyhop's. PLACE is the placement of "
            "loaders on GPUs that name none (MANYHOP_PLACEMENT)."
        )
        return
    if len(args) > 1 and args[0] == "--placement":
        if args[1] not in LOADER_PLACES:
            sys.stderr.write(f"Expected --placement to be one of {list(LOADER_PLACES)}, got {args[1]!r}.\n")
            sys.exit(2)
        os.environ["MANYHOP_PLACEMENT"] = args[1]  # also for processes that the script starts
        args = args[2:]
    as_module = bool(args) and args[0] == "-m"
    if as_module:
        args = args[1:]
    if not args or (args[0].startswith("-") and not as_module):
        sys.stderr.write(usage)
        sys.exit(2)
    sys.argv = args
    if as_module:
        _check_module(args[0])
    else:
        _check_script(args[0])
    install()
    sys.excepthook = partial(_excepthook, frozenset({__file__, file}))
    if as_module:
        runpy.run_module(args[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(args[0], run_name="__main__")


def _check_script(path: str) -> None:
    if not os.path.exists(path):
        sys.stderr.write(f"{sys.executable}: can't open file '{os.path.abspath(path)}': no such file\n")
        sys.exit(2)
    if os.path.isfile(path) and not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        sys.stderr.write(f"{sys.executable}: No module named {name}\n")
        sys.exit(1)


def _excepthook(
    ours: frozenset[str], kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Python's own, less the frames between the command and the script."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename not in ours and frame.f_globals.get("__name__") != "runpy":
            break
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)
