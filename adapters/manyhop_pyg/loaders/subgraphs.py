"""Loaders of subgraphs: GraphSAINT, with its coefficients of normalisation, ShaDow-GNN, PageRank neighbours."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Batch as GraphBatch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

from manyhop.arguments import flag, integer, path_of
from manyhop.errors import InputError
from manyhop.files.saved_tensors import load_safely
from manyhop.loading import BatchContext
from manyhop.memory.stores.copies import checksum
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, make_key
from manyhop.sampling.walks import SaintMethod
from manyhop.system.progress import Progress
from manyhop_pyg.data.convert import edge_list, plain
from manyhop_pyg.loaders.check import check_features
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.loaders.node_sets import NodeSetLoader, check_data, refuse, save_whole
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.samplers.subgraphs import EgoSampler, PageRankSampler, SaintSampler
from manyhop_pyg.typing import Attributes, Batch, PyGData, Sample

_STEP = NodeSamplerInput(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
"""Any one: the nodes depend on the key only."""
_NORMS = ("node_norm", "edge_norm")


class _SaintLoader(NodeSetLoader):
    """The base class of GraphSAINT's loaders."""

    _method: SaintMethod
    walk_length = 1

    @keeps_arguments
    def __init__(
        self,
        data: Data,
        batch_size: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: object,
    ) -> None:
        data = copy.copy(check_data(data))
        for name in _NORMS:
            if name in data:
                raise InputError(f"Expected data without an attribute '{name}', which batches get. Rename it.")
        self._batch_size = integer("batch_size", batch_size, 1)
        self.num_steps = integer("num_steps", num_steps, 1)
        self.sample_coverage = integer("sample_coverage", sample_coverage, 0)
        self.save_dir = save_dir
        self.log = flag("log", log)
        sampler = SaintSampler(data, self._method, self._batch_size, self.walk_length)
        if self.sample_coverage > 0:
            seed = integer("seed", kwargs.get("seed") or 0)
            num_threads = max(1, integer("num_workers", kwargs.get("num_workers", 0), 0))
            norms = self._load_norms(data) or self._estimate_norms(data, sampler, seed, num_threads)
            for name, norm in zip(_NORMS, norms, strict=True):
                data[name] = norm
        super().__init__(data, sampler, self.num_steps, kwargs)

    def batch(
        self, seeds: object = None, *, input_time: object = None, key: tuple[int, int, int] | None = None
    ) -> Batch:
        """Return the batch of a key now, with features and transforms.

        Args:
            seeds, input_time: not supported, since nodes are drawn.
            key: ``(seed, epoch, batch)``, as in :meth:`NodeLoader.batch`.

        Raises:
            InputError: seeds, times or a wrong key.
        """
        if seeds is not None or input_time is not None:
            raise InputError(f"Expected key alone, got seeds: {type(self).__name__} draws its nodes. Pass key=.")
        return self._batch_around(_STEP, key)

    def __len__(self) -> int:
        return super().__len__() if self._ranks is not None else DataLoader.__len__(self)  # not PyG's num_steps

    def _load_norms(self, data: Data) -> tuple[Tensor, Tensor] | None:
        path = self._norm_file()
        if path is None or not path.exists():
            return None
        found = load_safely(path, [], "Remove the file.")
        if not isinstance(found, dict) or found.get("of") != self._norm_facts(data):
            raise InputError(
                f"Expected coefficients of this graph and batch_size in {path}, got others. Remove the file, or name "
                "another save_dir."
            )
        return found["node_norm"], found["edge_norm"]

    def _estimate_norms(self, data: Data, sampler: SaintSampler, seed: int, num_threads: int) -> tuple[Tensor, Tensor]:
        """Count in how many subgraphs nodes and edges are, until these have ``sample_coverage`` nodes per node."""
        num_nodes, num_edges = data.num_nodes, data.num_edges
        nodes, edges = torch.zeros(num_nodes), torch.zeros(num_edges)
        num_samples, found, wanted = 0, 0, num_nodes * self.sample_coverage
        own_seed = int(make_key(Use.SAINT, seed))

        def sample(number: int) -> SamplerOutput:
            with BatchContext(BatchKey(own_seed, 0, number), None):
                return sampler.sample_from_nodes(_STEP)

        bar = Progress("GraphSAINT's coefficients", wanted, unit="nodes", show=None if self.log else False)
        with ThreadPoolExecutor(num_threads) as pool:
            while found < wanted:
                for out in pool.map(sample, range(num_samples, num_samples + self.num_steps)):
                    nodes[out.node.long()] += 1
                    edges[out.edge] += 1
                    found += out.node.numel()
                    bar.add(out.node.numel())
                num_samples += self.num_steps
        bar.close()
        edge_norm = (nodes[edge_list(data.edge_index)[0].long().cpu()] / edges).clamp_(0, 1e4)
        edge_norm[edge_norm.isnan()] = 0.1
        norms = num_samples / nodes.clamp_(min=0.1) / num_nodes, edge_norm
        if (path := self._norm_file()) is not None:
            save_whole({"of": self._norm_facts(data), "node_norm": norms[0], "edge_norm": norms[1]}, path)
        return norms

    def _norm_file(self) -> Path | None:
        return None if self.save_dir is None else path_of("save_dir", self.save_dir) / f"manyhop_{self._filename}"

    def _norm_facts(self, data: Data) -> dict[str, int]:
        """Return facts that coefficients depend on, except those in the name of the file."""
        edges = checksum(plain(data.edge_index).long(), whole=data.num_edges * 16)
        return {"num_nodes": data.num_nodes, "edges": edges, "batch_size": self._batch_size}


class GraphSAINTNodeSampler(_SaintLoader, torch_geometric.loader.GraphSAINTNodeSampler):  # type: ignore[misc]
    """Load subgraphs of the sources of random edges: PyG's ``GraphSAINTNodeSampler``, without torch-sparse.

    Each batch (arXiv 1907.04931) has the distinct nodes of ``batch_size`` draws in ascending order, all edges between
    them by source, ``n_id``, ``e_id``, and the rows of all node and edge attributes. With ``sample_coverage``, it also
    has normalisation coefficients, ``node_norm [num_nodes]`` and ``edge_norm [num_edges]``. The constructor estimates
    them from separate subgraphs, which depend only on ``seed`` (default: 0).

    Args:
        data: ``Data`` with ``edge_index``.
        batch_size: number of draws per batch, with replacement.
        num_steps: number of batches.
        sample_coverage: sampled nodes per node of the graph to estimate coefficients from; 0: no coefficients.
        save_dir: folder to save the coefficients in, and to load them from if they exist. Coefficients of other edges
            or another ``batch_size`` raise an error. ``None``: do not save.
        log: whether to show progress on a terminal.
        **kwargs: arguments of :class:`NodeLoader`, except ``input_nodes`` and ``batch_size``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    _method = "nodes"


class GraphSAINTEdgeSampler(_SaintLoader, torch_geometric.loader.GraphSAINTEdgeSampler):  # type: ignore[misc]
    """Load subgraphs of the endpoints of random edges: PyG's ``GraphSAINTEdgeSampler``, without torch-sparse.

    As in PyG, an edge is drawn in proportion to the in-degree of its source plus the out-degree of its destination (in
    the paper, to the sum of their inverses). :class:`GraphSAINTNodeSampler` explains the arguments.
    """

    _method = "edges"


class GraphSAINTRandomWalkSampler(_SaintLoader, torch_geometric.loader.GraphSAINTRandomWalkSampler):  # type: ignore[misc]
    """Load subgraphs of nodes on random walks: PyG's ``GraphSAINTRandomWalkSampler``, without torch-sparse.

    :class:`GraphSAINTNodeSampler` explains the other arguments.

    Args:
        batch_size: number of walks per batch, from uniform nodes.
        walk_length: steps of each walk, along the edges.
    """

    _method = "walks"

    @keeps_arguments
    def __init__(
        self,
        data: Data,
        batch_size: int,
        walk_length: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: object,
    ) -> None:
        self.walk_length = integer("walk_length", walk_length, 1)
        super().__init__(data, batch_size, num_steps, sample_coverage, save_dir, log, **kwargs)


class ShaDowKHopSampler(NodeLoader, torch_geometric.loader.ShaDowKHopSampler):  # type: ignore[misc]  # PyG is untyped
    """Load the neighbourhood of each seed as a separate graph: PyG's ``ShaDowKHopSampler``, without torch-sparse.

    Each graph (arXiv 2201.07858) has the nodes within ``depth`` sampled hops and all edges between them. A batch is a
    ``Batch`` of these graphs, with

    - ``batch [num_nodes]``, ``ptr [batch_size + 1]``: graph of each node, and first node of each graph;
    - ``root_n_id [batch_size]``: positions of the seeds, the first node of each graph;
    - ``y [batch_size]``: labels of the seeds, if the data has one label per node;
    - ``n_id``, ``e_id``, ``input_id``, and the rows of all other node and edge attributes.

    Args:
        data: ``Data``.
        depth: number of hops.
        num_neighbors: neighbours sampled per node in each hop; -1: all.
        node_idx: ``[num_seeds]`` ids of the seeds, or a mask ``[num_nodes]``; ``None``: all nodes.
        replace: sample with replacement.
        **kwargs: arguments of :class:`NodeLoader`, except ``input_nodes``.

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
        self.node_idx = node_idx
        refuse(kwargs, ("input_nodes", "input_time", "node_sampler"), "node_idx defines the batches")
        if not isinstance(data, Data):
            raise InputError(
                f"Expected data to be Data, got {type(data).__name__}. Use NeighborLoader with disjoint=True."
            )
        sampler = EgoSampler(data, self.depth, self.num_neighbors, replace=replace)
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


class PPRLoader(NodeLoader):
    """Load mini-batches of seeds, their neighbours by personalised PageRank, and all edges between them.

    The neighbours of a node are the most frequent ends of random walks from it, against the direction of edges (arXiv
    2201.07858 and 2212.09083). They depend only on the graph; the constructor finds those of the input nodes, on all of
    torch's threads. A batch has the seeds first (``batch_size`` rows, including duplicates), then the other neighbours
    in ascending order; edges by destination; ``n_id``, ``e_id``, ``input_id``, and the rows of all node and edge
    attributes.

    Args:
        data: ``Data``, or a homogeneous ``(FeatureStore, GraphStore)``.
        num_neighbors: neighbours per seed, including the seed.
        input_nodes: ``[num_seeds]`` ids or a mask ``[num_nodes]``. ``None``: all nodes.
        alpha: probability that a walk ends before each step. Smaller values include more distant neighbours.
        eps: precision of the ranks: a node is pushed while its residual is at least ``alpha * eps`` times its number of
            in-edges. A tenth takes up to ten times as long.
        **kwargs: arguments of :class:`NodeLoader`, except ``input_time``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    _reads_inputs_on_host = True  # which finds the neighbours

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
        refuse(kwargs, ("input_time", "node_sampler"), "num_neighbors, alpha and eps define the batches")
        self.num_neighbors = integer("num_neighbors", num_neighbors, 1)
        self.alpha, self.eps = alpha, eps
        sampler = PageRankSampler(data, self.num_neighbors, alpha, eps)
        super().__init__(data=data, node_sampler=sampler, input_nodes=input_nodes, **kwargs)
        sampler.find(self.input_data.node, torch.get_num_threads())
