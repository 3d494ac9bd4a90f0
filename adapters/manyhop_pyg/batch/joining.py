"""What the samples of a loader are joined with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch_geometric.sampler import BaseSampler

from manyhop.features import BufferPool
from manyhop.pipeline import Stats
from manyhop_pyg.batch.plan import DataPlan, PlanCache
from manyhop_pyg.typing import Batch, Bounds, PyGData, Sample, StoreSize

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime


class Pads(Protocol):
    """Gives batches fixed sizes."""

    def pad(self, outs: Sequence[Sample], stats: Stats) -> list[Sample]:
        """Return padded samples."""
        ...

    def clear(self, joining: Joining, batches: Sequence[Batch], plan: DataPlan | None, outs: Sequence[Sample]) -> None:
        """Let the rows of padding nodes and edges be zeros."""
        ...


class Joining(NamedTuple):
    """What the samples of a loader are joined with, as of now: users may replace its data between batches."""

    loader: str
    """The name of the loader's class, for errors."""
    data: PyGData
    custom_cls: type[Batch] | None
    sampler: BaseSampler
    transforms_samples: bool
    """Whether the user changes samples."""
    gpu: GPURuntime | None
    padding: Pads | None
    plans: PlanCache
    bounds: Bounds
    store_size: StoreSize
    copy_threads: int | None
    buffers: BufferPool
    stats: Stats
