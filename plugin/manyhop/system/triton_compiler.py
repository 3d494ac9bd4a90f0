"""The triton that compiles the GPU kernels: is it there, and new enough?"""

from __future__ import annotations

from functools import cache

from manyhop.errors import MissingExtraError
from manyhop.system.finding import installed_version, major_minor

OLDEST = (3, 5)
"""The oldest triton with which the tests pass on a GPU; torch 2.9 brings it. 3.4 cannot let launches overlap."""


def usable() -> bool:
    """Return whether GPU kernels can be compiled. Does not import triton."""
    version = _version()
    return version is not None and version >= OLDEST


def require(purpose: str) -> None:
    """Check that GPU kernels can be compiled.

    Args:
        purpose: what needs them, the subject of the message.

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
            advice="torch brings triton: install a newer torch (pip install 'torch>=2.9'), or pass device='cpu'.",
        )


@cache
def _version() -> tuple[int, int] | None:
    text = installed_version(("triton",))
    return None if text is None else major_minor(text)
