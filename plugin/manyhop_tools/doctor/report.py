"""The report of ``manyhop doctor``: versions, hardware, missing packages, compiled kernels."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import manyhop
from manyhop.hints import pip_install
from manyhop.system.finding import installed_version
from manyhop.system.memory import available_memory
from manyhop.system.threads import available_cores
from manyhop.system.units import in_units
from manyhop_tools.doctor import gpu
from manyhop_tools.doctor.gpu import Diagnosis, State, Versions, version_in

_MARKS: dict[State, str] = {"ok": "ok", "missing": "--", "broken": "!!"}


@dataclass(frozen=True)
class Report:
    """All findings; ``str`` shows them as a table."""

    findings: tuple[Diagnosis, ...]

    @property
    def healthy(self) -> bool:
        """Return whether nothing is broken."""
        return all(finding.state != "broken" for finding in self.findings)

    def __str__(self) -> str:
        width = max(len(finding.topic) for finding in self.findings)
        lines = [f"{_MARKS[f.state]}  {f.topic:{width}}  {f.text}" for f in self.findings]
        verdict = "manyhop can work here." if self.healthy else "manyhop cannot work here: see the lines with !! above."
        return "\n".join([*lines, verdict])


class _Package(NamedTuple):
    """A package that manyhop needs or can use."""

    topic: str
    module: str | None
    """Module to import as a check; ``None``: none."""
    distributions: tuple[str, ...]
    """Names it may have on the package index; the first found counts."""
    versions: Versions | None
    advice: str
    """Remedy if it is missing."""
    essential: bool = False


_PEER = "not needed; `manyhop bench` compares with it"
_PACKAGES = (
    _Package("torch", "torch", ("torch",), ((2, 6), (2, 15)), "pip install 'torch>=2.6'", essential=True),
    _Package("numpy", "numpy", ("numpy",), ((2, 0), (2, 5)), "pip install 'numpy>=2.0'", essential=True),
    _Package("numba", "numba", ("numba",), ((0, 61), (0, 68)), "pip install 'numba>=0.61'", essential=True),
    _Package("PyG", "torch_geometric", ("torch_geometric", "torch-geometric"), ((2, 6), (2, 8)),
             f"for PyG: {pip_install('pyg')}"),
    # On a current torch it is imported after its adapter only, which is no part of the engine.
    _Package("DGL", None, ("dgl",), ((2, 1), (2, 4)), f"for DGL: {pip_install('dgl')}"),
    _Package("matplotlib", "matplotlib", ("matplotlib",), None, f"for timelines as pictures: {pip_install('bench')}"),
    _Package("pyarrow", "pyarrow", ("pyarrow",), None, f"for Parquet and CSV files: {pip_install('files')}"),
    _Package("pyg-lib", None, ("pyg-lib", "pyg_lib"), None, _PEER),
    _Package("torch-sparse", None, ("torch-sparse", "torch_sparse"), None, _PEER),
)  # fmt: skip


def examine() -> Report:
    """Examine this machine and the installed packages. If there is a GPU, a small kernel is compiled for it."""
    own = Diagnosis("manyhop", "ok", f"{manyhop.__version__} ({Path(manyhop.__file__).parent})")
    python = Diagnosis("python", "ok", f"{platform.python_version()} ({sys.executable})")
    packages = [_package(package) for package in _PACKAGES]
    broken = {finding.topic for finding in packages if finding.state == "broken"}
    kernels = [] if "numba" in broken else [compiled_kernels()]
    cores = Diagnosis("cores", "ok", f"{available_cores()} usable of {os.cpu_count()} ({platform.machine()})")
    free = available_memory()
    memory = Diagnosis("memory", "ok", "unknown" if free is None else f"{in_units(free)} free")
    gpus = [] if "torch" in broken else gpu.findings(gpu.look())
    return Report((own, python, *packages, *kernels, cores, memory, *gpus))


def _package(package: _Package) -> Diagnosis:
    version = installed_version(package.distributions)
    if version is None:
        state: State = "broken" if package.essential else "missing"
        return Diagnosis(package.topic, state, f"not installed; {package.advice}")
    error = None if package.module is None else gpu.error_of(partial(importlib.import_module, package.module))
    if error is not None:
        return Diagnosis(package.topic, "broken", f"{version}, but 'import {package.module}' fails: {error}")
    if package.versions is not None:
        return version_in(package.topic, version, package.versions, package.advice)
    return Diagnosis(package.topic, "ok", version)


KERNEL_MODULES = (
    "manyhop_embedding.cpu_kernels",
    "manyhop.features.cpu_kernels",
    "manyhop.features.cpu_lookup",
    "manyhop.graph.column_kernels",
    "manyhop.sampling.cpu.kernels.hgt",
    "manyhop.sampling.cpu.kernels.hop",
    "manyhop.sampling.cpu.kernels.induced",
    "manyhop.sampling.cpu.kernels.labor",
    "manyhop.sampling.cpu.kernels.walks",
    "manyhop.sampling.cpu.kernels.random",
    "manyhop.system.paging",
)


def compiled_kernels() -> Diagnosis:
    """Return where numba keeps the compiled kernels, and how many it has there."""
    from numba.core.caching import CompileResultCacheImpl

    folders: set[Path] = set()
    for module in KERNEL_MODULES:
        # numba finds the folder for a function from the file that the function is defined in.
        source = Path(manyhop.__file__).parents[1] / f"{module.replace('.', '/')}.py"
        try:
            function = eval(compile("lambda: None", source, "eval"))
            folders.add(Path(CompileResultCacheImpl(function).locator.get_cache_path()))
        except RuntimeError as error:  # no folder can be written to
            return Diagnosis("kernels", "ok", f"compiled again by every process: {error}")
    count = sum(1 for folder in folders for _ in folder.glob("*.nbi"))
    compiled = f"{count} compiled functions" if count else "not compiled yet, which the first use does in some seconds"
    return Diagnosis("kernels", "ok", f"{compiled}; cache: {os.path.commonpath(folders)}")
