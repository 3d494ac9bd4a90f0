"""How kernels follow each other."""

import triton
import triton.language as tl

from manyhop import _nvml


def _can_overlap() -> bool:
    """Whether all GPUs know programmatic dependent launches. To ask CUDA would start it, in whoever imports this."""
    driver = None if triton.knobs.runtime.interpret else _nvml.driver()
    gpus = () if driver is None else _nvml.visible(driver.gpus)
    return bool(gpus) and min(gpu.capability for gpu in gpus) >= (9, 0)


OVERLAPS = tl.constexpr(_can_overlap())


@triton.jit
def follow():
    """Let the next kernel be launched, and wait for the one before, which may still run when this one is launched.

    Every program calls it before all else, so that what a kernel waits for includes all kernels before.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
