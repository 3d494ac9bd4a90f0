"""What the parts of a loader of PyG's kind use of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from torch_geometric.sampler import BaseSampler

from manyhop.loading.pipeline import Turn
from manyhop.sampling import BatchKey
from manyhop_pyg.typing import Batch, Inputs, Positions, PyGData, Sample, Transform

if TYPE_CHECKING:
    from manyhop_pyg.batch.joining import Gathered, Joining
    from manyhop_pyg.samplers.on_gpu import Finish, GPUSampling


class LoaderView(Protocol):
    """A loader: the user's arguments, which may be replaced between epochs, and how one batch is made."""

    data: PyGData
    transform: Transform | None
    transform_sampler_output: Transform | None
    filter_per_worker: bool
    input_data: Inputs
    worker_init_fn: Callable[[int], None] | None
    distributed: bool
    seed_parts: int | None

    @property
    def reads_inputs_on_host(self) -> bool: ...

    def collate_fn(self, index: Positions) -> Sample | Batch: ...

    def filter_fn(self, out: Sample) -> Batch: ...

    def seed_sampler(self) -> tuple[BaseSampler, str]: ...

    def sample_inputs(self, index: Inputs) -> Sample: ...

    def inputs_at(self, index: Positions) -> Inputs: ...

    def begin_on_gpu(self, sampling: GPUSampling, inputs: Sequence[Inputs], keys: Sequence[BatchKey]) -> Finish: ...

    def joining(self) -> Joining: ...

    def join_one(self, out: Sample) -> Gathered: ...

    def finish_batches(
        self, joining: Joining, batches: Sequence[Batch], outs: Sequence[Sample], turns: Sequence[Turn | None]
    ) -> None: ...

    def has_own_collate(self) -> bool: ...

    def has_own_filter(self) -> bool: ...
