"""Sampled layers as DGL's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError, MissingExtraError
from manyhop_dgl.graphbolt._names import etype_str_to_tuple

_LARGEST = torch.iinfo(torch.int32).max


def make_blocks(subgraphs: Sequence[Any]) -> list[Any]:
    """A block per layer; the first has the ids of its source nodes as ``dgl.NID``, all those of their edges as
    ``dgl.EID`` where they are known.

    Raises:
        MissingExtraError: DGL is not installed; or it knows CPUs only, and the layers are on a GPU.
        InputError: rows and columns that are not compacted.
    """
    try:
        import dgl
    except ModuleNotFoundError as error:
        if error.name != "dgl":
            raise
        raise MissingExtraError("dgl", "dgl", "MiniBatch.blocks") from None
    from manyhop_dgl._blocks import require_build_for

    blocks = []
    for subgraph in subgraphs:
        if subgraph.original_row_node_ids is None or subgraph.original_column_node_ids is None:
            raise InputError(
                "Expected layers with original_row_node_ids and original_column_node_ids to make blocks of, got one "
                "without. Compact it first (unique_and_compact_csc_formats)."
            )
        some = subgraph.original_row_node_ids
        require_build_for((next(iter(some.values())) if isinstance(some, dict) else some).device)
        blocks.append(_block(dgl, subgraph))
    rows = subgraphs[0].original_row_node_ids
    for ntype, nodes in rows.items() if isinstance(rows, dict) else [(None, rows)]:
        (blocks[0].srcnodes[ntype].data if ntype is not None else blocks[0].srcdata)[dgl.NID] = nodes
    return blocks


def _block(dgl: Any, subgraph: Any) -> Any:
    csc, rows, columns = subgraph.sampled_csc, subgraph.original_row_node_ids, subgraph.original_column_node_ids
    ids = subgraph.original_edge_ids
    if not isinstance(csc, dict):
        block = dgl.create_block(_csc(csc), num_src_nodes=rows.numel(), num_dst_nodes=columns.numel())
        if ids is not None:
            block.edata[dgl.EID] = ids
        return block
    block = dgl.create_block(
        {etype_str_to_tuple(name): _csc(part) for name, part in csc.items()},
        num_src_nodes={ntype: nodes.numel() for ntype, nodes in rows.items()},
        num_dst_nodes={ntype: nodes.numel() for ntype, nodes in columns.items()},
    )
    for name, edges in (ids or {}).items():
        block.edges[etype_str_to_tuple(name)].data[dgl.EID] = edges
    return block


def _csc(csc: Any) -> tuple[str, tuple[Tensor, Tensor, Tensor]]:
    """The edges as ``dgl.create_block`` takes them, in int32 where that is enough."""
    num_edges = csc.indices.numel()
    dtype = torch.int32 if max(csc.indptr.numel() - 2, num_edges) <= _LARGEST else torch.int64
    order = torch.arange(num_edges, dtype=dtype, device=csc.indices.device)
    return "csc", (csc.indptr.to(dtype), csc.indices.to(dtype), order)
