"""How kernels follow each other."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def follow():
    """Let the next kernel be launched, and wait for the one before, which may still run when this one is launched.

    Every program calls it before all else, so that what a kernel waits for includes all kernels before.
    """
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
