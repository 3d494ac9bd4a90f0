"""What ``manyhop compile`` does."""

from __future__ import annotations

import time
from importlib import import_module

MODULES = (
    "manyhop.embedding.cpu_kernels",
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


def compile_all() -> str:
    """Compile, or load, the CPU kernels of the engine; returns a line about them."""
    from manyhop.doctor.report import compiled_kernels
    from manyhop.system.numba_kernels import KERNELS, prepare

    begin = time.perf_counter()
    for name in MODULES:
        import_module(name)
    prepare(*KERNELS)
    seconds = time.perf_counter() - begin
    return (
        f"{len(KERNELS)} CPU kernels are ready ({seconds:.1f} s); cache: {compiled_kernels().text}. "
        "GPU kernels: at first use."
    )
