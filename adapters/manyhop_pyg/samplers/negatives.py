"""Negatives beside PyG's: given ones, and those of several types of seed edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from manyhop.arguments import as_tensor, check_no_mask, integer
from manyhop.errors import InputError
from manyhop.graph import EdgeType
from manyhop.system.arrays import describe

Destinations: TypeAlias = Tensor | Callable[[Tensor, Tensor], Tensor] | Literal["in_batch"]


@dataclass(init=False)
class GivenNegatives(NegativeSampling):  # type: ignore[misc]  # PyG is untyped
    """Negatives of a ``LinkNeighborLoader`` that are given, in place of PyG's ``NegativeSampling``.

    Batches are as with triplets: ``src_index``, ``dst_pos_index`` and ``dst_neg_index``. Given negatives are taken as
    they are, true edges among them.

    Args:
        dst: ``[num_seeds, amount]`` ids of destinations, a row for each seed edge of the loader, or ``[num_seeds]``;
            or ``dst(src, pos)``, which is called for each batch with the endpoints ``[n] int64`` of its seed edges and
            returns ``[n, amount]`` ids: in the loader's threads, also for batches ahead, on the GPU where that samples.
            It should be a function of its arguments alone, so that a run can be resumed;
            or ``"in_batch"``: the destinations of the next ``amount`` seed edges of the batch, without further nodes.
        amount: negatives per seed edge; of a tensor, its width; ``"in_batch"``: default are all other seed edges of the
            batch, and there are never more than these: a smaller last batch has fewer.

    Raises:
        InputError: something else, or an amount that does not go with it.
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
        """Return ``[n, amount] int64`` destinations for seed edges; ``None`` where these come from the batch.

        Raises:
            InputError: a function has returned something else; seed edges that are not the loader's.
        """
        if self.in_batch:
            return None
        if callable(self.dst):
            found = self.dst(*(ids.to(device, torch.int64) for ids in (index.row, index.col)))
            return _integers("the result of the function of negatives", found)
        if not isinstance(index, EdgeInput):
            raise not_by_position()
        return index.neg_dst

    def in_batch_index(self, dst_index: Tensor) -> Tensor:
        """Return ``[n, amount]``: for each seed edge the indices of the destinations of the next ones, cyclically."""
        n = dst_index.numel()
        amount = max(n - 1, 0) if self.amount is None else min(self.amount, max(n - 1, 0))
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
    """Return the error for seed edges that are not the loader's, where a tensor has the negatives of those."""
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
    """PyG's ``NegativeSampling`` for seed edges of several types, with one for each.

    Args:
        of_types: edge type -> its negatives; all binary, or all triplets.

    Raises:
        InputError: of both kinds, or of no type.
    """

    of_types: dict[EdgeType, NegativeSampling]

    def __init__(self, of_types: Mapping[EdgeType, NegativeSampling]) -> None:
        modes = {one.mode.value for one in of_types.values()}
        if len(modes) != 1:
            raise InputError(
                "Expected neg_sampling by type to be binary for all types, or triplets (as GivenNegatives are), got "
                f"{sorted(modes) or 'an empty dict'}. Make a loader for each kind."
            )
        super().__init__(*modes)
        self.of_types = dict(of_types)


def negatives_of(neg_sampling: NegativeSampling | None, edge_type: EdgeType | None) -> NegativeSampling | None:
    """Return the negatives of seed edges of a type.

    Raises:
        InputError: there are none of this type, but of others.
    """
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
