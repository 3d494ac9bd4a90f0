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
from manyhop.files.disk_room import replacing
from manyhop.files.saved_tensors import load_safely
from manyhop.loading import BatchContext
from manyhop.memory.stores.checksums import checksum
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, make_key
from manyhop.sampling.walks import SaintMethod
from manyhop.system.progress import Progress
from manyhop_pyg.data.convert import edge_list, plain
from manyhop_pyg.loaders.check import check_features
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.loaders.node_sets import NodeSetLoader, check_data
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.subgraphs import EgoSampler, PageRankSampler, SaintSampler
from manyhop_pyg.typing import Attributes, Batch, PyGData, Sample

_STEP = NodeSamplerInput(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
"""Any one: the nodes depend on the key only."""
_NORMS = ("node_norm", "edge_norm")


class _SaintLoader(NodeSetLoader):
    """What the three loaders share."""

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
            seeds, input_time: none: the nodes are drawn.
            key: ``(seed, epoch, batch)``, as of :meth:`NodeLoader.batch`.

        Raises:
            InputError: seeds or times, or a key that does not make sense.
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
        path = self._norm_file()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"of": self._norm_facts(data), "node_norm": norms[0], "edge_norm": norms[1]}
            with replacing(path) as partial:
                torch.save(content, partial)
        return norms

    def _norm_file(self) -> Path | None:
        return None if self.save_dir is None else path_of("save_dir", self.save_dir) / f"manyhop_{self._filename}"

    def _norm_facts(self, data: Data) -> dict[str, int]:
        """What coefficients depend on beside what the name of the file has."""
        edges = checksum(plain(data.edge_index).long(), whole=data.num_edges * 16)
        return {"num_nodes": data.num_nodes, "edges": edges, "batch_size": self._batch_size}


class GraphSAINTNodeSampler(_SaintLoader, torch_geometric.loader.GraphSAINTNodeSampler):  # type: ignore[misc]
    """PyG's ``GraphSAINTNodeSampler``, without torch-sparse: subgraphs of the sources of random edges.

    Each batch (arXiv 1907.04931) has the distinct nodes of ``batch_size`` draws, in ascending order, and all edges of
    the data among them, by source; ``n_id``, ``e_id``, and the rows of all node and edge attributes. With
    ``sample_coverage``, it has ``node_norm [num_nodes]`` and ``edge_norm [num_edges]``, the coefficients of
    normalisation. They are estimated when the loader is made, from subgraphs of their own, which are a function of
    ``seed`` (0 if there is none), and of nothing else.

    Args:
        data: ``Data`` with ``edge_index``.
        batch_size: number of draws per batch, with replacement.
        num_steps: number of batches.
        sample_coverage: how many nodes per node of the graph the subgraphs have that coefficients are estimated from;
            0: no coefficients.
        save_dir: folder where the coefficients are kept, and read from if they are there; ``None``: nowhere. Those
            of other edges or of another ``batch_size`` are refused.
        log: whether to show progress on a terminal.
        **kwargs: of :class:`NodeLoader` but for ``input_nodes``, and of torch's ``DataLoader`` but for
            ``batch_size``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    _method = "nodes"


class GraphSAINTEdgeSampler(_SaintLoader, torch_geometric.loader.GraphSAINTEdgeSampler):  # type: ignore[misc]
    """PyG's ``GraphSAINTEdgeSampler``, without torch-sparse: subgraphs of the ends of random edges.

    An edge is drawn, as in PyG, in proportion to the number of edges into its source plus that of edges out of its
    destination (in the paper, to the sum of their inverses). See :class:`GraphSAINTNodeSampler` for the rest.
    """

    _method = "edges"


class GraphSAINTRandomWalkSampler(_SaintLoader, torch_geometric.loader.GraphSAINTRandomWalkSampler):  # type: ignore[misc]
    """PyG's ``GraphSAINTRandomWalkSampler``, without torch-sparse: subgraphs of what random walks visit.

    See :class:`GraphSAINTNodeSampler` for the rest.

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
