"""The installed version of triton, and the progress of its compilations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from manyhop.errors import MissingExtraError
from manyhop.system.finding import installed_version, major_minor
from manyhop.system.kernel_progress import KernelProgress

if TYPE_CHECKING:
    import torch

OLDEST = (3, 5)
"""The oldest triton that passes the tests on a GPU, part of torch 2.9. In 3.4, launches cannot overlap."""


def usable() -> bool:
    """Return whether GPU kernels can be compiled. Does not import triton."""
    version = _version()
    return version is not None and version >= OLDEST


def runs_on(device: torch.device) -> bool:
    """Return whether GPU kernels work on the tensors of a device."""
    return device.type == "cuda"


def require(purpose: str) -> None:
    """Check that GPU kernels can be compiled.

    The purpose is the subject of the message.

    Raises:
        MissingExtraError: triton is missing, or too old.
    """
    version = _version()
    if version is None:
        raise MissingExtraError("triton", "cu13", purpose)
    if version < OLDEST:
        needed, found = (".".join(map(str, v)) for v in (OLDEST, version))
        raise MissingExtraError(
            "triton",
            "cu13",
            purpose,
            problem=f"version {needed} or later, but {found} is installed",
            advice="Install a newer PyTorch, which contains triton (pip install 'torch>=2.9'), or pass device='cpu'.",
        )


@contextmanager
def showing_compilation() -> Iterator[None]:
    """Show the kernels that triton compiles in the body, except cached ones."""
    from triton import knobs

    progress, before = KernelProgress("GPU"), knobs.compilation.listener

    def listen(*, src: Any, cache_hit: bool, **others: Any) -> None:
        if before is not None:
            before(src=src, cache_hit=cache_hit, **others)
        if not cache_hit:
            progress.compiled(src.name)

    knobs.compilation.listener = listen
    try:
        yield
    finally:
        if knobs.compilation.listener is listen:
            knobs.compilation.listener = before
        progress.end()


@cache
def _version() -> tuple[int, int] | None:
    text = installed_version(("triton",))
    return None if text is None else major_minor(text)
