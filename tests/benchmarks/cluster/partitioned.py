"""Rows that batches request of each part of a graph that METIS has cut, with seeds of the rank's own part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.ranks.simulated import owners_of, seeds_of
from manyhop.files import StoredGraph
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop_tools.convert.partition import metis_order

Ints = npt.NDArray[np.int64]


def requests_of_own_seeds(
    graph: StoredGraph, ranks: int, fanouts: Sequence[int], batch_size: int, batches: int
) -> tuple[Ints, Ints]:
    """Sample batches of each rank.

    Args:
        graph: what is cut, as ``manyhop convert --partition`` does.
        ranks: parts of it.
        fanouts: neighbours per hop.
        batch_size: seeds of a batch.
        batches: of each rank, at most.

    Returns:
        ``[num_batches, ranks]``: rows that a batch requests of each rank, and ``[num_batches]``: its own rank.
    """
    order = metis_order(graph, ranks, lambda line: None) if ranks > 1 else {}
    owners, built = owners_of(graph, order, ranks), graph.build()
    sampler = CPUSampler(built, NeighborSpec(fanouts=dict.fromkeys(built.edge_types, tuple(fanouts))))
    requests: list[Ints] = []
    homes: list[int] = []
    for rank, name, seeds in seeds_of(owners, True, batch_size, batches):
        sample = sampler.sample(NodeRequest(key=BatchKey(0, 0, len(homes)), seeds={name: seeds}))
        counts = [np.bincount(owners[each][ids.numpy()], minlength=ranks) for each, ids in sample.node.items()]
        requests.append(np.sum(counts, axis=0))
        homes.append(rank)
    return np.array(requests), np.array(homes)
