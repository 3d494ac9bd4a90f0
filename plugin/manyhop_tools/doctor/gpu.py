"""GPUs in ``manyhop doctor``: facts (:func:`look`) and lines of the report (:func:`findings`)."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from manyhop.hints import pip_install
from manyhop.system import nvml
from manyhop.system.allocator import SETTING, VARIABLES
from manyhop.system.finding import installed_version, major_minor
from manyhop.system.triton_compiler import OLDEST as OLDEST_TRITON
from manyhop.system.units import in_units
from manyhop_cugraph import binding

if TYPE_CHECKING:
    from manyhop_tools.doctor.gpu_probe import Compiled

State = Literal["ok", "missing", "broken"]
Versions = tuple[tuple[int, int], tuple[int, int]]
"""The oldest version that works, and the newest that was tested: later ones are expected to work."""


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report."""

    topic: str
    state: State
    """``missing``: optional and not installed; ``broken``: unusable, or essential and not installed."""
    text: str
    """Finding, with a remedy if the state is not ``ok``."""


def version_in(topic: str, version: str, supported: Versions, advice: str) -> Diagnosis:
    """Return whether a version that is installed is supported."""
    low, high = (f"{major}.{minor}" for major, minor in supported)
    if major_minor(version) < supported[0]:
        return Diagnosis(topic, "broken", f"{version}; manyhop needs {low} or later; {advice}")
    newer = f" (newer than {high}, the newest that was tested)" if major_minor(version) > supported[1] else ""
    return Diagnosis(topic, "ok", version + newer)


TRITON = (OLDEST_TRITON, (3, 9))
RAPIDS = ((26, 8), (26, 10))
_WHOLEGRAPH = ("pylibwholegraph-cu13", "pylibwholegraph-cu12", "pylibwholegraph")
_RMM = ("rmm-cu13", "rmm-cu12", "rmm")
_CUGRAPH = ("pylibcugraph-cu13", "pylibcugraph-cu12", "pylibcugraph")
_RAFT_DASK = ("raft-dask-cu13", "raft-dask-cu12", "raft-dask")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about drivers, GPUs and their packages."""

    driver: nvml.Driver | None = None
    """``None``: no NVIDIA driver."""
    torch: str = ""
    """Version of torch."""
    cuda: str | None = None
    """Version of CUDA that torch was built with; ``None``: without."""
    names: tuple[str, ...] = ()
    """The GPUs that torch can use, with their capability: ``"NVIDIA H200 (9.0)"``."""
    peers: bool = False
    """Whether each of them reads the memory of all others."""
    nccl: str | None = None
    triton: str | None = None
    wholegraph: str | None = None
    wholegraph_error: str | None = None
    """Why it cannot be imported."""
    rmm: str | None = None
    cugraph: str | None = None
    """Version of pylibcugraph."""
    raft_dask: str | None = None
    cugraph_error: str | None = None
    """Why one of the two cannot be loaded, without Dask."""
    settings: dict[str, str] = field(default_factory=dict)
    """Variables of torch's allocator that are set."""
    compiled: Compiled | Exception | None = None
    """Result of compiling a kernel; ``None``: not tried."""


def look() -> Facts:
    """Look at the machine. Uses each GPU that torch can use, and compiles a small kernel there."""
    import torch

    usable = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    triton, wholegraph = installed_version(("triton",)), installed_version(_WHOLEGRAPH)
    load_wholegraph = partial(importlib.import_module, "pylibwholegraph.torch")
    return Facts(
        driver=nvml.driver(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        names=tuple(
            "{} ({}.{})".format(torch.cuda.get_device_name(k), *torch.cuda.get_device_capability(k)) for k in usable
        ),
        peers=all(torch.cuda.can_device_access_peer(a, b) for a in usable for b in usable if a != b),
        nccl=_nccl() if usable else None,
        triton=triton,
        wholegraph=wholegraph,
        wholegraph_error=error_of(load_wholegraph) if usable and wholegraph else None,
        rmm=installed_version(_RMM),
        cugraph=installed_version(_CUGRAPH),
        raft_dask=installed_version(_RAFT_DASK),
        cugraph_error=error_of(binding.communication) if usable and binding.is_installed() else None,
        settings={name: os.environ[name] for name in VARIABLES if name in os.environ},
        compiled=_compile() if usable and triton is not None else None,
    )


def findings(facts: Facts) -> list[Diagnosis]:
    """Return the lines of the report, with remedies."""
    found = [_gpus(facts)]
    if not facts.names:
        idle = "not needed without a GPU"
        versions = {"triton": facts.triton, "pylibwholegraph": facts.wholegraph, "cuGraph": facts.cugraph}
        return found + [
            Diagnosis(topic, "missing" if version is None else "ok", f"{version or 'not installed'} ({idle})")
            for topic, version in versions.items()
        ]
    extra = pip_install(f"cu{(facts.cuda or '13').split('.')[0]}")
    newer = "install a torch that brings a newer one: pip install 'torch>=2.9'"
    error = facts.wholegraph_error
    error = None if error is None else f"{error}; is it the one for CUDA {facts.cuda}, that of torch?"
    found += _memory(facts)
    found += [
        _optional("triton", facts.triton, TRITON, "sampling on GPUs", extra, update=newer),
        *_kernels(facts),
        _optional("pylibwholegraph", facts.wholegraph, RAPIDS, "placement='sharded'", extra, error=error),
        _optional("rmm", facts.rmm, RAPIDS, "one pool of GPU memory for torch and RAPIDS", extra),
        _cugraph(facts),
    ]
    if len(facts.names) > 1:
        nccl = facts.nccl or "not in this torch: ranks cannot exchange rows of GPUs"
        found += [_peers(facts), Diagnosis("NCCL", "missing" if facts.nccl is None else "ok", nccl)]
    return [*found, _allocator(facts)]


def _gpus(facts: Facts) -> Diagnosis:
    if facts.names:
        driver = "" if facts.driver is None else f"; driver {facts.driver.version}"
        return Diagnosis("GPUs", "ok", f"{_counted(facts.names)}; CUDA {facts.cuda}{driver}")
    if facts.driver is None or not facts.driver.gpus:
        return Diagnosis("GPUs", "missing", "none here; manyhop samples on the CPU")
    there = _counted([gpu.name for gpu in facts.driver.gpus])
    if facts.cuda is None:
        why = f"torch {facts.torch} was built without CUDA: install one with it, as described on https://pytorch.org"
    elif not nvml.visible(facts.driver.gpus):
        why = "CUDA_VISIBLE_DEVICES hides them: unset it"
    else:
        why = (
            f"torch {facts.torch} cannot use them: its CUDA {facts.cuda} may need a newer driver than "
            f"{facts.driver.version}; `python -c 'import torch; torch.cuda.init()'` says more"
        )
    return Diagnosis("GPUs", "missing", f"{there}, but {why}; manyhop samples on the CPU")


def _memory(facts: Facts) -> list[Diagnosis]:
    if facts.driver is None:
        return []
    parts = []
    for gpu in nvml.visible(facts.driver.gpus):
        link = "" if gpu.pcie is None else f", {gpu.pcie}"
        parts.append(f"{gpu.index}: {in_units(gpu.free)} of {in_units(gpu.total)} free{link}")
    return [Diagnosis("GPU memory", "ok", "; ".join(parts))]


def _optional(
    topic: str,
    version: str | None,
    supported: Versions,
    purpose: str,
    install: str,
    *,
    error: str | None = None,
    update: str | None = None,
) -> Diagnosis:
    """Report a package: ``version`` installed, which cannot be imported because of ``error``."""
    if version is None:
        return Diagnosis(topic, "missing", f"not installed; {purpose} needs it: {install}")
    if error is not None:
        return Diagnosis(topic, "broken", f"{version}, but it cannot be imported: {error} {install}")
    return version_in(topic, version, supported, update or install)


def _kernels(facts: Facts) -> list[Diagnosis]:
    result = facts.compiled
    if result is None:
        return []
    if isinstance(result, Exception):
        first = str(result).strip().splitlines()[0] if str(result).strip() else type(result).__name__
        advice = "install a C compiler, such as gcc" if "compiler" in str(result).lower() else "see the message"
        text = f"a small one does not compile: {type(result).__name__}: {first[:200]}; {advice}"
        return [Diagnosis("GPU kernels", "broken", text)]
    text = f"a small one compiles in {result.seconds:.2f} s; {result.kept} are kept below {result.folder}"
    if not result.writable:
        text += ", which cannot be written to: every process compiles anew; set TRITON_CACHE_DIR to a folder of yours"
    return [Diagnosis("GPU kernels", "ok", text)]


def _cugraph(facts: Facts) -> Diagnosis:
    command = binding.install_command(facts.cuda)
    if facts.cugraph is None or facts.raft_dask is None:
        lacking = "raft-dask" if facts.cugraph is not None else "pylibcugraph"
        text = f"{lacking} is not installed; graphs over the GPUs of all nodes (engine='cugraph') need it: {command}"
        return Diagnosis("cuGraph", "missing", text)
    if facts.cugraph_error is not None:
        text = f"{facts.cugraph}, but it cannot be loaded: {facts.cugraph_error}; {command}"
        return Diagnosis("cuGraph", "broken", text)
    if facts.cugraph != facts.raft_dask:
        text = f"{facts.cugraph}, with raft-dask {facts.raft_dask}: they have to be of one release; {command}"
        return Diagnosis("cuGraph", "broken", text)
    return version_in("cuGraph", facts.cugraph, RAPIDS, command)


def _peers(facts: Facts) -> Diagnosis:
    if facts.peers:
        return Diagnosis("peer access", "ok", f"all {len(facts.names)} GPUs read each other's memory")
    text = "not between all GPUs: instead of sharded, tables are replicated, pinned or distributed"
    return Diagnosis("peer access", "missing", text)


def _allocator(facts: Facts) -> Diagnosis:
    if not facts.settings:
        text = f"segments of fixed sizes; import manyhop before the GPU is used, or set {VARIABLES[0]}={SETTING}"
        return Diagnosis("GPU allocator", "missing", text)
    settings = ", ".join(f"{name}={value}" for name, value in facts.settings.items())
    if any(SETTING.lower() in value.lower().replace(" ", "") for value in facts.settings.values()):
        return Diagnosis("GPU allocator", "ok", settings)
    text = f"{settings}, as you set it; with {SETTING} in it, batches of changing sizes take less memory"
    return Diagnosis("GPU allocator", "ok", text)


def _counted(names: Sequence[str]) -> str:
    """Return ``["A", "A", "B"]`` -> ``"2 x A, B"``."""
    counts = {name: list(names).count(name) for name in names}
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _nccl() -> str | None:
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def error_of(load: Callable[[], object]) -> str | None:
    """Return why something cannot be loaded; ``None``: it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load()
    except Exception as error:  # of a broken package
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return None


def _compile() -> Compiled | Exception:
    import torch

    try:
        from manyhop_tools.doctor.gpu_probe import compile_one

        return compile_one(torch.device("cuda", 0))
    except Exception as error:  # of a broken compiler
        return error
