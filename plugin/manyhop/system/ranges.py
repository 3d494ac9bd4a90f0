"""Ranges of a loader's threads in NVIDIA Nsight Systems.

If ``MANYHOP_NVTX=1`` is set when manyhop is imported, calls are NVTX ranges. Otherwise there is no overhead.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from manyhop.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def ranged(name: Literal["sample", "gather", "exchange", "assemble", "wait"]) -> Callable[[F], F]:
    """Decorate a function: its calls are ranges ``manyhop.NAME`` of the thread, if the environment requests them.

    Raises:
        InputError: ``MANYHOP_NVTX`` is neither 0 nor 1, or 1 without CUDA in torch.
    """
    return functools.partial(_with_range, f"manyhop.{name}") if wanted() else lambda function: function


def _with_range(name: str, function: F) -> F:
    from torch.cuda import nvtx

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nvtx.range_push(name)  # type: ignore[no-untyped-call]  # of torch
        try:
            return function(*args, **kwargs)
        finally:
            nvtx.range_pop()  # type: ignore[no-untyped-call]

    return cast(F, call)


@functools.cache
def wanted() -> bool:
    """Return whether the environment requests ranges."""
    value = os.environ.get("MANYHOP_NVTX", "0")
    if value not in ("0", "1"):
        raise InputError(f"Expected MANYHOP_NVTX to be 0 or 1, got {value!r}.")
    if value == "0":
        return False
    import torch

    if torch.version.cuda is None:
        raise InputError(
            f"Expected a PyTorch build with CUDA for MANYHOP_NVTX=1, got {torch.__version__}. Unset the variable."
        )
    return True
