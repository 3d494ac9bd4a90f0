"""The view of a DGL loader for its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from dgl.dataloading import BlockSampler

from manyhop_dgl.loader.cores import WorkerInit
from manyhop_dgl.loader.seeds import GivenBatches, Seeds

if TYPE_CHECKING:
    from dgl import DGLGraph

    from manyhop_dgl.graph.graph import Graph


class LoaderView(Protocol):
    """A loader: the user's arguments, which may be replaced between epochs."""

    graph: Graph | DGLGraph
    graph_sampler: BlockSampler
    device: torch.device
    seed_parts: int | None
    dataset: Seeds | GivenBatches
    output: str
    use_prefetch_thread: bool | None
    worker_init_fn: WorkerInit
