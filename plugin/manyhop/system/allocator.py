"""torch's allocator of GPU memory: segments that grow, since batches differ in size.

Memory that torch has taken in segments of a fixed size serves a slightly larger batch only with another segment.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import MutableMapping

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where torch looks for its settings; all that manyhop supports read each of them."""

SETTING = "expandable_segments:True"

MESSAGE = (
    "The GPU was used before manyhop was imported, so that torch's allocator keeps segments of fixed sizes: batches of "
    f"changing sizes will take more GPU memory. Import manyhop earlier, or set {VARIABLES[0]}={SETTING} (or "
    "expandable_segments:False, to leave it as it is) before the program starts."
)


def configure(environ: MutableMapping[str, str], *, started: bool) -> bool:
    """Ask torch for segments that grow, unless the user has set anything. Returns whether it came too late for that.

    Args:
        environ: variables of the process, which children inherit.
        started: whether the process has used a GPU already.
    """
    if not _supported() or any(name in environ for name in VARIABLES):
        return False
    if not started:
        environ[VARIABLES[0]] = SETTING  # torch reads it when it first asks for GPU memory
    return started


def _supported() -> bool:
    """Whether segments can grow here. Under Windows' Linux (WSL), the first allocation fails on some GPUs."""
    return sys.platform == "linux" and "microsoft" not in platform.release().lower()


def cuda_started() -> bool:
    """Whether this process has used a GPU through torch. Imports nothing."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # absent while torch itself is being imported
    return cuda is not None and bool(cuda.is_initialized())


def configure_at_import() -> None:
    """What importing manyhop does. A line of logging, not a warning: under ``-W error`` programs go on."""
    if configure(os.environ, started=cuda_started()):
        logging.getLogger("manyhop").warning(MESSAGE)
