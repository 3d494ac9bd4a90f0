"""Conversion of PyG's sampling arguments to the engine's specs; classes of negatives."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling
from torch_geometric.sampler.base import NumNeighbors

from manyhop.arguments import as_tensor, check_no_mask, integer
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType
from manyhop.sampling import NegativeSpec
from manyhop.system.arrays import describe
from manyhop_pyg.data.convert import Topology

Destinations: TypeAlias = Tensor | Callable[[Tensor, Tensor], Tensor] | Literal["in_batch"]


@dataclass(init=False)
class GivenNegatives(NegativeSampling):  # type: ignore[misc]  # PyG is untyped
    """Use your own negatives in a ``LinkNeighborLoader`` instead of PyG's ``NegativeSampling``.

    Batches have ``src_index``, ``dst_pos_index`` and ``dst_neg_index``, as with triplets. The negatives are used
    unchanged, even if they are true edges.

    Args:
        dst: ``[num_seeds, amount]`` or ``[num_seeds]`` destination ids, one row per seed edge of the loader. Or a
            function ``dst(src, pos)`` of the endpoints ``[n] int64`` of a batch's seed edges, which returns
            ``[n, amount]`` ids; it runs in the loader's threads, on the GPU that samples, and should depend only on its
            arguments, so that runs can be resumed. Or ``"in_batch"``: destinations of the next ``amount`` seed edges of
            the batch, without additional nodes.
        amount: negatives per seed edge. Default: the width of the tensor; for ``"in_batch"``, all other seed edges of
            the batch, which is also the maximum.

    Raises:
        InputError: a wrong ``dst``, or an ``amount`` that does not match it.
    """

    dst: Destinations
    amount: int | None

    def __init__(self, dst: Destinations, amount: int | None = None) -> None:
        if isinstance(dst, Tensor):
            dst = _integers("negatives", dst.view(-1, 1) if dst.dim() == 1 else dst)
            if dst.dim() != 2:
                raise InputError(f"Expected negatives of shape [num_seeds, amount], got {list(dst.shape)}.")
            if amount is not None and amount != dst.size(1):
                raise InputError(f"Expected amount={dst.size(1)}, the width of dst, got {amount}: leave it out.")
            amount = dst.size(1)
        elif callable(dst):
            if amount is None:
                raise InputError("Expected the amount of negatives per seed edge that the function returns, got None.")
        elif not isinstance(dst, str) or dst != "in_batch":
            raise InputError(f"Expected negatives as a tensor, a function or 'in_batch', got {dst!r}.")
        if amount is not None:
            amount = integer("amount", amount, 1)
        super().__init__("triplet", amount or 1)
        self.dst, self.amount = dst, amount

    @property
    def in_batch(self) -> bool:
        """Whether the negatives of a seed edge are destinations of others."""
        return isinstance(self.dst, str)

    def of(self, index: EdgeSamplerInput, device: torch.device) -> Tensor | None:
        """Return ``[n, amount] int64`` destinations for seed edges; ``None`` for ``"in_batch"``.

        Raises:
            InputError: a function returns no integers; other seed edges than the loader's.
        """
        if self.in_batch:
            return None
        if callable(self.dst):
            found = self.dst(*(ids.to(device, torch.int64) for ids in (index.row, index.col)))
            return _integers("the result of the function of negatives", found)
        if not isinstance(index, EdgeInput):
            raise not_by_position()
        return index.neg_dst

    def in_batch_amount(self, num_seeds: int) -> int:
        """Return the number of other seed edges' destinations that are negatives of each."""
        most = max(num_seeds - 1, 0)
        return most if self.amount is None else min(self.amount, most)

    def in_batch_index(self, dst_index: Tensor) -> Tensor:
        """Return ``[n, amount]``: for each seed edge the indices of the destinations of the next ones, cyclically."""
        n, amount = dst_index.numel(), self.in_batch_amount(dst_index.numel())
        step = torch.arange(n, device=dst_index.device).view(-1, 1) + torch.arange(
            1, amount + 1, device=dst_index.device
        )
        return dst_index[step % max(n, 1)]


def _integers(name: str, given: object) -> Tensor:
    """Return ids of any shape as int64; raise InputError for a mask, or for other numbers."""
    ids = as_tensor(name, given)
    check_no_mask(name, ids)
    if ids.is_floating_point() or ids.is_complex():
        raise InputError(f"Expected {name} as integers of shape [num_seeds, amount], got {describe(ids)}.")
    return ids.long()


def not_by_position() -> InputError:
    """Return the error for other seed edges than the loader's if negatives are a tensor."""
    return InputError(
        "Expected seed edges of the loader, for which negatives are given by position, got others. Pass GivenNegatives "
        "a function, which has negatives for any."
    )


class EdgeInput(EdgeSamplerInput):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``EdgeSamplerInput`` with ``neg_dst [num_edges, amount] int64``: given negatives."""

    neg_dst: Tensor

    @staticmethod
    def of(given: EdgeSamplerInput, neg_dst: Tensor) -> EdgeInput:
        """Return seed edges with their negatives."""
        one = object.__new__(EdgeInput)
        one.__dict__.update(vars(given), neg_dst=neg_dst)
        return one

    def __getitem__(self, index: Tensor | list[int]) -> EdgeInput:
        return EdgeInput.of(super().__getitem__(index), self.neg_dst[index])


@dataclass(init=False)
class TypedNegatives(NegativeSampling):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``NegativeSampling`` by seed edge type.

    Raises:
        InputError: both kinds, or no type.
    """

    of_types: dict[EdgeType, NegativeSampling]

    def __init__(self, of_types: Mapping[EdgeType, NegativeSampling]) -> None:
        modes = {one.mode.value for one in of_types.values()}
        if len(modes) != 1:
            raise InputError(
                "Expected neg_sampling by type to be binary for all types, or triplets (as GivenNegatives are), got "
                f"{sorted(modes) or 'an empty dict'}. Use one loader for each kind."
            )
        super().__init__(*modes)
        self.of_types = dict(of_types)


def negatives_of(neg_sampling: NegativeSampling | None, edge_type: EdgeType | None) -> NegativeSampling | None:
    """Return the negatives of a seed edge type; raise InputError if only other types have negatives."""
    if not isinstance(neg_sampling, TypedNegatives):
        return neg_sampling
    if edge_type not in neg_sampling.of_types:
        raise InputError(
            f"Expected neg_sampling for each type of seed edges, {edge_type} among them, got it for "
            f"{list(neg_sampling.of_types)}."
        )
    return neg_sampling.of_types[edge_type]


def each_of(neg_sampling: NegativeSampling | None) -> list[NegativeSampling]:
    """Return the negatives of all types of seed edges."""
    if isinstance(neg_sampling, TypedNegatives):
        return list(neg_sampling.of_types.values())
    return [] if neg_sampling is None else [neg_sampling]


def read_fanouts(num_neighbors: NumNeighbors, topology: Topology) -> dict[EdgeType, tuple[int, ...]]:
    """Return edge type of the graph -> fanouts, for all edge types."""
    values, default = num_neighbors.values, num_neighbors.default
    edge_types = list(topology.user_edge_type.values())
    if not isinstance(values, Mapping):
        return dict.fromkeys(topology.user_edge_type, integers("numbers of neighbours", values))
    if not topology.hetero:
        raise InputError("Expected num_neighbors as a list, such as [15, 10], since the graph has one edge type only.")
    known = {"__".join(t): t for t in edge_types}  # NumNeighbors joins names so
    if twice := [t for t in edge_types if known["__".join(t)] != t]:
        raise InputError(
            "Expected num_neighbors as a list in a graph with edge types whose joined names are the same, got a dict: "
            f"{twice[0]} and {known['__'.join(twice[0])]}. Rename one of them."
        )
    if unknown := [str(name) for name in values if name not in known]:
        raise InputError(
            "Not all edge types specified in 'num_neighbors' exist in the graph: "
            f"{unknown[0]!r} is unknown. The graph has: {edge_types}."
        )
    if default is None and (missing := [t for name, t in known.items() if name not in values]):
        raise InputError(
            f"Expected num_neighbors for every edge type, got none for {missing[0]}. Add it ([0, ...] for none), "
            "or pass NumNeighbors(values, default=[...])."
        )
    return {
        ours: integers("numbers of neighbours", values.get("__".join(theirs), default))
        for ours, theirs in topology.user_edge_type.items()
    }


def as_num_neighbors(num_neighbors: object) -> NumNeighbors:
    """Convert anything that PyG accepts to ``NumNeighbors``."""
    if isinstance(num_neighbors, NumNeighbors):
        return num_neighbors
    if isinstance(num_neighbors, Mapping):
        try:
            return NumNeighbors({tuple(k) if isinstance(k, list) else k: v for k, v in num_neighbors.items()})
        except (TypeError, ValueError) as error:
            raise InputError(
                "Expected num_neighbors by edge type, such as {('user', 'rates', 'film'): [15, 10]}, got the keys "
                f"{list(num_neighbors)}: {error}. Pass a list for the same numbers with all edge types."
            ) from None
    if isinstance(num_neighbors, list | tuple):
        return NumNeighbors(list(num_neighbors))
    raise InputError(
        "Expected num_neighbors as a list (hop by hop), a dict (edge type -> list) or NumNeighbors, "
        f"got {num_neighbors!r}. One hop of 10 neighbours is [10]."
    )


def integers(what: str, values: Any) -> tuple[int, ...]:
    """Return one integer per hop; raise InputError for anything else."""
    try:
        if isinstance(values, str | bytes) or any(isinstance(k, bool) for k in values):
            raise TypeError
        return tuple(operator.index(k) for k in values)
    except TypeError:
        raise InputError(
            f"Expected a list of integers as {what}, got {values!r}. Pass [10, 10], for example."
        ) from None


def reverse_types(topology: Topology) -> dict[EdgeType, EdgeType]:
    """Return edge type -> reverse type, found as in PyG: by ``rev_`` names, otherwise the only type that fits."""
    if not topology.hetero:
        return {HOMOGENEOUS_EDGE: HOMOGENEOUS_EDGE}
    own = {theirs: ours for ours, theirs in topology.user_edge_type.items()}
    reverse: dict[EdgeType, EdgeType] = {}
    for edge_type, ours in own.items():
        src, rel, dst = edge_type
        if rel.startswith("rev_"):
            continue
        named = (dst, f"rev_{rel}", src)
        fitting = [t for t in own if (t[0], t[2]) == (dst, src)]
        if named in own:
            reverse[ours], reverse[own[named]] = own[named], ours
        elif src == dst:
            reverse[ours] = ours
        elif len(fitting) == 1:
            reverse[ours] = own[fitting[0]]
        else:
            warnings.warn(
                f"Cannot convert to bidirectional graph since the edge type {edge_type} does not seem to have a "
                "reverse edge type",
                stacklevel=2,
            )
    return reverse


def as_negative_sampling(neg_sampling: object) -> NegativeSampling | None:
    """Convert anything that PyG accepts, or a dict of it by edge type, to ``NegativeSampling``."""
    if isinstance(neg_sampling, Mapping) and any(isinstance(key, tuple) for key in neg_sampling):
        parts = {edge_type: as_negative_sampling(of_type) for edge_type, of_type in neg_sampling.items()}
        for edge_type in [t for t, of_type in parts.items() if of_type is None]:
            raise InputError(f"Expected neg_sampling for each type, got None for {edge_type}.")
        return TypedNegatives({t: of_type for t, of_type in parts.items() if of_type is not None})
    try:
        return NegativeSampling.cast(neg_sampling)
    except (TypeError, ValueError) as error:
        raise InputError(
            "Expected neg_sampling as 'binary', 'triplet', NegativeSampling or GivenNegatives, got "
            f"{neg_sampling!r}: {error}."
        ) from None


def negative_spec(neg_sampling: NegativeSampling | None, *, exclude_true: bool) -> NegativeSpec | None:
    """Return the engine's spec of PyG's negative sampling."""
    if neg_sampling is None:
        if exclude_true:
            raise InputError("exclude_true_negatives=True needs negatives to be drawn: also pass neg_sampling.")
        return None
    if isinstance(neg_sampling, GivenNegatives):
        if exclude_true:
            raise InputError(
                "exclude_true_negatives=True is for negatives that are drawn: given ones are used unchanged."
            )
        return (
            None if neg_sampling.in_batch else NegativeSpec(mode="triplet", amount=neg_sampling.amount or 1, given=True)
        )
    return NegativeSpec(
        mode="triplet" if neg_sampling.is_triplet() else "binary", amount=neg_sampling.amount, exclude_true=exclude_true
    )
