"""``manyhop compile``."""

from __future__ import annotations

import argparse
import time
from importlib import import_module

from manyhop_tools.cli.verbs import Verbs, add_verb

MODULES = (
    "manyhop_embedding.cpu_kernels",
    "manyhop.features.exchange.cpu_kernels",
    "manyhop.features.gathering.cpu_kernels",
    "manyhop.features.hot.cpu_kernels",
    "manyhop.graph.column_kernels",
    "manyhop.sampling.cpu.kernels.columns",
    "manyhop.sampling.cpu.kernels.hgt",
    "manyhop.sampling.cpu.kernels.hgt_edges",
    "manyhop.sampling.cpu.kernels.hop",
    "manyhop.sampling.cpu.kernels.induced",
    "manyhop.sampling.cpu.kernels.labor",
    "manyhop.sampling.cpu.kernels.page_rank",
    "manyhop.sampling.cpu.kernels.permute",
    "manyhop.sampling.cpu.kernels.walks",
    "manyhop.system.paging",
)


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
    from manyhop.system.numba_kernels import KERNELS, prepare
    from manyhop_tools.doctor.report import compiled_kernels

    begin = time.perf_counter()
    for name in MODULES:
        import_module(name)
    prepare(*KERNELS)
    seconds = time.perf_counter() - begin
    print(
        f"{len(KERNELS)} CPU kernels are ready ({seconds:.1f} s); cache: {compiled_kernels().text}. "
        "GPU kernels: at first use."
    )
    return 0
