"""Subgraphs of sets of nodes, with all edges inside."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_NODE
from manyhop.sampling import BatchKey, NodeRequest
from manyhop.sampling.walks import SaintDraws, SaintMethod
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.typing import PyGData


class NodeSetSampler(NeighborSampler):
    """Samples the subgraph of a set of nodes: those of some clusters, drawn for the batch, or near its seeds.

    Args:
        data: without types.
        sample_direction: ``"forward"``: edges by destination; ``"backward"``: by source.
        disjoint: whether there are several sets, whose nodes are not joined.
    """

    def __init__(
        self, data: PyGData, sample_direction: Literal["forward", "backward"], *, disjoint: bool = False
    ) -> None:
        super().__init__(data, [], subgraph_type="induced", sample_direction=sample_direction, disjoint=disjoint)

    def nodes_of(self, index: Tensor, key: BatchKey) -> Tensor:
        """Return the nodes of a batch.

        Args:
            index: ``[batch_size] int64`` seeds.
            key: of the batch.
        """
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        """Return what the sets depend on, besides the graph."""
        raise NotImplementedError

    def node_request(self, index: NodeSamplerInput, key: BatchKey) -> NodeRequest:
        """What the engine is asked for."""
        return NodeRequest(key=key, seeds={HOMOGENEOUS_NODE: self.nodes_of(index.node, key)})


class SaintSampler(NodeSetSampler):
    """Samples subgraphs of GraphSAINT; see :class:`manyhop.sampling.walks.SaintDraws`."""

    def __init__(self, data: Data, method: SaintMethod, num_draws: int, walk_length: int) -> None:
        super().__init__(data, "backward")
        self._arguments = method, num_draws, walk_length
        self._draws = SaintDraws(self.topology.graph, *self._arguments)

    def __getstate__(self) -> dict[str, object]:
        state = super().__getstate__()
        del state["_draws"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._draws = SaintDraws(self.topology.graph, *self._arguments)

    def nodes_of(self, index: Tensor, key: BatchKey) -> Tensor:
        """Draw the nodes of a batch."""
        return self._draws.draw(key)

    def facts(self) -> dict[str, object]:
        """Return how nodes are drawn."""
        return {"draws": self._arguments}


class ClusterSampler(NodeSetSampler):
    """Samples the subgraph of some clusters, each of nodes that follow each other.

    Args:
        data: without types.
        sample_direction: as of :class:`NodeSetSampler`.
        begin: ``[num_clusters + 1] int64``: where the nodes of each cluster begin.
    """

    def __init__(self, data: Data, sample_direction: Literal["forward", "backward"], begin: Tensor) -> None:
        super().__init__(data, sample_direction)
        self._begin = begin

    def nodes_of(self, index: Tensor, key: BatchKey) -> Tensor:
        """Return the nodes of the clusters, one after the other."""
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self._begin.numel() - 1:
            raise InputError(f"Expected clusters in [0, {self._begin.numel() - 1}), got {index.tolist()}.")
        first = self._begin[index]
        size = self._begin[index + 1] - first
        within = torch.arange(int(size.sum())) - (size.cumsum(0) - size).repeat_interleave(size)
        return first.repeat_interleave(size) + within

    def facts(self) -> dict[str, object]:
        """Return where clusters begin."""
        return {"clusters": self._begin}
