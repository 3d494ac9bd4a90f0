"""Which edges of a sampled subgraph connect given pairs of nodes, and what is left without them.

Only the columns of the pairs' destinations are looked at: they are few, as those are seeds, while edges are many.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.errors import InputError

Pairs: TypeAlias = Tensor | tuple[Tensor, Tensor]
Excluded: TypeAlias = Pairs | dict[str, Any]


def split_pairs(pairs: object) -> tuple[Tensor, Tensor]:
    """``(src, dst)``, of either form of pairs."""
    if isinstance(pairs, Tensor) and pairs.dim() == 2 and pairs.shape[1] == 2:
        return pairs[:, 0], pairs[:, 1]
    if isinstance(pairs, tuple | list) and len(pairs) == 2 and pairs[0].shape == pairs[1].shape:
        return pairs[0].reshape(-1), pairs[1].reshape(-1)
    got = list(pairs.shape) if isinstance(pairs, Tensor) else f"a {type(pairs).__name__}"
    raise InputError(f"Expected pairs of nodes as a tensor [n, 2] or a pair of tensors [n], got {got}.")


def edges_to_drop(csc: Any, rows: Tensor | None, columns: Tensor | None, pairs: Pairs) -> Tensor:
    """Positions of the edges that connect one of the pairs, ascending.

    Args:
        csc: the edges.
        rows: the node that each row stands for; ``None``: rows are nodes.
        columns: the node that each column stands for; ``None``: columns are nodes.
        pairs: nodes that are connected.
    """
    src, dst = split_pairs(pairs)
    indptr: Tensor = csc.indptr.long()
    indices: Tensor = csc.indices.long()
    if columns is None:
        columns = torch.arange(indptr.numel() - 1, device=indptr.device)
    sources, destinations = torch.unique(src.long()), torch.unique(dst.long())
    if sources.numel() == 0:
        return indptr.new_empty(0)
    wanted = torch.unique(_place(sources, src.long()) + sources.numel() * _place(destinations, dst.long()))
    place_of_column, is_there = _find(destinations, columns.long())
    hit = is_there.nonzero().view(-1)
    begin, degree = indptr[hit], indptr[hit + 1] - indptr[hit]
    which = torch.arange(hit.numel(), device=hit.device).repeat_interleave(degree)
    edge = torch.arange(which.numel(), device=hit.device) + (begin - (degree.cumsum(0) - degree))[which]
    neighbor = indices[edge]
    place_of_row, source_is_there = _find(sources, neighbor if rows is None else rows.long()[neighbor])
    code = place_of_row + sources.numel() * place_of_column[hit][which]
    return edge[source_is_there & _find(wanted, code)[1]].sort().values


def without(csc: Any, edge_ids: Tensor | None, drop: Tensor) -> tuple[Any, Tensor | None]:
    """Return the edges and their ids, without those at some positions."""
    if drop.numel() == 0:
        return csc, edge_ids
    keep = torch.ones(csc.indices.numel(), dtype=torch.bool, device=csc.indices.device)
    keep[drop] = False
    indptr = csc.indptr - torch.searchsorted(drop, csc.indptr.long()).to(csc.indptr.dtype)
    return type(csc)(indptr=indptr, indices=csc.indices[keep]), None if edge_ids is None else edge_ids[keep]


def _place(values: Tensor, wanted: Tensor) -> Tensor:
    """Where each wanted value, all of which are there, is in the sorted ``values``."""
    return torch.searchsorted(values, wanted.contiguous())


def _find(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where each wanted value is in the sorted ``values`` (at least one), and whether it is there at all."""
    place = torch.searchsorted(values, wanted.contiguous()).clamp_(max=values.numel() - 1)
    return place, values[place] == wanted
