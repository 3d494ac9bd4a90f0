"""What the samples of a loader are joined with."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler

from manyhop.features import BufferPool
from manyhop.loading.pipeline import RankBatch
from manyhop_pyg.batch.columns import DataColumns, DataPlan, PlacedStore, PlanCache, StoreColumns
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.typing import Batch, Bounds, PyGData, Sample, StoreSize

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime
    from manyhop_pyg.batch.padding import Padding


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
    padding: Padding | None
    placed: DataPlan | PlacedStore | None
    """What rows are read from; ``None``: known to the store alone."""
    bounds: Bounds
    store_size: StoreSize
    copy_threads: int | None
    buffers: BufferPool


class Gathered(NamedTuple):
    """A batch with its rows. Edges, and what else is known of it, are set by ``finish_batches`` of its loader."""

    batch: Batch
    out: Sample
    """The sample where the batch is."""
    joining: Joining
    rank_batch: RankBatch | None
    """Which batch it is; ``None``: it stands alone."""

    def values(self) -> list[Collection[object]]:
        """Return the values of the sample that the batch will have, too."""
        out = self.out
        found: list[Collection[object]] = [out.metadata]
        for part in (out.row, out.col, out.batch, out.orig_row, out.orig_col):
            found.append(part.values() if isinstance(part, dict) else (part,))
        return found if self.joining.padding is None else [*found, *self.joining.padding.all_masks(out)]


def placed_columns(data: PyGData, gpu: GPURuntime | None, plans: PlanCache) -> DataPlan | PlacedStore | None:
    """Return what the rows of batches are read from, as the data is now; ``None``: known to its store alone."""
    placed: DataPlan | PlacedStore | None = None
    if isinstance(data, Data | HeteroData):
        placed = plans.of(data) if gpu is None else gpu.columns(DataColumns(data))
    elif gpu is not None and type(data[0]) is FeatureStore:
        placed = gpu.columns(StoreColumns(data[0]))
    return placed
