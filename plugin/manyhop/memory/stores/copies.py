"""Copies of the user's tensors where GPUs read them: one for all loaders."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.memory.known import known, known_if_any, records
from manyhop.memory.places import Place
from manyhop.memory.stores.checksums import WHOLE_ONCE, checksum
from manyhop.system.progress import to_device


class Version:
    """A tensor or an array as it is now."""

    def __init__(self, value: Any) -> None:
        self._source = value
        self._version = value._version if isinstance(value, Tensor) else 0

    @property
    def of_tensor(self) -> tuple[Tensor, int] | None:
        """The tensor and its version, as torch counts it; ``None`` for arrays."""
        return (self._source, self._version) if isinstance(self._source, Tensor) else None

    def is_of(self, value: Any) -> bool:
        """Whether it is a version of this very tensor or array."""
        return self._source is value

    def is_current(self) -> bool:
        """Whether it has not been changed in place (of arrays, nobody knows)."""
        return not isinstance(self._source, Tensor) or self._source._version == self._version


class Kept(Version):
    """A tensor or an array whose rows are kept elsewhere, too: once for all loaders of the process."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._checksum = checksum(value, whole=WHOLE_ONCE)

    @classmethod
    def find(cls, value: Any, where: torch.device | Place, *, compare: bool = True) -> Self | None:
        """Return what is kept of the values that a tensor has now; ``compare``: by their checksum, too."""
        record = known_if_any(value)
        found = None if record is None else record.copies.get(where)
        if not isinstance(found, cls) or not found.is_of(value) or not found.is_current():
            return None
        return found if not compare or found._checksum == checksum(value, whole=WHOLE_ONCE) else None

    def keep(self, where: torch.device | Place) -> Self:
        """Have :meth:`find` return it as long as somebody uses it."""
        known(self._source).copies[where] = self
        return self


class Copy(Kept):
    """A tensor on a GPU, and what it is a copy of."""

    def __init__(self, value: Any, device: torch.device) -> None:
        super().__init__(value)
        self.there = to_device(as_tensor("a feature", value).detach(), device, "features")

    @staticmethod
    def of(value: Any, device: torch.device) -> Copy:
        """The copy of a tensor on a device: an existing one, if there is one of the values that it has now."""
        with _lock:
            return Copy.find(value, device) or Copy(value, device).keep(device)

    @staticmethod
    def exists(value: Any, device: torch.device) -> bool:
        """Whether a loader of this process holds a copy on a device that is current."""
        return Copy.find(value, device, compare=False) is not None


_lock = threading.RLock()


def forget(places: Collection[Place]) -> None:
    """Find nothing any more that is kept in these places."""
    for record in records():
        for key in list(record.copies):
            if (key[-1] if isinstance(key, tuple) else key) in places:  # of topologies: the GPU and the place
                record.copies.pop(key, None)


def is_movable(value: Any, device: torch.device, *, also_there: bool = False) -> bool:
    """Whether rows may be read from a copy elsewhere: dense tensors and arrays that the GPU does not hold yet.

    ``also_there``: those that it holds, too.
    """
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        elsewhere = value.device.type == "cpu" or (also_there and value.device == device)
        return elsewhere and value.layout is torch.strided and value.dim() > 0 and not value.requires_grad
    return isinstance(value, np.ndarray) and value.ndim > 0
