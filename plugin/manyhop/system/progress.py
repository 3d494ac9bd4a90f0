"""A progress bar on stderr, and copies of large tensors that show one."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import torch
from torch import Tensor
from tqdm import tqdm


class _Bar(tqdm):  # type: ignore[misc]
    # tqdm's own lock may start a process, and its monitor is a thread.
    _lock = threading.RLock()
    monitor_interval = 0


def is_first_of_node() -> bool:
    """Return whether this process is the only or the first one of its node: launchers number them from 0."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "SLURM_LOCALID"))


class Progress:
    """One line that shows how much is done; thread-safe.

    Args:
        title: description of the work.
        total: how many units there are; ``None``: unknown.
        unit: ``"B"``, in multiples of 1024, or a noun.
        show: whether to show the bar; ``None``: on a terminal, after ``delay`` seconds, in the first rank of a node.
        delay: in seconds.
    """

    def __init__(
        self, title: str, total: int | None, *, unit: str = "B", show: bool | None = None, delay: float = 1.0
    ) -> None:
        of_bytes = unit == "B"
        if show is None and not is_first_of_node():
            show = False
        self._lock = threading.Lock()
        self._bar = _Bar(
            desc=title,
            total=total,
            unit=unit if of_bytes else f" {unit}",
            unit_scale=True,
            unit_divisor=1024 if of_bytes else 1000,
            mininterval=0.2,
            miniters=0,
            delay=delay if show is None else 0,
            disable=None if show is None else not show,
        )

    def add(self, count: int) -> None:
        """Count ``count`` more units as done."""
        with self._lock:
            self._bar.update(count)

    def close(self) -> None:
        """Write the last state and end the line."""
        with self._lock:
            self._bar.close()


_PIECE_BYTES = 256 << 20


def to_device(tensor: Tensor, device: torch.device | str, title: str) -> Tensor:
    """Return a tensor on a device, or in page-locked memory (``"pinned"``).

    Large tensors are copied to a GPU in pieces, with a progress bar.
    """
    if device == "pinned":
        return tensor.pin_memory()
    device = torch.device(device)
    if tensor.device.type != "cpu" or device.type == "cpu" or tensor.nbytes <= _PIECE_BYTES or tensor.dim() == 0:
        return tensor.to(device)
    there = torch.empty_like(tensor, device=device)
    copy_rows(there, tensor, f"Copying {title} to {device}")
    return there


def copy_rows(target: Tensor, source: Tensor, title: str) -> None:
    """Copy ``source [num_rows, ...]`` to ``target`` of the same shape, piece by piece."""
    rows = max(1, _PIECE_BYTES * source.shape[0] // max(1, source.nbytes))
    with closing(Progress(title, source.nbytes)) as bar:
        for begin in range(0, source.shape[0], rows):
            part = source[begin : begin + rows]
            target[begin : begin + rows].copy_(part)
            bar.add(part.nbytes)
