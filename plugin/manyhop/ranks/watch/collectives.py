"""Collectives on a GPU that wait for other ranks: the host may be anywhere meanwhile, but torch counts them."""

from __future__ import annotations

import contextlib
import json
import time

_PATIENCE = 0.5  # seconds; torch takes up to 0.1 to notice that one has ended


class Collectives:
    """Those of NCCL, in all process groups of this process."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def stuck(self) -> bool:
        """Return whether one that was under way when this was called before, half a second ago or more, still is."""
        now, before = time.monotonic(), self._since
        self._since = {waiting: before.get(waiting, now) for waiting in _under_way().items()}
        return any(now - since >= _PATIENCE for since in self._since.values())


def _under_way() -> dict[str, int]:
    """Groups with collectives that were enqueued and have not ended -> number of the last one that has ended.

    The counts are those of torch's flight recorder, which is on unless TORCH_FR_BUFFER_SIZE is 0. To ask it for more
    than counts would not be safe in a process that goes on.
    """
    import torch._C._distributed_c10d as c10d

    dump = getattr(c10d, "_dump_nccl_trace_json", None)  # not where torch has no NCCL
    found: dict[str, int] = {}
    if dump is not None:
        with contextlib.suppress(RuntimeError, ValueError, KeyError):  # what cannot be read is no evidence
            for group, counts in json.loads(dump(includeCollectives=False)).get("pg_status", {}).items():
                ended = int(counts["last_completed_collective"])
                if int(counts["last_enqueued_collective"]) > ended:
                    found[group] = ended
    return found
