"""Whether this process waits for other ranks: the position of a thread, and unfinished collectives on a GPU."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from types import FrameType

_PATIENCE = 0.5  # seconds; torch needs up to 0.1 to notice the end of a collective
# Modules in which a thread waits in a collective: torch.distributed, DDP, and the backward pass, at whose end DDP waits
# for the gradients of other ranks.
_WAITING = ("torch.distributed", "torch.nn.parallel.distributed", "torch.autograd.graph")
_NOT_THE_USERS = ("torch", "threading")


def place_of(thread: int, gpu_waits: bool) -> tuple[str, bool]:
    """Return ``file:line in function`` of a thread's innermost frame of the user, and whether it waits for other ranks.

    ``gpu_waits``: whether a collective on the GPU waits.
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


class Collectives:
    """The collectives of NCCL in all process groups of this process."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def stuck(self) -> bool:
        """Return whether a collective that an earlier call, half a second ago or more, has seen is still unfinished."""
        now, before = time.monotonic(), self._since
        self._since = {waiting: before.get(waiting, now) for waiting in _unfinished().items()}
        return any(now - since >= _PATIENCE for since in self._since.values())


def _unfinished() -> dict[str, int]:
    """Return the groups with unfinished collectives, and the number of the last finished one of each.

    torch's flight recorder counts them, unless TORCH_FR_BUFFER_SIZE is 0. Reading more than counts would not be safe.
    """
    import torch._C._distributed_c10d as c10d

    dump = getattr(c10d, "_dump_nccl_trace_json", None)  # missing if torch has no NCCL
    found: dict[str, int] = {}
    if dump is not None:
        with contextlib.suppress(RuntimeError, ValueError, KeyError):  # an unreadable record proves nothing
            for group, counts in json.loads(dump(includeCollectives=False)).get("pg_status", {}).items():
                ended = int(counts["last_completed_collective"])
                if int(counts["last_enqueued_collective"]) > ended:
                    found[group] = ended
    return found
