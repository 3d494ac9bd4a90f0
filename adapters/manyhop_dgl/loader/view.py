"""The view of a DGL loader for its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from dgl.dataloading import BlockSampler

from manyhop_dgl.loader.cores import WorkerInit
from manyhop_dgl.loader.prefetched import Prefetched
from manyhop_dgl.loader.seeds import GivenBatches, Seeds
from manyhop_dgl.loader.storages import Prefetching

if TYPE_CHECKING:
    from dgl import DGLGraph

    from manyhop_dgl.graph.graph import Graph
    from manyhop_dgl.loader.padding import Padding


class LoaderView(Protocol):
    """A loader: the user's arguments, and the objects built from them."""

    graph: Graph | DGLGraph
    graph_sampler: BlockSampler
    gpu_cache: Mapping[str, Mapping[str, int]] | None
    device: torch.device
    seed_parts: int | None
    dataset: Seeds | GivenBatches
    output: str
    use_prefetch_thread: bool | None
    worker_init_fn: WorkerInit
    prefetched: Prefetched
    prefetcher: Prefetching
    padding: Padding | None

    def samples_on_gpu(self) -> bool: ...
