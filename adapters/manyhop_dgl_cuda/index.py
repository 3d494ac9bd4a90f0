"""The structure of a DGL graph on torch tensors: the methods of ``HeteroGraphIndex`` that ``DGLGraph`` calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, NoReturn

import dgl
import torch
from dgl._ffi.ndarray import register_extension
from dgl.backend import to_backend_ctx
from dgl.heterograph_index import (
    HeteroGraphIndex,
    create_heterograph_from_relations,
    create_unitgraph_from_coo,
    create_unitgraph_from_csr,
)
from torch import Tensor

from manyhop.errors import InputError, MissingExtraError
from manyhop.system.progress import to_device
from manyhop_dgl_cuda.adjacency import FORMATS, HeteroAdjacency, positions
from manyhop_dgl_cuda.dispatch import on_torch
from manyhop_dgl_cuda.subgraphs import Induced, edge_subgraph, node_subgraph

_INSTEAD = {
    "sample_neighbors": "sample with manyhop_dgl.NeighborSampler or manyhop_dgl.sample_tensors, which do it on the GPU",
    "sample_neighbors_fused": "sample with manyhop_dgl.NeighborSampler, which does it on the GPU",
    "sample_labors": "sample with manyhop_dgl.LaborSampler, which does it on the GPU",
}


class NoCUDABuildError(MissingExtraError):
    """Something that only DGL's C++ can do was requested on a GPU, but the installed build of DGL is for CPUs only."""

    def __init__(self, what: str, device: torch.device) -> None:
        instead = _INSTEAD.get(what.rpartition(".")[2], "move the graph to the CPU and the result back: g.to('cpu')")
        ImportError.__init__(
            self,
            f"{what} needs DGL's C++, but dgl {dgl.__version__} is a build for CPUs, as all on PyPI are, and got a "
            f"graph on {device}. There, message passing, layers, degrees, subgraphs and blocks work. For this, "
            f"{instead}.",
        )


def no_array(shape: object, dtype: object, ctx: Any) -> NoReturn:
    """Raise NoCUDABuildError instead of ``dgl.ndarray.empty`` on a GPU."""
    refuse(torch.device("cuda", ctx.device_id))


def refuse(device: torch.device) -> NoReturn:
    """Raise :class:`NoCUDABuildError`, naming the function of DGL that the user's code called."""
    frame, what = inspect.currentframe(), "This"
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("dgl", "manyhop_dgl", "manyhop_dgl_cuda"):
            break
        if module.startswith("dgl.") and not frame.f_code.co_name.startswith("_"):
            what = f"dgl.{frame.f_code.co_name}"
        frame = frame.f_back
    raise NoCUDABuildError(what, device)


Edges = tuple[Tensor, Tensor, Tensor]


class TorchGraphIndex(HeteroAdjacency):
    """A graph's structure with the methods of DGL's ``HeteroGraphIndex``.

    ``isinstance(index, HeteroGraphIndex)`` is true, as ``DGLGraph`` requires, but it is not a subclass: DGL's C++ would
    crash on one, and raises ``NoCUDABuildError`` for this class.
    """

    __class__ = property(lambda self: HeteroGraphIndex)

    # Copies, files and errors

    def __reduce__(self) -> tuple[Any, ...]:  # pickle would use __class__ as the class
        return TorchGraphIndex, (self.ends, self.relations, self.num_nodes_by_type, self.allowed)

    @property
    def _dgl_handle(self) -> NoReturn:
        """Raise NoCUDABuildError where DGL's C++ reads the graph: see ``register_extension``."""
        refuse(self.device)

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(HeteroGraphIndex, name) and not name.startswith("_"):
            refuse(self.device)
        raise AttributeError(f"'TorchGraphIndex' object has no attribute {name!r}")

    # Types and numbers

    def is_metagraph_unibipartite(self) -> bool:
        """Return whether no node type is both source and destination."""
        return not {s for s, _ in self.ends} & {d for _, d in self.ends}

    def number_of_ntypes(self) -> int:
        return len(self.num_nodes_by_type)

    def number_of_etypes(self) -> int:
        return len(self.relations)

    def num_nodes(self, ntype: int) -> int:
        return self.num_nodes_by_type[ntype]

    def num_edges(self, etype: int) -> int:
        return self.relations[etype].num_edges

    number_of_nodes, number_of_edges = num_nodes, num_edges
    bits_needed = HeteroGraphIndex.bits_needed

    def is_readonly(self) -> bool:
        """Return True: DGL creates a new index to change a graph."""
        return True

    def get_relation_graph(self, etype: int) -> TorchGraphIndex:
        """Return the graph of one edge type."""
        (src, dst), relation = self.ends[etype], self.relations[etype]
        if src == dst:
            return TorchGraphIndex([(0, 0)], [relation], [relation.num_src], self.allowed)
        return TorchGraphIndex([(0, 1)], [relation], [relation.num_src, relation.num_dst], self.allowed)

    # Device, type of ids, formats

    @property
    def ctx(self) -> dgl.ndarray.DGLContext:
        """The device of the tensors, as DGL's context."""
        return _context(self.device)

    @property
    def dtype(self) -> str:
        """Type of ids: "int32" or "int64"."""
        return str(self.relations[0].dtype).removeprefix("torch.")

    def asbits(self, bits: int) -> TorchGraphIndex:
        """Change the ids to 32 or 64 bits."""
        dtype = torch.int32 if bits == 32 else torch.int64
        return self.with_relations([relation.map(lambda t: t.to(dtype)) for relation in self.relations])

    def to(self, device: torch.device) -> TorchGraphIndex:
        return self.with_relations(
            [relation.map(lambda t: to_device(t, device, "edges")) for relation in self.relations]
        )

    def copy_to(self, ctx: dgl.ndarray.DGLContext) -> TorchGraphIndex | HeteroGraphIndex:
        """Copy to another device; to DGL's own index if that is a CPU."""
        device = to_backend_ctx(ctx)
        return self.to(device) if on_torch(device) else self._to_dgl()

    def is_pinned(self) -> bool:
        """Return False: tensors on a GPU are not pinned."""
        return False

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of the tensors until a stream has used it."""
        for relation in self.relations:
            for tensor in relation.tensors():
                tensor.record_stream(stream)

    def formats(self, formats: str | Sequence[str] | None = None) -> dict[str, list[str]] | TorchGraphIndex:
        """Return the available formats and the formats built on demand; or a graph restricted to some.

        Kernels use a format that they need even if it is not allowed.
        """
        if formats is None:
            there = set.intersection(*(relation.created() for relation in self.relations))
            created = [name for name in self.allowed if name in there]
            return {"created": created, "not created": [name for name in self.allowed if name not in there]}
        wanted = [formats] if isinstance(formats, str) else list(formats)
        if not wanted or not set(wanted) <= set(FORMATS):
            raise InputError(f"Expected formats to be some of {', '.join(FORMATS)}, got {wanted}.")
        relations = [relation.map(lambda t: t) for relation in self.relations]  # formats made of it are its own
        for relation in relations:
            if not relation.created() & set(wanted):
                relation.create(next(name for name in FORMATS if name in wanted))
        return TorchGraphIndex(self.ends, relations, self.num_nodes_by_type, wanted, self._metagraph)

    def create_formats_(self) -> None:
        for relation in self.relations:
            for name in self.allowed:
                relation.create(name)

    # Nodes and edges

    def has_nodes(self, ntype: int, vids: Tensor) -> Tensor:
        """Return whether nodes with these ids exist: 1 or 0."""
        return ((vids >= 0) & (vids < self.num_nodes(ntype))).to(vids.dtype)

    def edges(self, etype: int, order: str | None = None) -> Edges:
        """Return sources, destinations and ids of all edges, by id, or by source, then destination."""
        if order not in (None, "", "eid", "srcdst"):
            raise InputError(f"Expected order to be None, 'eid' or 'srcdst', got {order!r}.")
        relation = self.relations[etype]
        src, dst, ids = relation.src, relation.dst, positions(relation.src)
        if order != "srcdst":
            return src, dst, ids
        at = relation.keys(src, dst).argsort(stable=True)
        return src[at], dst[at], ids[at]

    def find_edges(self, etype: int, eid: Tensor) -> Edges:
        """Return sources, destinations and ids of some edges."""
        part = self.relations[etype].select(eid)
        return part.src, part.dst, eid

    def in_edges(self, etype: int, v: Tensor) -> Edges:
        """Return edges into some nodes, in the order of these."""
        place, src, ids = self.relations[etype].csc.of(v)
        return src, v[place.long()], ids

    def out_edges(self, etype: int, v: Tensor) -> Edges:
        """Return edges out of some nodes, in the order of these."""
        place, dst, ids = self.relations[etype].csr.of(v)
        return v[place.long()], dst, ids

    def predecessors(self, etype: int, v: int) -> Tensor:
        return self.in_edges(etype, self._one(v))[0]

    def successors(self, etype: int, v: int) -> Tensor:
        return self.out_edges(etype, self._one(v))[1]

    def in_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.relations[etype].csc.degrees[v.long()]

    def out_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.relations[etype].csr.degrees[v.long()]

    def has_edges_between(self, etype: int, u: Tensor, v: Tensor) -> Tensor:
        """Return whether there is an edge from each source to its destination: 1 or 0."""
        begin, end, _ = self.relations[etype].ranges_between(u, v)
        return (begin < end).to(u.dtype)

    def edge_ids_one(self, etype: int, u: Tensor, v: Tensor) -> Tensor:
        """Return the first edge from each source to its destination; -1 without one."""
        begin, end, order = self.relations[etype].ranges_between(u, v)
        if order.numel() == 0:
            return torch.full_like(begin, -1, dtype=u.dtype)
        first = order[begin.clamp(max=order.numel() - 1)]
        return first.masked_fill(begin == end, -1).to(u.dtype)

    def edge_ids_all(self, etype: int, u: Tensor, v: Tensor) -> Edges:
        """Return all edges from each source to its destination."""
        u, v = u.expand(max(u.numel(), v.numel())), v.expand(max(u.numel(), v.numel()))
        begin, end, order = self.relations[etype].ranges_between(u, v)
        bounds = torch.cat([begin[:0].new_zeros(1), (end - begin).cumsum(0)])
        place = torch.repeat_interleave(positions(begin), end - begin)
        ids = order[begin[place] + positions(place) - bounds[place]]
        return u[place], v[place], ids.to(u.dtype)

    # Matrices

    def adjacency_matrix_tensors(self, etype: int, transpose: bool, fmt: str) -> tuple[Any, ...]:
        """Numbers of rows and columns, then ``indptr``, ``indices`` and edge ids (csr), or rows and columns (coo).

        As in DGL, edge ids 0, 1, 2, ... are omitted.
        """
        relation = self.relations[etype]
        relation = relation.reverse if transpose else relation
        if fmt == "csr":
            csr = relation.csr
            ids = csr.indices[:0] if csr.edge_ids is None else csr.edge_ids
            return relation.num_src, relation.num_dst, csr.indptr, csr.indices, ids
        if fmt == "coo":
            return relation.num_src, relation.num_dst, relation.src, relation.dst
        raise InputError(f"Expected the format of the matrix to be 'csr' or 'coo', got {fmt!r}.")

    def adjacency_matrix(self, etype: int, transpose: bool, ctx: torch.device) -> tuple[Tensor, None]:
        num_rows, num_cols, rows, cols = self.adjacency_matrix_tensors(etype, transpose, "coo")
        at = torch.stack([rows, cols]).long().to(ctx)
        ones = torch.ones(rows.numel(), device=ctx)
        return torch.sparse_coo_tensor(at, ones, (num_rows, num_cols), check_invariants=False), None

    adjacency_matrix_scipy = HeteroGraphIndex.adjacency_matrix_scipy

    # Other graphs

    def reverse(self) -> TorchGraphIndex:
        ends = [(dst, src) for src, dst in self.ends]
        same = ends == self.ends
        return self.with_relations([relation.reverse for relation in self.relations], None, None if same else ends)

    def node_subgraph(self, induced_nodes: Sequence[Tensor]) -> Induced[TorchGraphIndex]:
        return node_subgraph(self, induced_nodes)

    def edge_subgraph(self, induced_edges: Sequence[Tensor], preserve_nodes: bool) -> Induced[TorchGraphIndex]:
        return edge_subgraph(self, induced_edges, preserve_nodes)

    def _one(self, node: int) -> Tensor:
        return torch.tensor([int(node)], device=self.device, dtype=self.relations[0].dtype)

    def _to_dgl(self) -> HeteroGraphIndex:
        """Return DGL's own index, with the available format."""
        graphs = []
        for (src, dst), there in zip(self.ends, self.relations, strict=True):
            relation, num_types = there.map(lambda t: t.cpu()), 1 if src == dst else 2
            num = relation.num_src, relation.num_dst
            if "coo" in relation.created():
                graph = create_unitgraph_from_coo(num_types, *num, relation.src, relation.dst, self.allowed)
            else:
                csc = relation.csc
                graph = create_unitgraph_from_csr(
                    num_types, *num, csc.indptr, csc.indices, csc.ids, self.allowed, transpose=True
                )
            graphs.append(graph)
        num_nodes = dgl.utils.toindex(self.num_nodes_by_type)
        return create_heterograph_from_relations(self.metagraph, graphs, num_nodes)


register_extension(TorchGraphIndex)


@functools.cache
def _context(device: torch.device) -> dgl.ndarray.DGLContext:
    return dgl.utils.to_dgl_context(device)
