"""Where a thread of this process is, and whether it waits for other ranks there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent)
# Python's frames while a thread waits in a collective: those of torch.distributed; DDP's own; the backward pass, at the
# end of which DDP waits for the gradients of the others.
_WAITING = (
    str(Path(_TORCH, "distributed")),
    str(Path(_TORCH, "nn", "parallel", "distributed.py")),
    str(Path(_TORCH, "autograd", "graph.py")),
)


def place_of(thread: int) -> tuple[str, bool]:
    """``file:line in function`` of a thread's innermost frame outside torch, and whether it waits in a collective."""
    frame: FrameType | None = sys._current_frames().get(thread)
    waits, inside = False, False
    while frame is not None:
        name = frame.f_code.co_filename
        waits = waits or name.startswith(_WAITING)
        if not name.startswith(_TORCH):
            call = " in a collective" if waits else ""
            return f"{Path(name).name}:{frame.f_lineno} in {frame.f_code.co_name}{call}", waits
        inside, frame = True, frame.f_back
    return ("in torch" if inside else ""), waits
