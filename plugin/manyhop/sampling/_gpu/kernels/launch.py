"""How kernels follow each other."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def follow():
    """Wait for the kernel before this one, which need not have ended for this one to be launched; let the next be launched.

    Every program calls it before all else, so that what a kernel waits for includes all kernels before.
    """
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
