"""What users pass to every loader of PyG's kinds, beside PyG's and torch's arguments."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from manyhop.control import DEFAULT_TIMEOUT
from manyhop.loading import EngineName
from manyhop.loading.padding import Pad
from manyhop.pipeline import Uneven
from manyhop.placement import GPUMode


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of a loader, as given; see :class:`manyhop_pyg.NodeLoader`."""

    seed: int | None
    distributed: bool
    uneven: Uneven | None
    rank_timeout: float | None
    seed_parts: int | None
    device: torch.device | str | None
    placement: GPUMode | None
    engine: EngineName | None = None
    pad: Pad | None
    filter_per_worker: bool | None

    def of_ranks(self) -> tuple[Uneven | None, float | None]:
        """``uneven`` and ``rank_timeout``, or their defaults; ``None`` where ranks share no batches."""
        if not self.distributed:
            return None, None
        return self.uneven or "pad", DEFAULT_TIMEOUT if self.rank_timeout is None else float(self.rank_timeout)
