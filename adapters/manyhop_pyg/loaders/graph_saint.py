"""The three loaders of GraphSAINT, with their coefficients of normalisation."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch_geometric.loader
from torch import Tensor
from torch.utils.data import DataLoader
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
from manyhop_pyg.loaders.node_sets import NodeSetLoader, check_data
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.samplers.subgraphs import SaintSampler
from manyhop_pyg.typing import Batch

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
