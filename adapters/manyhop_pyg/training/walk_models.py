"""PyG's models that learn embeddings from random walks."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, EdgeType, NodeType, build_graph
from manyhop.loading import next_key
from manyhop.sampling import WalkRequest, WalkSpec
from manyhop.sampling.walks import Walker

_OF_PROCESSES = frozenset(
    ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "worker_init_fn", "timeout")
) | {"pin_memory", "pin_memory_device"}
"""Arguments of a ``DataLoader`` about processes, and about copies to a GPU of what they make."""


class Node2Vec(torch_geometric.nn.Node2Vec):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``Node2Vec`` (arXiv 1607.00653), without pyg-lib and torch-cluster.

    Walks follow the edges from source to destination; a walk stays at a node without edges out of it. If the model is
    on the CPU, they run in the processes of ``loader(num_workers=...)``. If it is on a GPU, they run there, with a copy
    of the edges, and the loader starts no processes. Each call draws a key, so ``torch.manual_seed`` fixes them.

    With ``p`` or ``q``, a table of the edges, sorted, takes 4 to 8 bytes per edge.

    Args:
        edge_index: ``[2, num_edges]`` integers.
        embedding_dim: width of the embedding of a node.
        walk_length: nodes of a walk, the start included.
        context_size: nodes of a positive sample: consecutive nodes of a walk.
        walks_per_node: walks that start at a node.
        p: return parameter: a step back to the node before counts ``1 / p``.
        q: in-out parameter: a step to a node without an edge to the node before counts ``1 / q``.
        num_negative_samples: negative samples per positive one.
        num_nodes: number of nodes; ``None``: the highest in ``edge_index``, plus 1.
        sparse: whether gradients of the embedding are sparse.

    Raises:
        InputError: arguments that do not make sense.
        GraphError: edges that lead to nodes that there are not.
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
        torch.nn.Module.__init__(self)  # PyG's constructor asks for pyg-lib
        if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.size(0) != 2:
            got = list(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
            raise InputError(f"Expected edge_index as a tensor [2, num_edges], got {got}. Convert it.")
        if integer("walk_length", walk_length, 2) < integer("context_size", context_size, 1):
            raise InputError(
                f"Expected context_size of at most walk_length, got {context_size} and {walk_length}. Walk further."
            )
        if num_nodes is None:
            num_nodes = int(edge_index.max()) + 1 if edge_index.numel() > 0 else 0
        self.EPS = 1e-15
        self.num_nodes = integer("num_nodes", num_nodes, 1)
        self.embedding_dim = integer("embedding_dim", embedding_dim, 1)
        self.walk_length = walk_length - 1  # steps, as in PyG
        self.context_size = context_size
        self.walks_per_node = integer("walks_per_node", walks_per_node, 1)
        self.p, self.q = p, q
        self.num_negative_samples = integer("num_negative_samples", num_negative_samples, 1)
        src, dst = edge_index.cpu()
        graph = build_graph({HOMOGENEOUS_NODE: self.num_nodes}, {HOMOGENEOUS_EDGE: EdgeInput(row=dst, col=src)})
        self._walks = Walker(graph, self._spec())
        self.embedding = torch.nn.Embedding(self.num_nodes, self.embedding_dim, sparse=sparse)
        self.reset_parameters()

    def loader(self, **kwargs: Any) -> DataLoader[Any]:
        """Return a loader of positive and negative samples; ``kwargs`` are torch's ``DataLoader``'s."""
        return DataLoader(range(self.num_nodes), collate_fn=self.sample, **_where(self.embedding, kwargs))  # type: ignore[arg-type]

    def sample(self, batch: list[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Return positive and negative samples around nodes, on the device of the embedding."""
        return super().sample(_near(batch, self.embedding))  # type: ignore[no-any-return]

    def pos_sample(self, batch: Tensor) -> Tensor:
        """Return the windows of walks, ``[num_windows * walks_per_node * batch_size, context_size] int64``.

        Args:
            batch: ``[batch_size] int64`` nodes where walks start.

        Raises:
            InputError: nodes that there are not.
        """
        if self._walks.spec != self._spec():  # the attributes may be set, as in PyG
            self._walks = Walker(self._walks.graph, self._spec())
        start = batch.repeat(self.walks_per_node)
        walks = self._walks.sample(WalkRequest(key=next_key(), start=start)).node
        last = (walks >= 0).sum(1, keepdim=True) - 1
        walks = torch.where(walks < 0, walks.gather(1, last), walks)
        return _windows(walks, self.context_size)

    def _spec(self) -> WalkSpec:
        return WalkSpec(steps=(HOMOGENEOUS_EDGE,) * self.walk_length, p=self.p, q=self.q)


class MetaPath2Vec(torch_geometric.nn.MetaPath2Vec):  # type: ignore[misc]
    """PyG's ``MetaPath2Vec``, whose walks one kernel makes.

    A walk that cannot go on visits the dummy node, as in PyG. Walks run where those of :class:`Node2Vec` do; each call
    draws a key, so ``torch.manual_seed`` fixes them.

    Args:
        edge_index_dict: edge type -> ``[2, num_edges]`` integers.
        embedding_dim: width of the embedding of a node.
        metapath: edge types that a walk follows, from source to destination, again from the first after the last.
        walk_length: steps of a walk.
        context_size: nodes of a positive sample: consecutive nodes of a walk.
        walks_per_node: walks that start at a node.
        num_negative_samples: negative samples per positive one.
        num_nodes_dict: node type -> number of nodes; ``None``: from the edges.
        sparse: whether gradients of the embedding are sparse.

    Raises:
        GraphError: edges that lead to nodes that there are not.
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
        super().__init__(
            edge_index_dict,
            embedding_dim,
            metapath,
            walk_length,
            context_size,
            walks_per_node,
            num_negative_samples,
            num_nodes_dict,
            sparse,
        )
        along = {tuple(t): (t[2], t[1], t[0]) for t in metapath}  # the engine walks from destination to source
        graph = build_graph(
            self.num_nodes_dict,
            {ours: EdgeInput(row=self.col_dict[t], colptr=self.rowptr_dict[t]) for t, ours in along.items()},
        )
        steps = tuple(along[tuple(metapath[i % len(metapath)])] for i in range(walk_length))
        self._walks = Walker(graph, WalkSpec(steps=steps))

    def loader(self, **kwargs: Any) -> DataLoader[Any]:
        """Return a loader of positive and negative samples; ``kwargs`` are torch's ``DataLoader``'s."""
        starts = range(self.num_nodes_dict[self.metapath[0][0]])
        return DataLoader(starts, collate_fn=self._sample, **_where(self.embedding, kwargs))  # type: ignore[arg-type]

    def _sample(self, batch: list[int] | Tensor) -> tuple[Tensor, Tensor]:
        start = torch.as_tensor(batch)
        near = _near(start, self.embedding)
        return self._pos_sample(near), self._neg_sample(start.cpu()).to(near.device)  # PyG draws them on the CPU

    def _pos_sample(self, batch: Tensor) -> Tensor:
        start = batch.repeat(self.walks_per_node)
        walks = self._walks.sample(WalkRequest(key=next_key(), start=start)).node
        return _windows(torch.where(walks < 0, self.dummy_idx, walks + self.offset.to(walks.device)), self.context_size)


def _windows(walks: Tensor, size: int) -> Tensor:
    """All windows of consecutive nodes, ``[num_windows * num_walks, size]``: the first of all walks, then the next."""
    return walks.unfold(1, size, 1).transpose(0, 1).reshape(-1, size)


def _where(embedding: torch.nn.Embedding, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a ``DataLoader``, without what is for processes where walks run on a GPU."""
    return {k: v for k, v in kwargs.items() if k not in _OF_PROCESSES} if embedding.weight.is_cuda else kwargs


def _near(batch: list[int] | Tensor, embedding: torch.nn.Embedding) -> Tensor:
    """Nodes where the embedding is; on the CPU in processes of a loader, which have no GPU."""
    found = torch.as_tensor(batch)
    return found if get_worker_info() is not None else found.to(embedding.weight.device)
