"""PyG's models that learn embeddings from random walks, and their loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Unpack

import torch
import torch_geometric.nn
from torch import Tensor

from manyhop.arguments import as_ids, integer, positions
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, EdgeType, NodeType, build_graph
from manyhop.graph.build import check_ids
from manyhop.loading import Epoch, Item, graph_facts, next_key, plain
from manyhop.loading.pipeline import Uneven
from manyhop.sampling import WalkRequest, WalkSpec
from manyhop.sampling.walks import NegativeWalker, Walker
from manyhop.system.ranges import ranged
from manyhop_pyg.data.convert import edge_list, nodes_in
from manyhop_pyg.loaders.adapter import pinned
from manyhop_pyg.loaders.options import RankOptions, SeedLoader, TorchOptions

Windows = tuple[Tensor, Tensor]
"""Positive and negative samples, ``[num_windows, context_size] int64`` each."""


class WalkLoader(SeedLoader[Windows]):
    """Load batches of positive and negative samples around nodes, prefetched by threads, in keyed order.

    A batch depends only on ``(seed, epoch, batch)``, on CPUs and GPUs. If the model is on a GPU, the caller enqueues
    the walks, without threads. :class:`manyhop_pyg.NodeLoader` explains the arguments.

    Args:
        num_starts: walks start at nodes 0, 1, ...
        sample: creates the samples of a batch around nodes ``[batch_size] int64``.
        facts: returns the current walker, and ``walks_per_node`` and other numbers that samples depend on.
        device: returns the current device of the samples.
        seed, distributed, uneven, rank_timeout: as in other loaders; batches have no ``is_padding``.
        **of_torch: arguments of torch's ``DataLoader``, applied to threads.

    Raises:
        InputError: arguments that do not make sense.
        RankError: with ``distributed=True``, ranks pass different arguments, or a rank is late.
    """

    def __init__(
        self,
        num_starts: int,
        sample: Callable[[Tensor], Windows],
        facts: Callable[[], tuple[Walker, dict[str, int]]],
        device: Callable[[], torch.device],
        *,
        seed: int | None = None,
        distributed: bool = False,
        uneven: Uneven | None = None,
        rank_timeout: float | None = None,
        **of_torch: Unpack[TorchOptions],
    ) -> None:
        self._sample, self._walks, self._find_device = sample, facts, device
        shuffle = self._set_up(num_starts, dict(of_torch), distributed, uneven, rank_timeout)
        self._set_up_epochs(num_starts, seed, shuffle=shuffle, own_order=self._own_order)
        self._prepare_ranks()

    def _settle_device(self) -> None:
        self._stats.on_gpu = self._is_on_gpu()

    def _device(self) -> torch.device:
        return self._find_device()

    def _is_on_gpu(self) -> bool:
        return self._device().type == "cuda"

    def _num_threads(self) -> int:
        return 0 if self._is_on_gpu() else self.num_workers

    def _nodes_of_seeds(self) -> list[tuple[Tensor, int]]:
        return [(torch.arange(self._num_items), self._num_items)]

    def _sources(self) -> list[object]:
        return []  # samples have no rows

    def _own_facts(self) -> dict[str, object]:
        return {"uneven": self.uneven, **plain(self._shape())}

    def _shape(self) -> dict[str, object]:
        walker, numbers = self._walks()
        return {"specification of the walks": walker.spec} | numbers | graph_facts(walker.graph)

    def _stages(self, epoch: Epoch) -> tuple[Callable[[int, Item], Windows], None, dict[str, Any]]:
        @ranged("sample")
        def make(batch: int, item: Item) -> Windows:
            rank_batch, index = item[0], epoch.to_index(item[1])
            with epoch.batch_context(batch, rank_batch):
                start = time.perf_counter()
                made = self.collate_fn(index)
                self._stats.record(rank_batch.batch, "sample", start, time.perf_counter())
            walker, numbers = self._walks()
            num_steps = len(index) * numbers["walks_per_node"] * len(walker.spec.steps)
            num_nodes = sum([part.numel() for part in made])
            rank_batch.contents.update(seeds=len(index), nodes=num_nodes, edges=num_steps)
            return pinned(made) if self._pins_batches else made

        return make, None, self._threads(self._num_threads())

    def collate_fn(self, index: Any) -> Windows:
        """Return the samples around nodes."""
        return self._sample(index if self._own_order else positions(index, self._num_items))

    def batch(self, seeds: Tensor | Sequence[int], *, key: tuple[int, int, int] | None = None) -> Windows:
        """Return the samples around these nodes now; see :meth:`manyhop_pyg.NodeLoader.batch`.

        Args:
            seeds: ``[num_seeds]`` nodes where walks start.
            key: ``(seed, epoch, batch)``; default: the loader's ``seed``, or 0 if it has none, and batch 0 of epoch 0.

        Raises:
            InputError: seeds or a key that do not make sense.
        """
        made: Windows = self._make_alone(key, lambda: self._sample(positions(seeds, self._num_items)))
        return made


class _WalkModel:
    """What both models pass to their loader."""

    embedding: torch.nn.Embedding
    _walks: Walker

    def _walker(self) -> Walker:
        return self._walks

    def _facts(self) -> tuple[Walker, dict[str, int]]:
        """Return the current walker, and other numbers that samples depend on, by name."""
        names = ("context_size", "walks_per_node", "num_negative_samples")
        return self._walker(), {name: int(getattr(self, name)) for name in names}

    def _device(self) -> torch.device:
        return self.embedding.weight.device


class Node2Vec(torch_geometric.nn.Node2Vec, _WalkModel):  # type: ignore[misc]  # PyG is untyped
    """Learn embeddings from random walks (arXiv 1607.00653): PyG's ``Node2Vec``, without pyg-lib and torch-cluster.

    Walks follow edges from source to destination and stay at nodes without out-edges. If the model is on the CPU, they
    run in the threads of ``loader(num_workers=...)``; if it is on a GPU, they run there, on a copy of the edges,
    without threads. Batches of the loader have keys; other calls draw one, so ``torch.manual_seed`` fixes them.

    With ``p`` or ``q``, a table of sorted edges needs 4 to 8 bytes per edge.

    Args:
        edge_index: ``[2, num_edges]`` integers.
        embedding_dim: width of the embedding of a node.
        walk_length: number of nodes of a walk, including the start.
        context_size: number of consecutive nodes of a positive sample.
        walks_per_node: number of walks per start node.
        p: return parameter: a step back to the previous node has weight ``1 / p``.
        q: in-out parameter: a step to a node without an edge to the previous node has weight ``1 / q``.
        num_negative_samples: negative samples per positive one.
        num_nodes: number of nodes; ``None``: the highest in ``edge_index``, plus 1.
        sparse: whether gradients of the embedding are sparse.

    Raises:
        InputError: arguments that do not make sense.
        GraphError: edges with ids out of range.
        CapacityError: the table of edges does not fit in memory.
    """

    def __init__(
        self,
        edge_index: Tensor,
        embedding_dim: int,
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        num_negative_samples: int = 1,
        num_nodes: int | None = None,
        sparse: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)  # PyG's constructor requires pyg-lib
        src, dst = ends = edge_list(edge_index).cpu()
        if integer("walk_length", walk_length, 2) < integer("context_size", context_size, 1):
            raise InputError(
                f"Expected context_size of at most walk_length, got {context_size} and {walk_length}. Walk further."
            )
        num_nodes = nodes_in(ends) if num_nodes is None else num_nodes
        self.EPS = 1e-15
        self.num_nodes = integer("num_nodes", num_nodes, 1)
        self.embedding_dim = integer("embedding_dim", embedding_dim, 1)
        self.walk_length = walk_length - 1  # steps, as in PyG
        self.context_size = context_size
        self.walks_per_node = integer("walks_per_node", walks_per_node, 1)
        self.p, self.q = p, q
        self.num_negative_samples = integer("num_negative_samples", num_negative_samples, 1)
        edges = EdgeInput(row=dst, col=src, reversed=True)  # the engine walks from destination to source
        graph = build_graph({HOMOGENEOUS_NODE: self.num_nodes}, {HOMOGENEOUS_EDGE: edges})
        self._walks = Walker(graph, self._spec())
        self._negatives = NegativeWalker((self.num_nodes,) * self.walk_length)
        self.embedding = torch.nn.Embedding(self.num_nodes, self.embedding_dim, sparse=sparse)
        self.reset_parameters()

    def loader(self, **kwargs: Unpack[RankOptions]) -> WalkLoader:
        """Return a loader of positive and negative samples around all nodes; see :class:`WalkLoader`."""
        return WalkLoader(self.num_nodes, self.sample, self._facts, self._device, **kwargs)

    def sample(self, batch: list[int] | Tensor) -> Windows:
        """Return positive and negative samples around nodes, on the device of the embedding."""
        return super().sample(as_ids("batch", batch).to(self._device()))  # type: ignore[no-any-return]

    def pos_sample(self, batch: Tensor) -> Tensor:
        """Return the windows of walks from nodes: ``[num_windows * walks_per_node * batch_size, context_size]``."""
        start = as_ids("batch", batch).repeat(self.walks_per_node)
        walks = self._walker().sample(WalkRequest(key=next_key(), start=start)).node
        last = (walks >= 0).sum(1, keepdim=True) - 1
        walks = torch.where(walks < 0, walks.gather(1, last), walks)
        return _windows(walks, self.context_size)

    def neg_sample(self, batch: Tensor) -> Tensor:
        """Return the windows of uniform nodes after each node, as many as ``num_negative_samples`` walks have."""
        num_nodes = (self.num_nodes,) * self.walk_length
        if self._negatives.num_nodes != num_nodes:
            self._negatives = NegativeWalker(num_nodes)
        start = as_ids("batch", batch).repeat(self.walks_per_node * self.num_negative_samples)
        return _windows(self._negatives.sample(WalkRequest(key=next_key(), start=start)), self.context_size)

    def _walker(self) -> Walker:
        if self._walks.spec != self._spec():  # the attributes may be set, as in PyG
            self._walks = Walker(self._walks.graph, self._spec())
        return self._walks

    def _spec(self) -> WalkSpec:
        return WalkSpec(steps=(HOMOGENEOUS_EDGE,) * self.walk_length, p=self.p, q=self.q)


class MetaPath2Vec(torch_geometric.nn.MetaPath2Vec, _WalkModel):  # type: ignore[misc]
    """Learn embeddings from walks along a metapath: PyG's ``MetaPath2Vec``, with one kernel per batch.

    A walk that cannot continue visits the dummy node, as in PyG. Walks run on the same device and with the same keys as
    those of :class:`Node2Vec`.

    Args:
        edge_index_dict: edge type -> ``[2, num_edges]`` integers.
        embedding_dim: width of the embedding of a node.
        metapath: edge types that a walk follows repeatedly, from source to destination.
        walk_length: number of steps of a walk.
        context_size: number of consecutive nodes of a positive sample.
        walks_per_node: number of walks per start node.
        num_negative_samples: negative samples per positive one.
        num_nodes_dict: node type -> number of nodes; ``None``: from the edges.
        sparse: whether gradients of the embedding are sparse.

    Raises:
        InputError: a metapath with unknown or unconnected edge types, or too short for the walk.
        GraphError: edges with ids out of range.
    """

    def __init__(
        self,
        edge_index_dict: dict[EdgeType, Tensor],
        embedding_dim: int,
        metapath: list[EdgeType],
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        num_negative_samples: int = 1,
        num_nodes_dict: dict[NodeType, int] | None = None,
        sparse: bool = False,
    ) -> None:
        _check_metapath(edge_index_dict, metapath, integer("walk_length", walk_length, 1))
        if walk_length + 1 < integer("context_size", context_size, 1):
            raise InputError(
                f"Expected context_size of at most walk_length + 1, got {context_size} and {walk_length}. Walk further."
            )
        edges = {t: edge_list(edge_index) for t, edge_index in edge_index_dict.items()}
        given = _count_nodes(edges) if num_nodes_dict is None else num_nodes_dict
        num_nodes = {t: integer(f"num_nodes_dict['{t}']", number, 0) for t, number in given.items()}
        for t, (src, dst) in edges.items():  # PyG's constructor writes to memory by them
            if missing := [end for end in (t[0], t[2]) if end not in num_nodes]:
                raise InputError(f"Expected num_nodes_dict with all types of {t}, got none for '{missing[0]}'. Add it.")
            check_ids(t, "source", src, num_nodes[t[0]])
            check_ids(t, "destination", dst, num_nodes[t[2]])
        super().__init__(
            {t: ends.long() for t, ends in edges.items()},
            integer("embedding_dim", embedding_dim, 1),
            metapath,
            walk_length,
            context_size,
            integer("walks_per_node", walks_per_node, 1),
            integer("num_negative_samples", num_negative_samples, 1),
            num_nodes,
            sparse,
        )
        along = {tuple(t): (t[2], t[1], t[0]) for t in metapath}  # the engine walks from destination to source
        graph = build_graph(
            self.num_nodes_dict,
            {ours: EdgeInput(row=self.col_dict[t], colptr=self.rowptr_dict[t]) for t, ours in along.items()},
        )
        steps = tuple(along[tuple(metapath[i % len(metapath)])] for i in range(walk_length))
        self._walks = Walker(graph, WalkSpec(steps=steps))
        self._negatives = NegativeWalker([self.num_nodes_dict[step[0]] for step in steps])

    def loader(self, **kwargs: Unpack[RankOptions]) -> WalkLoader:
        """Return a loader of samples around all nodes of the metapath's first type; see :meth:`Node2Vec.loader`."""
        num_starts = self.num_nodes_dict[self.metapath[0][0]]
        return WalkLoader(num_starts, self._sample, self._facts, self._device, **kwargs)

    def _sample(self, batch: list[int] | Tensor) -> Windows:
        return super()._sample(as_ids("batch", batch).to(self._device()))  # type: ignore[no-any-return]

    def _pos_sample(self, batch: Tensor) -> Tensor:
        start = batch.repeat(self.walks_per_node)
        walks = self._walks.sample(WalkRequest(key=next_key(), start=start)).node
        return _windows(torch.where(walks < 0, self.dummy_idx, walks + self.offset.to(walks.device)), self.context_size)

    def _neg_sample(self, batch: Tensor) -> Tensor:
        start = batch.repeat(self.walks_per_node * self.num_negative_samples)
        drawn = self._negatives.sample(WalkRequest(key=next_key(), start=start))
        return _windows(drawn + self.offset.to(drawn.device), self.context_size)


def _check_metapath(edges: Mapping[EdgeType, object], metapath: Sequence[EdgeType], walk_length: int) -> None:
    """Raise InputError unless walks of this length can follow the metapath."""
    if not metapath:
        raise InputError("Expected metapath with at least one edge type, got none.")
    if unknown := [tuple(t) for t in metapath if tuple(t) not in edges]:
        raise InputError(f"Unknown edge type {unknown[0]} in metapath. edge_index_dict has: {list(edges)}.")
    for before, after in pairwise(metapath):
        if before[2] != after[0]:
            raise InputError(
                f"Expected each edge type of metapath to start where the last one ends, got {after} after {before}."
            )
    if walk_length > len(metapath) and metapath[0][0] != metapath[-1][2]:
        raise InputError(
            f"Expected a metapath that ends where it starts, as walk_length={walk_length} is more than its "
            f"{len(metapath)} edge types, got '{metapath[0][0]}' to '{metapath[-1][2]}'. Close it, or walk less far."
        )


def _count_nodes(edges: Mapping[EdgeType, Tensor]) -> dict[NodeType, int]:
    """Return the number of nodes of each type that edges show."""
    num_nodes: dict[NodeType, int] = {}
    for edge_type, ends in edges.items():
        for node_type, ids in zip(edge_type[::2], ends, strict=True):
            num_nodes[node_type] = max(num_nodes.get(node_type, 0), nodes_in(ids))
    return num_nodes


def _windows(walks: Tensor, size: int) -> Tensor:
    """Return all windows of consecutive nodes, ``[num_windows * num_walks, size]``, first windows first."""
    return walks.unfold(1, size, 1).transpose(0, 1).reshape(-1, size)
