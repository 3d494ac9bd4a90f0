"""The report of ``manyhop doctor``: versions, hardware, missing packages, compiled kernels."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import manyhop
from manyhop.hints import pip_install
from manyhop.system.finding import installed_version
from manyhop.system.memory import available_memory
from manyhop.system.threads import available_cores
from manyhop_tools.doctor import gpu
from manyhop_tools.doctor.gpu import Diagnosis, State, Versions, version_in

_MARKS: dict[State, str] = {"ok": "ok", "missing": "--", "broken": "!!"}


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class _Package:
    """A package that manyhop needs or can use."""

    topic: str
    module: str | None
    """Module to import as a check; ``None``: none."""
    distributions: tuple[str, ...]
    """Names it may have on the package index; the first found counts."""
    versions: Versions | None = None
    essential: bool = False
    advice: str = ""
    """Remedy if it is missing."""


_PACKAGES = (
    _Package(topic="torch", module="torch", distributions=("torch",), versions=((2, 6), (2, 15)), essential=True,
             advice="pip install 'torch>=2.6'"),
    _Package(topic="numpy", module="numpy", distributions=("numpy",), versions=((2, 0), (2, 5)), essential=True,
             advice="pip install 'numpy>=2.0'"),
    _Package(topic="numba", module="numba", distributions=("numba",), versions=((0, 61), (0, 68)), essential=True,
             advice="pip install 'numba>=0.61'"),
    _Package(topic="PyG", module="torch_geometric", distributions=("torch_geometric", "torch-geometric"),
             versions=((2, 6), (2, 8)), advice=f"for PyG: {pip_install('pyg')}"),
    # On a current torch it is imported after its adapter only, which is no part of the engine.
    _Package(topic="DGL", module=None, distributions=("dgl",), versions=((2, 1), (2, 4)),
             advice=f"for DGL: {pip_install('dgl')}"),
    _Package(topic="matplotlib", module="matplotlib", distributions=("matplotlib",),
             advice=f"for timelines as pictures: {pip_install('bench')}"),
    _Package(topic="pyarrow", module="pyarrow", distributions=("pyarrow",),
             advice=f"for Parquet and CSV files: {pip_install('files')}"),
)  # fmt: skip
# Optional samplers, for comparisons.
_PEERS = {"pyg-lib": ("pyg-lib", "pyg_lib"), "torch-sparse": ("torch-sparse", "torch_sparse")}


def examine() -> Report:
    """Examine this machine and the installed packages. If there is a GPU, a small kernel is compiled for it."""
    python = Diagnosis(topic="python", state="ok", text=f"{platform.python_version()} ({sys.executable})")
    packages = [_package(package) for package in _PACKAGES]
    broken = {finding.topic for finding in packages if finding.state == "broken"}
    others = [
        _other(topic, names, "installed; manyhop does not need it", "not needed") for topic, names in _PEERS.items()
    ]
    own = Diagnosis(topic="manyhop", state="ok", text=f"{manyhop.__version__} ({Path(manyhop.__file__).parent})")
    gpus = [] if "torch" in broken else gpu.findings(gpu.look())
    kernels = [] if "numba" in broken else [compiled_kernels()]
    return Report(findings=(own, python, *packages, *kernels, _cores(), _memory(), *gpus, *others))


def _package(package: _Package) -> Diagnosis:
    def finding(state: State, text: str) -> Diagnosis:
        return Diagnosis(topic=package.topic, state=state, text=text)

    version = installed_version(package.distributions)
    if version is None:
        return finding("broken" if package.essential else "missing", f"not installed; {package.advice}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages
            if package.module is not None:
                importlib.import_module(package.module)
    except Exception as error:  # of a broken package
        return finding("broken", f"{version}, but 'import {package.module}' fails: {error!r}")
    if package.versions is not None:
        return version_in(package.topic, version, package.versions, package.advice)
    return finding("ok", version)


def _other(topic: str, distributions: tuple[str, ...], present: str, absent: str) -> Diagnosis:
    version = installed_version(distributions)
    if version is None:
        return Diagnosis(topic=topic, state="missing", text=f"not installed ({absent})")
    return Diagnosis(topic=topic, state="ok", text=f"{version} ({present})")


def _cores() -> Diagnosis:
    text = f"{available_cores()} usable of {os.cpu_count()} ({platform.machine()})"
    return Diagnosis(topic="cores", state="ok", text=text)


def _memory() -> Diagnosis:
    free = available_memory()
    return Diagnosis(topic="memory", state="ok", text="unknown" if free is None else f"{free / 2**30:.1f} GiB free")


KERNEL_PACKAGES = (
    "manyhop.features",
    "manyhop.graph",
    "manyhop.sampling.cpu.kernels",
    "manyhop.system",
    "manyhop_embedding",
)


def compiled_kernels() -> Diagnosis:
    """Return where numba keeps the compiled kernels, and how many it has there."""
    from numba.core.caching import CompileResultCacheImpl

    folders: list[Path] = []
    for package in KERNEL_PACKAGES:
        # numba finds the folder for a function from the file that the function is defined in.
        top, _, inside = package.partition(".")
        source = Path(manyhop.__file__).parents[1] / top / inside.replace(".", "/") / "__init__.py"
        try:
            function = eval(compile("lambda: None", source, "eval"))
            folders.append(Path(CompileResultCacheImpl(function).locator.get_cache_path()))
        except RuntimeError as error:  # no folder can be written to
            return Diagnosis(topic="kernels", state="ok", text=f"compiled again by every process: {error}")
    count = sum(1 for folder in folders for _ in folder.glob("*.nbi"))
    compiled = f"{count} compiled functions" if count else "not compiled yet, which the first use does in some seconds"
    return Diagnosis(topic="kernels", state="ok", text=f"{compiled}; cache: {os.path.commonpath(folders)}")
