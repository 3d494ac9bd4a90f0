"""Negatives of their own for each type of seed edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_geometric.sampler import NegativeSampling

from manyhop.errors import InputError
from manyhop.graph import EdgeType


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
