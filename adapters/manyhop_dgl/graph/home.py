"""Where the ranks of a run hold what they put into a graph together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyhop.features import DistributedRows, ShardedRows
from manyhop.files import Rows
from manyhop.memory.stores import GPURows, NodeRows, StorePlace, TopologyPlace, check_place, place_for_topology, rows_in
from manyhop.ranks.control import DEFAULT_TIMEOUT


@dataclass(frozen=True)
class Home:
    """Puts tensors where the ranks of a node, or the nodes or GPUs of a run, hold them. All ranks make and call it."""

    edges: NodeRows
    """Every node holds all edges."""

    whole: NodeRows | GPURows
    """For data of one dimension: where GPUs read it, or once per node."""

    spread: NodeRows | GPURows
    """For data of two or more dimensions: in the place that the user names."""

    topology: TopologyPlace | None
    """Where GPUs read the topology; ``None``: where each loader decides."""

    @staticmethod
    def of(placement: StorePlace, timeout: float | None, device: torch.device | str | None = None) -> Home | None:
        """``None`` for what is this process's own.

        Raises:
            InputError: an unknown placement, a timeout or a device that does not make sense.
        """
        gpu = check_place(placement, device, timeout)
        if placement in ("process", "mapped"):
            return None
        edges = NodeRows(False, timeout or DEFAULT_TIMEOUT)
        spread = rows_in(placement, gpu, timeout)
        assert spread is not None
        whole = spread if placement in ("pinned", "device") else edges
        topology = None if gpu is None and placement != "auto" else place_for_topology(placement)
        return Home(edges, whole, edges if placement in ("shared", "auto") else spread, topology)

    def put(self, tensor: Any, begin: int | None, name: str) -> Tensor | ShardedRows | DistributedRows:
        """A tensor that all ranks have whole (``begin`` is ``None``), or of which this one has rows from ``begin`` on.

        Raises:
            FeatureError: the parts do not fit together.
            RankError: the ranks do not put the same, or are late.
        """
        index = None if begin is None else slice(begin, begin + len(tensor))
        return (self.spread if getattr(tensor, "ndim", 0) > 1 else self.whole).put(tensor, index, name)

    def read(self, rows: Rows, name: str) -> Tensor | ShardedRows | DistributedRows:
        """A tensor in files that all nodes see: each rank reads only the rows that it is to hold.

        Raises:
            InputError: a file that is truncated or damaged.
            RankError: another rank failed or is late.
        """
        return (self.spread if len(rows.shape) > 1 else self.whole).read(rows, name)
