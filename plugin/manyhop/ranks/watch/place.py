"""Where a thread of this process is, and whether it waits for other ranks there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

# Modules that a thread is in while it waits in a collective: those of torch.distributed, DDP's, and the backward pass,
# at the end of which DDP waits for the gradients of the others.
_WAITING = ("torch.distributed", "torch.nn.parallel.distributed", "torch.autograd.graph")
_NOT_THE_USERS = ("torch", "threading")


def place_of(thread: int, gpu_waits: bool) -> tuple[str, bool]:
    """Return ``file:line in function`` of a thread's innermost frame of the user, and whether it waits for others.

    ``gpu_waits``: whether a collective on the GPU does.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    waits = gpu_waits
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        waits = waits or module.startswith(_WAITING)
        package = module.split(".")[0]
        if package not in _NOT_THE_USERS and not package.startswith("manyhop"):  # the engine or an adapter
            code = frame.f_code
            call = " (in a collective)" if waits else ""
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}{call}", waits
        frame = frame.f_back
    return "", waits
