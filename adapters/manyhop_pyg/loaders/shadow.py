"""Loaders of subgraphs around each seed: ShaDow-GNN, PageRank neighbours."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Batch as GraphBatch
from torch_geometric.data import Data

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop_pyg.loaders.check import check_features
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.subgraphs import EgoSampler, PageRankSampler
from manyhop_pyg.typing import Attributes, Batch, PyGData, Sample


class _EgoLoader(NodeLoader):
    """What loaders share whose batches have a graph of its own for each seed.

    Args:
        data: ``Data``.
        sampler: samples the nodes of a seed one after the other, the seed first.
        node_idx: the seeds.
        kwargs: what the user passes, for :class:`NodeLoader`.

    Raises:
        InputError: other arguments that define the nodes of a batch.
    """

    def __init__(self, data: Data, sampler: NeighborSampler, node_idx: Tensor | None, kwargs: dict[str, Any]) -> None:
        for name in ("input_nodes", "input_time", "node_sampler"):
            if name in kwargs:
                raise InputError(f"Expected no {name}: node_idx defines the batches. Leave it out.")
        self.node_idx = node_idx
        check_features(data, None)
        y = data.get("y")
        self._labels_nodes = isinstance(y, Tensor) and y.dim() > 0 and y.size(0) == data.num_nodes
        super().__init__(
            data=data if isinstance(data, GraphBatch) else GraphBatch(_base_cls=type(data), **data.to_dict()),
            node_sampler=sampler,
            input_nodes=node_idx,
            **kwargs,
        )

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        (into,) = super()._label(batch, out)
        del into["batch_size"]  # a property of these batches
        graphs = torch.arange(out.metadata[0].numel() + 1, device=out.batch.device)
        into["ptr"] = ptr = torch.searchsorted(out.batch, graphs)
        into["root_n_id"] = ptr[:-1]
        if self._labels_nodes:
            into["y"] = batch.y[ptr[:-1].to(batch.y.device)]
        return [into]


class ShaDowKHopSampler(_EgoLoader, torch_geometric.loader.ShaDowKHopSampler):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``ShaDowKHopSampler``, without torch-sparse: the neighbourhood of each seed as a graph of its own.

    Each graph (arXiv 2201.07858) has the nodes that ``depth`` hops reach and all edges of the data among them. A batch
    is a ``Batch`` of these graphs, with

    - ``batch [num_nodes]``, ``ptr [batch_size + 1]``: the graph of each node, and where each graph begins;
    - ``root_n_id [batch_size]``: where the seeds are, the first node of each graph;
    - ``y [batch_size]``: labels of the seeds only, where the data has one label per node;
    - ``n_id``, ``e_id``, ``input_id``, and the rows of all other node and edge attributes.

    Args:
        data: ``Data``.
        depth: number of hops.
        num_neighbors: neighbours sampled per node in each hop; -1: all.
        node_idx: ``[num_seeds]`` ids of the seeds, or a mask ``[num_nodes]``; ``None``: all nodes.
        replace: sample with replacement.
        **kwargs: of :class:`NodeLoader` but for ``input_nodes``, and of torch's ``DataLoader``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    @keeps_arguments
    def __init__(
        self,
        data: Data,
        depth: int,
        num_neighbors: int,
        node_idx: Tensor | None = None,
        replace: bool = False,
        **kwargs: Any,
    ) -> None:
        self.depth = integer("depth", depth, 1)
        self.num_neighbors = integer("num_neighbors", num_neighbors, -1)
        self.replace = replace
        sampler = EgoSampler(_check(data), self.depth, self.num_neighbors, replace=replace)
        super().__init__(data, sampler, node_idx, kwargs)


class ShaDowPPRSampler(_EgoLoader):
    """Each seed with its neighbours by personalised PageRank, as a graph of its own, with all edges inside.

    The other sampler of ShaDow-GNN (arXiv 2201.07858). Batches are those of :class:`ShaDowKHopSampler`; neighbours are
    found as those of :class:`PPRLoader`, and come by falling rank.

    Args:
        data: ``Data``.
        num_neighbors: neighbours per seed, the seed among them where its rank is high enough.
        node_idx: ``[num_seeds]`` ids of the seeds, or a mask ``[num_nodes]``; ``None``: all nodes.
        alpha, eps: see :class:`PPRLoader`.
        **kwargs: as of :class:`ShaDowKHopSampler`.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    @keeps_arguments
    def __init__(
        self,
        data: Data,
        num_neighbors: int,
        node_idx: Tensor | None = None,
        alpha: float = 0.2,
        eps: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        self.num_neighbors = integer("num_neighbors", num_neighbors, 1)
        self.alpha, self.eps = alpha, eps
        sampler = PageRankSampler(_check(data), self.num_neighbors, alpha, eps, disjoint=True)
        super().__init__(data, sampler, node_idx, kwargs)
        sampler.find(self.input_data.node, torch.get_num_threads())

    @property
    def reads_inputs_on_host(self) -> bool:
        return True  # which finds the neighbours


def _check(data: object) -> Data:
    if not isinstance(data, Data):
        raise InputError(f"Expected data to be Data, got {type(data).__name__}. Use NeighborLoader with disjoint=True.")
    return data


class PPRLoader(NodeLoader):
    """Mini-batches of seeds and their neighbours by personalised PageRank, with all edges of the data among them.

    The neighbours of a node are the nodes from which its prediction takes most: where random walks from it, against the
    direction of the edges, end most often (as in arXiv 2201.07858 and 2212.09083). They are a function of the graph
    alone; those of the input nodes are found when the loader is made, by as many threads as torch has. A batch has the
    seeds first (``batch_size`` rows, duplicates kept), then the other neighbours of all of them, in ascending order;
    the edges by destination; ``n_id``, ``e_id``, ``input_id``, and the rows of all node and edge attributes.

    Args:
        data: ``Data``, or ``(FeatureStore, GraphStore)`` without types.
        num_neighbors: neighbours per seed, the seed among them.
        input_nodes: ``[num_seeds]`` ids or a mask ``[num_nodes]``; ``None``: all nodes.
        alpha: probability that a walk ends before each step. Small: neighbours far away count, too.
        eps: how exact ranks are: a node is pushed while its residual is at least ``alpha * eps`` times its number of
            in-edges. Ten times smaller takes up to ten times as long.
        **kwargs: of :class:`NodeLoader` but for ``input_time``, and of torch's ``DataLoader``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    @keeps_arguments
    def __init__(
        self,
        data: PyGData,
        num_neighbors: int,
        input_nodes: Tensor | None = None,
        alpha: float = 0.2,
        eps: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        for name in ("input_time", "node_sampler"):
            if name in kwargs:
                raise InputError(f"Expected no {name}: num_neighbors, alpha and eps define the batches. Leave it out.")
        self.num_neighbors = integer("num_neighbors", num_neighbors, 1)
        self.alpha, self.eps = alpha, eps
        sampler = PageRankSampler(data, self.num_neighbors, alpha, eps)
        super().__init__(data=data, node_sampler=sampler, input_nodes=input_nodes, **kwargs)
        sampler.find(self.input_data.node, torch.get_num_threads())

    @property
    def reads_inputs_on_host(self) -> bool:
        return True  # which finds the neighbours
