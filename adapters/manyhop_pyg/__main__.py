"""``python -m manyhop_pyg train.py ARGS`` or ``python -m manyhop_pyg -m package.module ARGS``.

Runs a script or a module as ``python`` would, after ``manyhop_pyg.install()``: PyG's loaders in it are manyhop's.
Processes that it starts through ``multiprocessing``, ``torch.multiprocessing.spawn`` included, have them as well; those
that are started as commands of their own need it in the command (``torchrun -m manyhop_pyg train.py``).
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from types import FrameType, TracebackType

from manyhop_pyg import install

_USAGE = "usage: python -m manyhop_pyg SCRIPT [ARGS...]\n       python -m manyhop_pyg -m MODULE [ARGS...]\n"


def main() -> None:
    """Run what the command line names; exits as that does."""
    args = sys.argv[1:]
    if args and args[0] in ("-h", "--help"):
        print(f"{_USAGE}\nRun a script or a module in which PyG's loaders are manyhop's.")
        return
    as_module = bool(args) and args[0] == "-m"
    if as_module:
        args = args[1:]
    if not args or (args[0].startswith("-") and not as_module):
        sys.stderr.write(_USAGE)
        sys.exit(2)
    sys.argv = args
    if as_module:
        _check_module(args[0])
    else:
        _check_script(args[0])
    install()
    sys.excepthook = _excepthook
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


def _excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Python's own, less the frames between the command and the script."""
    while traceback is not None and _is_ours(traceback.tb_frame):
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__ or frame.f_globals.get("__name__") == "runpy"


if __name__ == "__main__":
    main()
