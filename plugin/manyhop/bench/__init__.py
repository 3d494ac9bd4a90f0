"""``manyhop bench``: how fast manyhop is on this machine, side by side with what else is installed."""

from __future__ import annotations

import os
from importlib import import_module

from manyhop.errors import MissingExtraError

__all__ = ["cpu_main", "dgl_main", "exchange_main", "gpu_main", "ranks_main"]


def cpu_main(argv: list[str]) -> int:
    """``manyhop bench cpu``: prints tables to stdout, and saves them with a plot if asked; returns the exit status.

    Sets ``OMP_NUM_THREADS=1`` and ``OMP_WAIT_POLICY=PASSIVE`` for this process: all loaders are measured with the
    threads that a row of the table names, and OpenMP's idle threads take no time from them.
    """
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")  # before torch is imported, which reads them
    from manyhop.bench._cpu import main

    return main(argv)


def dgl_main(argv: list[str]) -> int:
    """``manyhop bench dgl``: prints tables to stdout, and saves them if asked; returns the exit status.

    Raises:
        MissingExtraError: DGL is not installed.
    """
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")  # as in cpu_main
    import_module("manyhop_dgl")  # lets DGL be imported on this torch
    try:
        main = import_module("manyhop_dgl._bench").main
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "dgl":
            raise
        raise MissingExtraError("dgl", "dgl", "manyhop bench dgl") from None
    return int(main(argv))


def ranks_main(argv: list[str]) -> int:
    """``manyhop bench ranks``: prints a table to stdout, and saves it if asked; returns the exit status."""
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")  # ranks inherit them
    from manyhop.bench._ranks import main

    return main(argv)


def gpu_main(argv: list[str]) -> int:
    """``manyhop bench gpu``: prints tables to stdout, and saves them if asked; returns the exit status."""
    from manyhop.bench._gpu import main

    return main(argv)


def exchange_main(argv: list[str]) -> int:
    """``manyhop bench exchange``: prints a table to stdout, and saves it if asked; returns the exit status."""
    from manyhop.bench._exchange import main

    return main(argv)
