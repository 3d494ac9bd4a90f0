"""The memory layout of a launch of HGT sampling, hop by hop, computed before any draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import Graph
from manyhop.sampling.gpu.kernels import hgt as kernels

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HopPlan:
    """The tables of one hop, and the sizes of its working memory."""

    scopes: Tensor
    jobs: Tensor
    num_jobs: int
    list_length: int
    longest: int
    """Largest number of nodes and candidates of a scope."""
    num_candidates: int
    candidates: Ints
    """``[num_batches, num_types]``: largest numbers of candidates after the hop."""
    frontier: int
    """Largest number of frontier nodes of a job."""


class HGTPlan:
    """The memory layout for batches with given numbers of seeds.

    Args:
        graph: the topology.
        num_samples: ``[num_hops, num_types] int64``: nodes to add.
        num_seeds: ``[num_batches, num_types] int64``.
        limit: largest number of neighbours per node; ``None``: no limit, so that hops are planned one by one.
        tables: for each edge type: addresses of ``colptr`` and ``row``, whether ``row`` is int64.
        device: where kernels read the tables.
    """

    def __init__(
        self,
        graph: Graph,
        num_samples: Ints,
        num_seeds: Ints,
        limit: int | None,
        tables: Sequence[tuple[int, ...]],
        device: torch.device,
    ) -> None:
        types = {t: i for i, t in enumerate(graph.node_types)}
        self._ends = [(types[src], types[dst]) for src, _, dst in graph.edge_types]
        self._has_edges = [c.num_edges > 0 for c in graph.csc.values()]
        self._tables, self._device = tables, device
        self._num_samples, self._num_seeds = num_samples, num_seeds
        self._num_nodes = np.array([graph.num_nodes[t] for t in graph.node_types], np.int64)
        self.num_scopes = num_seeds.size
        node_capacity = num_seeds + num_samples.sum(0)
        self.nodes_at: Ints = np.concatenate([[0], np.cumsum(node_capacity.ravel())])
        self.hops: list[HopPlan] = []
        if limit is not None:
            old = self.no_candidates()
            for hop in range(len(num_samples)):
                jobs = self.jobs(hop)
                self.hops.append(self.hop(hop, jobs, jobs[:, kernels.FRONTIER_SIZE.value] * limit, old))
                old = self.hops[-1].candidates

    def no_candidates(self) -> Ints:
        """Return how many candidates there are before the first hop."""
        return np.zeros_like(self._num_seeds)

    def jobs(self, hop: int) -> Ints:
        """Return ``[num_jobs, JOB_COLUMNS]``, the frontiers of a hop, without the offsets of their neighbours."""
        frontier, num_types, jobs, at = self._frontier(hop), len(self._num_nodes), [], 0
        for e, (src, dst) in enumerate(self._ends):
            for scope, n in zip(range(0, self.num_scopes, num_types), frontier[:, dst].tolist(), strict=True):
                if n > 0 and self._has_edges[e]:
                    nodes_at = self.nodes_at[scope + dst]
                    jobs.append((scope + src, scope + dst, 0, n, *self._tables[e][:3], e, nodes_at, at))
                    at += n
        return np.array(jobs, np.int64).reshape(-1, kernels.JOB_COLUMNS.value)

    def _frontier(self, hop: int) -> Ints:
        """Return ``[num_batches, num_types]``, the largest frontiers of a hop."""
        if hop == 0:
            return self._num_seeds
        most: Ints = np.minimum(self._num_samples[hop - 1], self._num_nodes)
        return np.broadcast_to(most, self._num_seeds.shape)

    def hop(self, hop: int, jobs: Ints, lengths: Ints, old: Ints) -> HopPlan:
        """Return the plan of a hop.

        Args:
            jobs: its frontiers, from :meth:`jobs`.
            lengths: ``[num_jobs]``: largest number of neighbours that each lists.
            old: ``[num_batches, num_types]``: the most candidates before it.
        """
        src = jobs[:, kernels.SRC_SCOPE.value]
        added = np.zeros(self.num_scopes, np.int64)
        jobs = jobs.copy()
        for i, (scope, n) in enumerate(zip(src.tolist(), lengths.tolist(), strict=True)):
            jobs[i, kernels.ADD_AT.value] = added[scope]
            added[scope] += n
        new = np.minimum(old + added.reshape(old.shape), self._num_nodes)
        num_listed = self._num_seeds + self._num_samples[:hop].sum(0)
        lengths = (num_listed + old).ravel() + added
        list_at = np.cumsum(lengths) - lengths
        added_at = list_at + (num_listed + old).ravel()
        jobs[:, kernels.ADD_AT.value] += added_at[src]
        scopes = np.stack(
            [
                self.nodes_at[:-1],
                np.cumsum(old) - old.ravel(),
                np.cumsum(new) - new.ravel(),
                list_at,
                list_at + num_listed.ravel(),
                added_at,
                list_at + lengths,
                np.broadcast_to(self._num_samples[hop], old.shape).ravel(),
            ],
            axis=1,
        )
        return HopPlan(
            scopes=torch.from_numpy(scopes).to(self._device),
            jobs=torch.from_numpy(jobs).to(self._device),
            num_jobs=len(jobs),
            list_length=int(lengths.sum()),
            longest=int((num_listed + old).max()),
            num_candidates=int(new.sum()),
            candidates=new,
            frontier=int(jobs[:, kernels.FRONTIER_SIZE.value].max(initial=0)),
        )
