"""``manyhop compile``."""

from __future__ import annotations

import argparse

from manyhop.cli.verbs import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Add the verb and its arguments."""
    add_verb(
        verbs,
        "compile",
        _run,
        help="compile all CPU kernels now, for images and CI",
        description="Compiles all CPU kernels that are not compiled yet, into numba's cache (NUMBA_CACHE_DIR "
        "for another folder). Kernels of GPUs are compiled when they are first used.",
    )


def _run(args: argparse.Namespace) -> int:
    from manyhop.cli.compile_kernels import compile_all

    print(compile_all())
    return 0
