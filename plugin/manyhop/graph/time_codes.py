"""Times in 2 bytes: what the CPU sampler searches in place of the times, being a quarter of their size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BUCKETS = 4096
"""A power of two; each holds about as many edges as any other, so that a code is also a rank."""

WINDOW = 32
"""Spare codes behind the last, so that as many can be read at once."""

_SAMPLE = 1 << 16
_CHUNK = 1 << 24


@dataclass(frozen=True, kw_only=True)
class TimeCodes:
    """The bucket of each edge's time."""

    bound: npt.NDArray[np.int64]
    """``[BUCKETS - 1] int64``, ascending, possibly with repeats."""

    code: npt.NDArray[np.uint16]
    """``[num_edges + WINDOW] uint16``: number of bounds below the time of each stored edge.

    With the number of bounds up to some limit: edges of a smaller code are up to the limit, those of a larger one are
    not, and those of the same may be.
    """


def time_codes(time: Tensor) -> TimeCodes:
    """Codes of ``[num_edges] int64`` times."""
    num_edges = time.numel()
    some = np.sort(time[:: max(1, num_edges // _SAMPLE)].numpy())
    bound = np.zeros(BUCKETS - 1, np.int64)
    if num_edges > 0:
        bound[:] = some[np.arange(1, BUCKETS) * some.size // BUCKETS]
    code = np.empty(num_edges + WINDOW, np.uint16)
    code[num_edges:] = 0
    for at in range(0, num_edges, _CHUNK):
        part = time[at : at + _CHUNK]
        code[at : at + part.numel()] = torch.bucketize(part, torch.from_numpy(bound), out_int32=True).numpy()
    return TimeCodes(bound=bound, code=code)
