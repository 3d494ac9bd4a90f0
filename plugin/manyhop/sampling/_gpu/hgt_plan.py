"""Where a launch of HGT sampling keeps what, hop by hop: known before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import Graph
from manyhop.sampling._gpu.kernels import hgt as kernels

Ints = npt.NDArray[np.int64]

_MAX_NEIGHBORS: int = kernels.MAX_NEIGHBORS.value


@dataclass(frozen=True)
class HopPlan:
    """The tables of one hop, and the sizes of what it works in."""

    scopes: Tensor
    jobs: Tensor
    num_jobs: int
    list_length: int
    longest: int
    """The most nodes and candidates of a scope."""
    num_candidates: int
    frontier: int
    """The most nodes that a job asks for."""


class HGTPlan:
    """The memory of batches of these numbers of seeds.

    Args:
        graph: the topology.
        num_samples: ``[num_hops, num_types] int64``: nodes to add.
        num_seeds: ``[num_batches, num_types] int64``.
        tables: for each edge type: addresses of ``colptr`` and ``row``, whether ``row`` is int64.
        device: where kernels read the tables.
    """

    def __init__(
        self, graph: Graph, num_samples: Ints, num_seeds: Ints, tables: Sequence[tuple[int, ...]], device: torch.device
    ) -> None:
        types = {t: i for i, t in enumerate(graph.node_types)}
        self._ends = [(types[src], types[dst]) for src, _, dst in graph.edge_types]
        self._has_edges = [c.num_edges > 0 for c in graph.csc.values()]
        self._tables, self._device = tables, device
        self._num_samples, self._num_seeds = num_samples, num_seeds
        self._num_nodes = np.array([graph.num_nodes[t] for t in graph.node_types], np.int64)
        self.num_scopes = num_seeds.size
        room = num_seeds + num_samples.sum(0)
        self.nodes_at: Ints = np.concatenate([[0], np.cumsum(room.ravel())])
        self.hops = []
        old = np.zeros_like(num_seeds)
        for hop in range(len(num_samples)):
            new = np.minimum(old + self._added(hop), self._num_nodes)
            self.hops.append(self._hop(hop, old, new))
            old = new

    def _frontier(self, hop: int) -> Ints:
        """``[num_batches, num_types]``: the most nodes that a hop asks for."""
        if hop == 0:
            return self._num_seeds
        most: Ints = np.minimum(self._num_samples[hop - 1], self._num_nodes)
        return np.broadcast_to(most, self._num_seeds.shape)

    def _added(self, hop: int) -> Ints:
        """``[num_batches, num_types]``: the most neighbours that a hop lists."""
        added, frontier = np.zeros_like(self._num_seeds), self._frontier(hop)
        for (src, dst), has_edges in zip(self._ends, self._has_edges, strict=True):
            if has_edges:
                added[:, src] += frontier[:, dst] * _MAX_NEIGHBORS
        return added

    def _hop(self, hop: int, old: Ints, new: Ints) -> HopPlan:
        frontier = self._frontier(hop)
        num_listed = self._num_seeds + self._num_samples[:hop].sum(0)
        lengths = (num_listed + old + self._added(hop)).ravel()
        list_at = np.cumsum(lengths) - lengths
        added_at = (list_at + (num_listed + old).ravel()).reshape(old.shape)
        jobs, at = [], added_at.copy()
        for e, (src, dst) in enumerate(self._ends):
            for b in range(len(frontier)):
                if frontier[b, dst] > 0 and self._has_edges[e]:
                    scope = b * len(self._num_nodes)
                    jobs.append((scope + src, scope + dst, at[b, src], frontier[b, dst], *self._tables[e][:3], e))
                    at[b, src] += frontier[b, dst] * _MAX_NEIGHBORS
        scopes = np.stack(
            [
                self.nodes_at[:-1],
                np.cumsum(old) - old.ravel(),
                np.cumsum(new) - new.ravel(),
                list_at,
                list_at + num_listed.ravel(),
                added_at.ravel(),
                list_at + lengths,
                np.broadcast_to(self._num_samples[hop], old.shape).ravel(),
            ],
            axis=1,
        )
        return HopPlan(
            scopes=torch.from_numpy(scopes).to(self._device),
            jobs=torch.tensor(jobs, dtype=torch.int64).to(self._device),
            num_jobs=len(jobs),
            list_length=int(lengths.sum()),
            longest=int((num_listed + old).max()),
            num_candidates=int(new.sum()),
            frontier=int(max((job[3] for job in jobs), default=0)),
        )
