"""The names of ``dgl.graphbolt`` that DGL itself uses. GraphBolt is ``manyhop_dgl.graphbolt``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FusedCSCSamplingGraph", "etype_tuple_to_str", "expand_indptr"]


class FusedCSCSamplingGraph:
    """A class without instances, for ``isinstance(g, dgl.graphbolt.FusedCSCSamplingGraph)``."""

    def __init__(self) -> None:
        raise TypeError(
            "GraphBolt's graphs need its C++ library. Use manyhop_dgl.graphbolt.fused_csc_sampling_graph(...)."
        )


def expand_indptr(
    indptr: Tensor, dtype: torch.dtype | None = None, node_ids: Tensor | None = None, output_size: int | None = None
) -> Tensor:
    """Return the column of each entry of a CSC matrix.

    Args:
        indptr: ``[num_columns + 1]``, where each column's entries begin.
        dtype: of the result; that of ``node_ids`` if left out.
        node_ids: ``[num_columns]``: the name of each column; default: its position.
        output_size: the number of entries, if it is known.

    Returns:
        ``[num_entries]``.
    """
    if node_ids is None:
        if dtype is None:
            raise ValueError("Expected dtype or node_ids: one of them says which dtype the result has.")
        node_ids = torch.arange(indptr.numel() - 1, dtype=dtype, device=indptr.device)
    columns = torch.repeat_interleave(node_ids, indptr.diff(), output_size=output_size)
    return columns if dtype is None else columns.to(dtype)


def etype_tuple_to_str(c_etype: tuple[str, str, str]) -> str:
    """Join an edge type: ``("user", "likes", "item")`` -> ``"user:likes:item"``."""
    if not isinstance(c_etype, tuple) or len(c_etype) != 3:
        raise TypeError(f"Expected an edge type (source, relation, destination), got {c_etype!r}.")
    return ":".join(c_etype)
