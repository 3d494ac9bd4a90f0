"""What the parts of a loader of PyG's kind see of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from manyhop.features import BufferPool
from manyhop.graph import EdgeType, NodeType
from manyhop.pipeline import Stats, Turn
from manyhop.sampling import BatchKey
from manyhop_pyg.batch.plan import DataPlan

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime


class LoaderView(Protocol):
    """A loader: the user's arguments, which may be replaced between epochs, and how one batch is made."""

    data: Any
    transform: Any
    transform_sampler_output: Any
    filter_per_worker: bool
    custom_cls: Any
    input_data: Any
    worker_init_fn: Any
    distributed: bool
    _gpu: GPURuntime | None
    _bounds: Mapping[NodeType | EdgeType, int]
    _store_size: tuple[int | None, int | None]
    _padding: Any
    _plan_of_data: DataPlan | None
    _copy_threads: int | None
    _buffers: BufferPool
    _stats: Stats

    def collate_fn(self, index: Any) -> Any: ...

    def filter_fn(self, out: Any) -> Any: ...

    def _sampler(self) -> tuple[Any, str]: ...

    def _sample(self, index: Any) -> Any: ...

    def _inputs(self, index: Any) -> Any: ...

    def _begin_on_gpu(
        self, sampling: Any, inputs: Sequence[Any], keys: Sequence[BatchKey]
    ) -> Callable[[], list[Any]]: ...

    def _edge_permutation(self) -> Any: ...

    def _dress(self, data: Any, out: Any, turn: Turn | None, marks: Tensor | None = None) -> None: ...

    def _count(self, *outs: Any) -> None: ...

    def _has_own_collate(self) -> bool: ...

    def _has_own_filter(self) -> bool: ...
