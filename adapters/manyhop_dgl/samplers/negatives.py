"""Edges to exclude from the blocks around seed edges, and negatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from dgl.dataloading.negative_sampler import GlobalUniform as GlobalUniformOfDGL
from dgl.dataloading.negative_sampler import PerSourceUniform as PerSourceUniformOfDGL
from dgl.distributed import DistGraph
from torch import Tensor

from manyhop import arguments
from manyhop.arguments import check_range, flag, integer
from manyhop.errors import InputError
from manyhop.graph import EdgeType
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, below, draw, make_key
from manyhop_dgl.graph.topology import canonical, of_type
from manyhop_dgl.samplers.arguments import Keys, as_ids, by_type, same_device
from manyhop_dgl.typing import EdgeName, GraphLike, Pairs

_MODES = (None, "self", "reverse_id", "reverse_types")


def check_exclude(exclude: object, reverse_eids: object, reverse_etypes: object) -> None:
    """Raise InputError where arguments for the exclusion of edges contradict each other."""
    explicit = isinstance(exclude, Tensor | Mapping) or callable(exclude)
    if not explicit and exclude not in _MODES:
        raise InputError(f"Expected exclude to be one of {_MODES}, a callable or edge ids, got {exclude!r}.")
    for name, given, mode in (
        ("reverse_eids", reverse_eids, "reverse_id"),
        ("reverse_etypes", reverse_etypes, "reverse_types"),
    ):
        wanted = not explicit and exclude == mode
        if wanted and given is None:
            raise InputError(f"exclude={mode!r} needs {name}.")
        if name == "reverse_etypes" and wanted and not isinstance(given, Mapping):
            raise InputError(
                f"Expected reverse_etypes as a dict, edge type -> the type of its reverses, got {given!r}."
            )
        if given is not None and not wanted and not callable(exclude):  # a callable decides
            raise InputError(f"{name} is for exclude={mode!r}, got exclude={exclude!r}: leave {name} out.")


def edges_to_exclude(
    g: GraphLike,
    exclude: object,
    edges: Mapping[EdgeType, Tensor],
    given: object,
    reverse_eids: object,
    reverse_etypes: Mapping[EdgeName, EdgeName] | None,
) -> object:
    """Return the edges to exclude for a sampler of nodes: a tensor, or a dict by canonical edge type.

    Args:
        g: the graph.
        exclude: the mode, a callable, or the edges themselves.
        edges: the seed edges by canonical edge type.
        given: the same, or the tensor of those of the one type there is: what a callable gets.
        reverse_eids: for ``"reverse_id"``.
        reverse_etypes: for ``"reverse_types"``.
    """
    if exclude is None:
        return None
    if isinstance(exclude, Tensor | Mapping):
        return exclude
    if callable(exclude):
        return exclude(given)
    edge_types = list(g.canonical_etypes)
    found = dict(edges)
    if exclude == "reverse_id":
        reverse = by_type(reverse_eids, edge_types, "edge", "reverse_eids")
        found = {t: torch.cat([ids, _reverses(t, ids, reverse, g)]) for t, ids in edges.items()}
    elif exclude == "reverse_types":
        assert reverse_etypes is not None
        for name, other in reverse_etypes.items():
            edge_type = canonical(name, edge_types, "reverse_etypes")
            reverse_type = canonical(other, edge_types, "reverse_etypes")
            if edge_type in edges:
                parts = [part for part in (found.get(reverse_type), edges[edge_type]) if part is not None]
                found[reverse_type] = parts[0] if len(parts) == 1 else torch.unique(torch.cat(parts))
    return next(iter(found.values())) if len(edge_types) == 1 else found


def on_host(reverse_eids: object) -> object:
    """Return ids of reverse edges in host memory, where batches look them up: DGL's examples move them to a GPU."""
    if isinstance(reverse_eids, Mapping):
        return {edge_type: on_host(ids) for edge_type, ids in reverse_eids.items()}
    return reverse_eids.cpu() if isinstance(reverse_eids, Tensor) else reverse_eids


def _reverses(edge_type: EdgeType, ids: Tensor, reverse: Mapping[EdgeType, object], g: GraphLike) -> Tensor:
    if edge_type not in reverse:
        raise InputError(f"Expected reverse_eids for the seed edges' type {edge_type}, got them for {list(reverse)}.")
    table = arguments.as_ids(f"reverse_eids{of_type(edge_type)}", reverse[edge_type])
    if table.shape != (g.num_edges(edge_type),):
        raise InputError(
            f"Expected reverse_eids of shape [{g.num_edges(edge_type)}], one per edge of {edge_type}, got "
            f"{list(table.shape)}."
        )
    found = table[ids.long()]
    advice = "An edge without a reverse has its own id."
    check_range(f"reverse_eids{of_type(edge_type)}", found, g.num_edges(edge_type), advice=advice)
    return found.to(ids.dtype)


Ints = npt.NDArray[np.int64]

NegativeSampler: TypeAlias = Callable[..., Any] | None
"""``negative_sampler(graph, seed_edges)`` returns sources and destinations, by edge type if there are multiple."""
_ATTEMPTS = 16
_ENDS = ("sources", "destinations")


class KeyedNegatives:
    """A negative sampler of DGL's interface. Inside a sampler for seed edges, it draws with the key of the batch;
    called alone, with its own keys."""

    def __init__(self, k: int, *, seed: int | None = None) -> None:
        self.k = integer("the number of negatives per edge", k, 0)
        self._keys = Keys(seed)

    def __call__(self, g: GraphLike, eids: object) -> Pairs | dict[EdgeType, Pairs]:
        """Draw negatives for edges.

        Args:
            g: the graph.
            eids: ``[num_edges]`` edge ids, or a dict, edge type -> edge ids.

        Returns:
            Sources and destinations, or a dict of them by canonical edge type.

        Raises:
            InputError: unknown edge types, or a tensor for a graph of multiple edge types.
        """
        if isinstance(g, DistGraph):
            return PerSourceUniformOfDGL.__call__(self, g, eids)  # type: ignore[no-any-return]  # which asks _generate
        edges = edges_by_type(g, eids)
        if type(self)._generate is not KeyedNegatives._generate:
            pairs = {t: self._generate(g, ids, t) for t, ids in edges.items()}
        else:
            ends = {t: g.find_edges(ids, etype=t) for t, ids in edges.items()}
            pairs = self.draw(g, ends, self._keys.next())
        return pairs if isinstance(eids, Mapping) else next(iter(pairs.values()))

    def of_dgl(self) -> GlobalUniformOfDGL | PerSourceUniformOfDGL:
        """Return DGL's negative sampler of the same arguments."""
        raise NotImplementedError

    def _generate(self, g: GraphLike, eids: Tensor, canonical_etype: EdgeType) -> Pairs:
        """Return negatives for edges of one type; subclasses of DGL's samplers override it."""
        if isinstance(g, DistGraph):
            return self.of_dgl()._generate(g, eids, canonical_etype)  # type: ignore[no-any-return]
        return self.draw(g, {canonical_etype: g.find_edges(eids, etype=canonical_etype)}, self._keys.next())[
            canonical_etype
        ]

    def draw(self, g: GraphLike, ends: Mapping[EdgeType, Pairs], key: BatchKey) -> dict[EdgeType, Pairs]:
        """Return negatives for seed edges with these endpoints: a function of the graph and the key.

        Args:
            g: the graph.
            ends: canonical edge type -> sources and destinations, ``[num_edges]`` of the graph's ``idtype``.
            key: names the batch.
        """
        pairs = {}
        edge_types = list(g.canonical_etypes)
        for edge_type, (src, dst) in ends.items():
            i = edge_types.index(edge_type)
            own = key if i == 0 else key._replace(seed=int(make_key(Use.NEGATIVE_DST, key.seed, i)))
            s, d = self._draw(g, edge_type, src, own)
            pairs[edge_type] = s.to(src.dtype), d.to(dst.dtype)
        return pairs

    def _draw(self, g: GraphLike, edge_type: EdgeType, src: Tensor, key: BatchKey) -> Pairs:
        raise NotImplementedError


class PerSourceUniform(KeyedNegatives):
    """For each edge ``(u, v)``, ``k`` pairs ``(u, v')``: ``v'`` is drawn uniformly from all nodes of ``v``'s type.

    Args:
        k: negatives per edge.
        seed: of calls outside loaders; ``None``: each call draws a key, which
            ``dgl.seed`` fixes, and ``torch.manual_seed`` where that was never called.

    Raises:
        InputError: ``k`` is not an integer, or negative.
    """

    def of_dgl(self) -> GlobalUniformOfDGL | PerSourceUniformOfDGL:
        """Return DGL's negative sampler of the same arguments."""
        return PerSourceUniformOfDGL(self.k)

    def _draw(self, g: GraphLike, edge_type: EdgeType, src: Tensor, key: BatchKey) -> Pairs:
        index = np.arange(src.numel() * self.k, dtype=np.int64)
        dst = below(draw(make_key(Use.NEGATIVE_DST, *key), index), g.num_nodes(edge_type[2]))
        return src.repeat_interleave(self.k), torch.from_numpy(dst)


Uniform = PerSourceUniform
"""DGL's other name of :class:`PerSourceUniform`."""


class GlobalUniform(KeyedNegatives):
    """For each edge, ``k`` pairs of nodes that have no edge, drawn uniformly.

    There are fewer in graphs with few such pairs.

    Args:
        k: negatives per edge.
        exclude_self_loops: no pairs of a node with itself.
        replace: a pair may be drawn twice; of numbers, only 0 means no.
        seed: as for :class:`PerSourceUniform`.

    Raises:
        InputError: ``k`` is not an integer, or negative.
    """

    def __init__(
        self, k: int, exclude_self_loops: bool = True, replace: bool = False, *, seed: int | None = None
    ) -> None:
        super().__init__(k, seed=seed)
        self.exclude_self_loops = flag("exclude_self_loops", exclude_self_loops)
        # Code written for DGL also passes other numbers: GlobalUniform(15, False, 3).
        self.replace = flag("replace", bool(replace) if isinstance(replace, int) else replace)

    def of_dgl(self) -> GlobalUniformOfDGL | PerSourceUniformOfDGL:
        """Return DGL's negative sampler of the same arguments."""
        return GlobalUniformOfDGL(self.k, self.exclude_self_loops, self.replace)

    def _draw(self, g: GraphLike, edge_type: EdgeType, src: Tensor, key: BatchKey) -> Pairs:
        n, num_src, num_dst = src.numel() * self.k, g.num_nodes(edge_type[0]), g.num_nodes(edge_type[2])
        keys = make_key(Use.NEGATIVE_SRC, *key), make_key(Use.NEGATIVE_DST, *key)
        s, d = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        todo = np.arange(n, dtype=np.int64)
        for attempt in range(_ATTEMPTS):
            if todo.size == 0:
                break
            s[todo] = below(draw(keys[0], todo + attempt * n), num_src)
            d[todo] = below(draw(keys[1], todo + attempt * n), num_dst)
            todo = todo[self._refused(g, edge_type, s, d, todo)]
        good = np.ones(n, np.bool_)
        good[todo] = False
        return torch.from_numpy(s[good]), torch.from_numpy(d[good])

    def _refused(self, g: GraphLike, edge_type: EdgeType, s: Ints, d: Ints, todo: Ints) -> npt.NDArray[np.bool_]:
        """Return which of the pairs ``todo`` must be drawn again."""
        src, dst = (torch.from_numpy(ids[todo]).to(g.idtype) for ids in (s, d))
        refused: npt.NDArray[np.bool_] = g.has_edges_between(src, dst, etype=edge_type).numpy().copy()
        if self.exclude_self_loops and edge_type[0] == edge_type[2]:
            refused |= s[todo] == d[todo]
        if not self.replace:
            # The first of equal pairs remains, those kept before first of all. Refused ones are pairs of nobody.
            kept = np.ones(s.size, np.bool_)
            kept[todo] = False
            order = np.concatenate([np.flatnonzero(kept), todo[~refused]])
            pair = s[order] * np.int64(g.num_nodes(edge_type[2])) + d[order]
            again = np.ones(order.size, np.bool_)
            again[np.unique(pair, return_index=True)[1]] = False
            refused[~refused] = again[int(kept.sum()) :]
        return refused


def draws_by_key(negative_sampler: object) -> TypeGuard[KeyedNegatives]:
    """Return whether a negative sampler draws by key: one of this package, without code of the user."""
    return type(negative_sampler) in (PerSourceUniform, GlobalUniform)


def keyed(negative_sampler: NegativeSampler) -> NegativeSampler:
    """Return DGL's own negative samplers as ours, which draw from the same distribution; others unchanged."""
    own: Any = negative_sampler
    if type(own) is PerSourceUniformOfDGL:
        return PerSourceUniform(own.k)
    if type(own) is GlobalUniformOfDGL:
        return GlobalUniform(own.k, own.exclude_self_loops, own.replace)
    return negative_sampler


def edges_by_type(g: GraphLike, eids: object) -> dict[EdgeType, Tensor]:
    """Return canonical edge type -> ``[num_edges]`` edge ids of the graph's ``idtype``.

    Raises:
        InputError: unknown edge types, ids that are no integers or out of range, a tensor for multiple edge types.
    """
    given = by_type(eids, g.canonical_etypes, "edge", "seed edges")
    if not given:
        raise InputError("Expected seed edges of at least one edge type, got an empty dict.")
    found: dict[EdgeType, Tensor] = {}
    for edge_type, ids in given.items():
        what = f"seed edges{of_type(edge_type)}"
        wide = as_ids(ids, what)
        same_device((wide,), torch.device("cpu"), what)
        check_range(what, wide, g.num_edges(edge_type))
        found[edge_type] = wide.to(g.idtype)
    return found


def pairs_of(g: GraphLike, edge_type: EdgeType, drawn: object) -> Pairs:
    """Return the negative pairs of a user's sampler on the CPU, of the graph's ``idtype``.

    Raises:
        InputError: no two tensors of ids, of the same length, of nodes that the graph has.
    """
    what = f"negatives{of_type(edge_type)}"
    if not isinstance(drawn, tuple | list) or len(drawn) != 2:
        raise InputError(
            f"Expected the negative sampler to return {what} as (sources, destinations), got a {type(drawn).__name__}."
        )
    src, dst = (as_ids(ids, f"{end} of {what}").cpu() for ids, end in zip(drawn, _ENDS, strict=True))
    if src.numel() != dst.numel():
        raise InputError(f"Expected as many sources as destinations of {what}, got {src.numel()} and {dst.numel()}.")
    for ids, node_type, end in zip((src, dst), (edge_type[0], edge_type[2]), _ENDS, strict=True):
        check_range(f"{end} of {what}", ids, g.num_nodes(node_type))
    return src.to(g.idtype), dst.to(g.idtype)
