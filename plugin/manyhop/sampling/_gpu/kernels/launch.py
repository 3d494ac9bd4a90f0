"""How kernels follow each other."""

import torch
import triton
import triton.language as tl


def _can_overlap() -> bool:
    """Whether all GPUs know programmatic dependent launches."""
    gpus = range(0 if triton.knobs.runtime.interpret else torch.cuda.device_count())
    return bool(gpus) and min(torch.cuda.get_device_capability(gpu) for gpu in gpus) >= (9, 0)


OVERLAPS = tl.constexpr(_can_overlap())


@triton.jit
def follow():
    """Let the next kernel be launched, and wait for the one before, which may still run when this one is launched.

    Every program calls it before all else, so that what a kernel waits for includes all kernels before.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
