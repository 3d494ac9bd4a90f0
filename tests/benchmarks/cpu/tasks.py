"""The workloads: what is sampled, and what a whole loader has to deliver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.graphs import TIME_RANGE, BenchGraph
from manyhop.graph import NodeType

Mode = Literal["uniform", "weighted", "disjoint", "temporal"]

_NUM_SEED_BATCHES = 32


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is sampled, without replacement. Batch i has the seeds of index ``i % len(seeds)``."""

    name: str
    graph: BenchGraph
    mode: Mode

    fanout: tuple[int, ...]
    """Neighbours per node and edge type, hop by hop."""

    seeds: Tensor
    """``[num_batches, batch_size] int64`` nodes of the graph's seed type, distinct in each batch."""

    seed_times: Tensor | None
    """``[num_batches, batch_size] int64``, for ``temporal``."""

    @property
    def is_disjoint(self) -> bool:
        """Whether each seed has a tree of its own."""
        return self.mode in ("disjoint", "temporal")


@dataclass(frozen=True, kw_only=True)
class LoaderTask:
    """What a whole loader delivers: short epochs over some seeds, shuffled, with or without features."""

    name: str
    task: Task
    num_batches: int
    """Batches of one epoch, which is one turn."""

    features: Mapping[NodeType, Tensor] | None
    """Node type -> ``[num_nodes, 128] float32``."""

    @property
    def batch_size(self) -> int:
        """Seeds per batch."""
        return self.task.seeds.shape[1]

    @property
    def input_nodes(self) -> Tensor:
        """``[num_batches * batch_size] int64``."""
        return self.task.seeds[: self.num_batches].flatten()

    @property
    def input_time(self) -> Tensor | None:
        """``[num_batches * batch_size] int64``, for ``temporal``."""
        times = self.task.seed_times
        return None if times is None else times[: self.num_batches].flatten()


def make_task(name: str, graph: BenchGraph, mode: Mode, fanout: Sequence[int], batch_size: int) -> Task:
    """A task whose seeds (and their times) are drawn at random, the same at each call."""
    rng = np.random.default_rng(2)
    num_nodes = graph.num_nodes[graph.seed_type]
    size = min(batch_size, num_nodes)
    seeds = np.stack([rng.choice(num_nodes, size, replace=False) for _ in range(_NUM_SEED_BATCHES)])
    times = torch.from_numpy(rng.integers(0, TIME_RANGE, seeds.shape)) if mode == "temporal" else None
    return Task(
        name=name, graph=graph, mode=mode, fanout=tuple(fanout), seeds=torch.from_numpy(seeds), seed_times=times
    )
