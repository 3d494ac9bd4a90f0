"""How kernels follow each other, and what their compiled forms in triton's cache on disk are valid for."""

import hashlib
from pathlib import Path

import triton
import triton.language as tl

from manyhop import _nvml


def _can_overlap() -> bool:
    """Whether all GPUs know programmatic dependent launches. To ask CUDA would start it, in whoever imports this."""
    driver = None if triton.knobs.runtime.interpret else _nvml.driver()
    gpus = () if driver is None else _nvml.visible(driver.gpus)
    return bool(gpus) and min(gpu.capability for gpu in gpus) >= (9, 0)


def _digest_of_sources() -> int:
    """A digest of all kernel sources."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], "little")


OVERLAPS = tl.constexpr(_can_overlap())
# Columns of tables (`t.SRC`) are attributes of a module, which triton leaves out of the keys of its cache: after an
# update of manyhop, kernels for other columns would run. Every kernel names this one, through `follow`.
SOURCES = tl.constexpr(_digest_of_sources())


@triton.jit
def follow():
    """Let the next kernel be launched, and wait for the one before, which may still run when this one is launched.

    Every program calls it before all else, so that what a kernel waits for includes all kernels before.
    """
    tl.static_assert(SOURCES >= 0)
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
