"""Where a record of measurements was taken."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

from benchmarks.common.measure import Absent
from manyhop.system.threads import available_cores

PEERS: Mapping[str, str] = {
    "pyg-lib": "pyg_lib",
    "torch-sparse": "torch_sparse",
    "DGL": "dgl",
    "GraphBolt": "dgl.graphbolt:ItemSampler",
}
"""Peer -> module that has to be importable, and what has to be in it: ``manyhop_dgl`` lets DGL do without GraphBolt."""

_PACKAGES = (
    *("manyhop", "torch", "numpy", "numba", "torch_geometric", "pyg_lib", "torch_sparse", "dgl"),
    *("pylibwholegraph", "cugraph_pyg"),
)


def import_peers(peers: Mapping[str, str] = PEERS) -> tuple[dict[str, ModuleType], list[Absent]]:
    """Import what is there: name -> module, and the others with the reason why they are not."""
    modules, absent = {}, []
    if "DGL" in peers:
        with contextlib.suppress(ImportError):
            import_quietly("manyhop_dgl")  # lets DGL be imported on this torch
    for name, module in peers.items():
        try:
            path, _, attribute = module.partition(":")
            found = import_quietly(path)
            if attribute:
                getattr(found, attribute)
            modules[name] = found
        except Exception as error:  # a package built for another torch fails in many ways
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            absent.append(Absent(name=name, reason=reason))
    return modules, absent


def choose_for_pyg(modules: dict[str, ModuleType], absent: list[Absent]) -> None:
    """Leave PyG one library to sample with: pyg-lib where PyG finds it, otherwise torch-sparse.

    Args:
        modules: the peers that can be imported; loses those that PyG does not use here.
        absent: gets them, with the reason; where pyg-lib is among them, with how to get it.
    """
    with contextlib.suppress(ImportError):
        if not import_quietly("torch_geometric.typing").WITH_PYG_LIB and modules.pop("pyg-lib", None) is not None:
            absent.append(Absent(name="pyg-lib", reason="PyG does not use this build"))
    if "pyg-lib" in modules:
        if modules.pop("torch-sparse", None) is not None:
            absent.append(Absent(name="torch-sparse", reason="PyG prefers pyg-lib"))
        return
    url = f"https://data.pyg.org/whl/torch-{metadata.version('torch').partition('+')[0]}+cpu.html"
    for i, peer in enumerate(absent):
        if peer.name == "pyg-lib":
            absent[i] = replace(peer, reason=f"{peer.reason}. Get it by: pip install pyg-lib -f {url}")


def import_quietly(module: str) -> ModuleType:
    """Import a module; its warnings are not ours to show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def describe(argv: list[str]) -> list[tuple[str, str]]:
    """Date, machine, versions and command (``python tests/benchmarks`` and ``argv``), as (label, value)."""
    versions = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        version: str | None
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:  # builds for other hardware have other names
            version = getattr(sys.modules.get(package), "__version__", None)
        if version is not None:
            versions.append(f"{package} {version}")
    load = f"{os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else "unknown"
    return [
        ("Date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("Command", shlex.join(["python", "tests/benchmarks", *argv])),
        ("CPU", f"{_cpu_model()}, {available_cores()} cores; load average {load}"),
        ("Memory", f"{_total_memory() / 2**30:.0f} GiB"),
        ("System", platform.platform()),
        ("Versions", ", ".join(versions)),
        ("OpenMP", ", ".join(f"{k}={os.environ.get(k, 'unset')}" for k in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"))),
    ]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
