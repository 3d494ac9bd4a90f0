"""Edges of one type as torch tensors, and of a graph of multiple types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from dgl import DGLError, graph_index
from torch import Tensor

from manyhop_train.aggregation import Order

SRC, DST = 0, 1


class Compressed:
    """Edges sorted by one of their ends: CSC (by destination) or CSR (by source).

    Args:
        indptr: ``[num_nodes + 1]``: where the segment of each node begins.
        indices: ``[num_edges]``: the other ends.
        edge_ids: ``[num_edges]``; ``None``: 0, 1, 2, ...
    """

    def __init__(self, indptr: Tensor, indices: Tensor, edge_ids: Tensor | None) -> None:
        self.indptr, self.indices, self.edge_ids = indptr, indices, edge_ids
        self._ids = edge_ids
        self._order: Order | None = None

    @property
    def ids(self) -> Tensor:
        """``[num_edges]`` edge ids."""
        if self._ids is None:
            self._ids = positions(self.indices)
        return self._ids

    @property
    def degrees(self) -> Tensor:
        """``[num_nodes]`` number of edges of each node."""
        return self.indptr.diff()

    @property
    def order(self) -> Order:
        """Return the segments as the kernels' arguments, for rows of the other ends."""
        if self._order is None:  # torch.compile does not trace functools.cached_property
            ids = None if self.edge_ids is None else self.edge_ids.long()
            self._order = Order(self.indptr.long().contiguous(), self.indices.contiguous(), ids)
        return self._order

    @property
    def by_id(self) -> Order:
        """Return the segments as the kernels' arguments, for rows of edges."""
        return Order(self.order.ptr, self.ids, None)

    def nodes_at(self, places: Tensor) -> Tensor:
        """Return the nodes whose segments contain the positions."""
        int32 = self.indices.dtype == torch.int32
        return torch.searchsorted(self.indptr[1:], places.to(self.indptr.dtype), right=True, out_int32=int32)

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return edges of some nodes, in the order of the nodes: place in ``nodes``, other end, edge id."""
        begin, end = self.indptr[nodes.long()], self.indptr[nodes.long() + 1]
        counts = end - begin
        place = torch.repeat_interleave(positions(nodes), counts)
        first = counts.cumsum(0) - counts
        at = positions(place, torch.int64) + (begin - first).long()[place.long()]
        return place, self.indices[at], self.ids[at]

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.indptr, self.indices, self.edge_ids) if t is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> Compressed:
        """Change each tensor."""
        return Compressed(
            change(self.indptr), change(self.indices), None if self.edge_ids is None else change(self.edge_ids)
        )


class _Formats:
    """The available formats of the edges, by side: ends by edge id, and edges sorted by them."""

    def __init__(self, ends: list[Tensor | None], compressed: list[Compressed | None], like: Tensor) -> None:
        """``like``: a tensor with an element per edge."""
        self.ends, self.compressed = ends, compressed
        self.num_edges, self.device, self.dtype = like.shape[0], like.device, like.dtype


class Adjacency:
    """The edges of one type, seen in their direction or against it.

    Both directions share their formats. They do not refer to each other, so memory is freed without Python's collector.

    Args:
        num_src: number of source nodes.
        num_dst: number of destination nodes.
        formats: shared with the other direction.
        dst_side: which side of ``formats`` the destinations are.
    """

    def __init__(self, num_src: int, num_dst: int, formats: _Formats, dst_side: int = DST) -> None:
        self.num_src, self.num_dst = num_src, num_dst
        self._formats, self._dst = formats, dst_side

    @classmethod
    def from_coo(cls, num_src: int, num_dst: int, src: Tensor, dst: Tensor) -> Adjacency:
        """Return edges by id: ``[num_edges]`` sources and destinations."""
        return cls(num_src, num_dst, _Formats([src, dst], [None, None], src))

    @classmethod
    def from_csc(
        cls, num_src: int, num_dst: int, indptr: Tensor, indices: Tensor, edge_ids: Tensor | None = None
    ) -> Adjacency:
        """Return edges sorted by destination; see :class:`Compressed`."""
        return cls(num_src, num_dst, _Formats([None, None], [None, Compressed(indptr, indices, edge_ids)], indices))

    @property
    def reverse(self) -> Adjacency:
        return Adjacency(self.num_dst, self.num_src, self._formats, 1 - self._dst)

    @property
    def num_edges(self) -> int:
        return self._formats.num_edges

    @property
    def device(self) -> torch.device:
        return self._formats.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of ids: int32 or int64."""
        return self._formats.dtype

    @property
    def src(self) -> Tensor:
        """``[num_edges]`` sources by edge id."""
        return self._ends(1 - self._dst)

    @property
    def dst(self) -> Tensor:
        """``[num_edges]`` destinations by edge id."""
        return self._ends(self._dst)

    @property
    def csc(self) -> Compressed:
        """Return edges sorted by destination, then by id if they are sorted here."""
        made = self._formats.compressed[self._dst]
        if made is None:
            made = self._formats.compressed[self._dst] = _compress(self._src_of, self.dst, self.num_dst)
        return made

    def _src_of(self, edges: Tensor) -> Tensor:
        made = self._formats.compressed[1 - self._dst]
        if self._formats.ends[1 - self._dst] is None and made is not None and made.edge_ids is None:
            return made.nodes_at(edges)
        return self.src.index_select(0, edges)

    @property
    def csr(self) -> Compressed:
        return self.reverse.csc

    def created(self) -> set[str]:
        """Return the available formats, by DGL's names."""
        compressed = self._formats.compressed
        there = {"csc": compressed[self._dst], "csr": compressed[1 - self._dst]}
        coo = {"coo"} if all(t is not None for t in self._formats.ends) else set()
        return coo | {name for name, made in there.items() if made is not None}

    def create(self, name: str) -> None:
        """Add a format if it is missing."""
        _ = (self.src, self.dst) if name == "coo" else getattr(self, name)

    def tensors(self) -> list[Tensor]:
        formats = self._formats
        ends = [t for t in formats.ends if t is not None]
        return ends + [t for c in formats.compressed if c is not None for t in c.tensors()]

    def map(self, change: Callable[[Tensor], Tensor]) -> Adjacency:
        """Change each tensor: to another device or dtype of ids."""
        ends = [None if t is None else change(t) for t in self._formats.ends]
        compressed = [None if c is None else c.map(change) for c in self._formats.compressed]
        like = next(t for t in (*ends, *(c.indices for c in compressed if c is not None)) if t is not None)
        formats = _Formats(ends, compressed, like)
        return Adjacency(self.num_src, self.num_dst, formats, self._dst)

    def select(self, edges: Tensor) -> Adjacency:
        """Return some edges, by id, in the order given."""
        at = edges.long()
        return Adjacency.from_coo(self.num_src, self.num_dst, self.src[at], self.dst[at])

    def keys(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return one number per pair of a source and a destination."""
        return src.long() * self.num_dst + dst.long()

    def ranges_between(self, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return edges from each source to its destination: begin and end among edge ids sorted by key, then by id."""
        keys, order = self.keys(self.src, self.dst).sort(stable=True)
        wanted = self.keys(src, dst)
        return torch.searchsorted(keys, wanted), torch.searchsorted(keys, wanted, right=True), order

    def _ends(self, side: int) -> Tensor:
        made = self._formats.ends[side]
        if made is None:
            made = self._formats.ends[side] = self._make_ends(side)
        return made

    def _make_ends(self, side: int) -> Tensor:
        """Ends by edge id, from a compressed format: its columns expanded, or its indices."""
        own, other = self._formats.compressed[side], self._formats.compressed[1 - side]
        if other is not None:
            return _by_id(other.indices, other.edge_ids)
        assert own is not None
        places = own.ids if own.edge_ids is None else positions(own.indices)
        return _by_id(own.nodes_at(places), own.edge_ids)


def positions(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``[len(like)]``: 0, 1, 2, ..."""
    return torch.arange(like.shape[0], device=like.device, dtype=like.dtype if dtype is None else dtype)


def _compress(src_of: Callable[[Tensor], Tensor], dst: Tensor, num_dst: int) -> Compressed:
    """Sort edges by destination, then by id."""
    keys = dst.int() if num_dst < 1 << 31 else dst  # half the passes of 64 bits
    in_order, edge_ids = keys.sort(stable=True)
    indptr: Tensor = torch._convert_indices_from_coo_to_csr(in_order, num_dst, out_int32=dst.dtype == torch.int32)
    return Compressed(indptr, src_of(edge_ids), edge_ids.to(dst.dtype))


def _by_id(values: Tensor, edge_ids: Tensor | None) -> Tensor:
    """Reorder values in the order of segments by edge id."""
    if edge_ids is None:
        return values
    out = torch.empty_like(values)
    out[edge_ids.long()] = values
    return out


FORMATS = ("coo", "csr", "csc")


class HeteroAdjacency:
    """Edges by type and numbers of nodes by type.

    Args:
        ends: node types of the source and the destination of each edge type.
        relations: edges of each edge type, all on one device and of one type of ids.
        num_nodes: number of nodes of each node type.
        allowed: the formats that the graph reports to have.
        metagraph: DGL's graph of the types; made of ``ends`` when it is needed if left out.
    """

    def __init__(
        self,
        ends: Sequence[tuple[int, int]],
        relations: Sequence[Adjacency],
        num_nodes: Sequence[int],
        allowed: Sequence[str] = FORMATS,
        metagraph: graph_index.GraphIndex | None = None,
    ) -> None:
        self.ends, self.relations = [(int(s), int(d)) for s, d in ends], list(relations)
        self.num_nodes_by_type = [int(n) for n in num_nodes]
        self.allowed = FORMATS if allowed is FORMATS else tuple([name for name in FORMATS if name in allowed])
        self._metagraph = metagraph

    @property
    def metagraph(self) -> graph_index.GraphIndex:
        """DGL's graph of the types."""
        if self._metagraph is None:
            src, dst = [s for s, _ in self.ends], [d for _, d in self.ends]
            self._metagraph = graph_index.from_coo(len(self.num_nodes_by_type), src, dst, True)
        return self._metagraph

    @property
    def device(self) -> torch.device:
        return self.relations[0].device

    def only_relation(self) -> Adjacency:
        """Return the edges of a graph of one edge type.

        Raises:
            DGLError: there are multiple.
        """
        if len(self.relations) != 1:
            raise DGLError(f"Expected a graph with one edge type, got one with {len(self.relations)}. Choose a type.")
        return self.relations[0]

    def with_relations(
        self,
        relations: Sequence[Adjacency],
        num_nodes: Sequence[int] | None = None,
        ends: Sequence[tuple[int, int]] | None = None,
    ) -> Self:
        """Build another graph of the same types, or of ``ends``."""
        return type(self)(
            self.ends if ends is None else ends,
            relations,
            self.num_nodes_by_type if num_nodes is None else num_nodes,
            self.allowed,
            self._metagraph if ends is None else None,
        )
