"""How kernels follow each other, and what their compiled forms in triton's cache on disk are valid for."""

import hashlib
from pathlib import Path
from types import ModuleType

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables
from manyhop.system import nvml


def _can_overlap() -> bool:
    """Return whether all GPUs have programmatic dependent launches, without starting CUDA in the process."""
    driver = None if triton.knobs.runtime.interpret else nvml.driver()
    gpus = () if driver is None else nvml.visible(driver.gpus)
    return bool(gpus) and min(gpu.capability for gpu in gpus) >= (9, 0)


def _digest_of(*modules: ModuleType) -> int:
    """Return a digest of the sources of modules."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(Path(module.__file__).read_bytes())
    return int.from_bytes(digest.digest()[:4], "little")


OVERLAPS = tl.constexpr(_can_overlap())
# The key of triton's cache holds the sources of the functions that a kernel calls and the constants that it imports by
# name, but no attributes of modules (`t.SRC`): after an update of manyhop, kernels for other columns would run. Modules
# that kernels read attributes of are named here; `follow`, which such kernels call, brings the digest into their keys.
SOURCES = tl.constexpr(_digest_of(tables))


@triton.jit
def follow():
    """Let the next kernel be launched, and wait for the one before, which may still run when this one is launched.

    Every program calls it before all else, so that what a kernel waits for includes all kernels before.
    """
    tl.static_assert(SOURCES >= 0)
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
