"""The loader of seeds with their neighbours by personalised PageRank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.samplers.page_rank import PageRankSampler
from manyhop_pyg.typing import PyGData


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
