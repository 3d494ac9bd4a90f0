"""Sampled layers as DGL's blocks: what ``dgl.create_block`` makes, in an eighth of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.errors import InputError, MissingExtraError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop_graphbolt.graph.subgraph import CSCFormatBase, SampledSubgraph
from manyhop_graphbolt.types import etype_str_to_tuple

if TYPE_CHECKING:
    from dgl.heterograph import DGLBlock


_LARGEST = torch.iinfo(torch.int32).max


def make_blocks(subgraphs: Sequence[SampledSubgraph]) -> list[DGLBlock]:
    """Make a block per layer; the first has the ids of its source nodes as ``dgl.NID``, all those of their edges as
    ``dgl.EID`` where they are known.

    Raises:
        MissingExtraError: DGL is not installed.
        InputError: rows and columns that are not compacted.
    """
    try:
        import dgl  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "dgl":
            raise
        raise MissingExtraError("dgl", "dgl", "MiniBatch.blocks") from None
    return [_block(subgraph, with_nodes=i == 0) for i, subgraph in enumerate(subgraphs)]


def _block(subgraph: SampledSubgraph, *, with_nodes: bool) -> DGLBlock:
    """One layer; ``with_nodes``: with the ids of its source nodes."""
    import dgl

    from manyhop_dgl.samplers.blocks import (
        block_schema,
        frames_of_ids,
        index_of_dgl,
        make_column,
        make_frame,
        relation_maker,
    )

    csc, ids = _by_type(subgraph.sampled_csc, HOMOGENEOUS_EDGE), _by_type(subgraph.original_edge_ids, HOMOGENEOUS_EDGE)
    rows = _by_type(subgraph.original_row_node_ids, HOMOGENEOUS_NODE)
    columns = _by_type(subgraph.original_column_node_ids, HOMOGENEOUS_NODE)
    row_masks, edge_masks = (
        _by_type(subgraph.row_mask, HOMOGENEOUS_NODE),
        _by_type(subgraph.edge_mask, HOMOGENEOUS_EDGE),
    )
    if rows is None or columns is None:
        raise InputError(
            "Expected layers with original_row_node_ids and original_column_node_ids to make blocks of, got one "
            "without. Compact it first (unique_and_compact_csc_formats)."
        )
    node_types, edge_types = sorted({*rows, *columns}), sorted(csc)  # as in DGL
    none = next(iter(rows.values()))[:0]
    sources, targets = [[nodes.get(t, none) for t in node_types] for nodes in (rows, columns)]
    num_src, num_dst = [{t: n.shape[0] for t, n in zip(node_types, some, strict=True)} for some in (sources, targets)]
    canonical = tuple([t if isinstance(t, tuple) else etype_str_to_tuple(t) for t in edge_types])
    relation = relation_maker(none.device)

    def structure() -> tuple[list[Any], list[int]]:
        ends = zip(edge_types, canonical, strict=True)
        relations = [relation(num_src[src], num_dst[dst], *_narrow(csc[name])) for name, (src, _, dst) in ends]
        return relations, [*num_src.values(), *num_dst.values()]

    def node_frames() -> list[Any]:
        nodes = frames_of_ids(dgl.NID, sources) if with_nodes else [make_frame(some.shape[0], {}) for some in sources]
        nodes += [make_frame(some.shape[0], {}) for some in targets]
        if row_masks is not None:
            for frame, t in zip(nodes, 2 * node_types, strict=True):
                frame._columns["node_mask"] = make_column(row_masks[t][: frame.num_rows])
        return nodes

    def edge_frames() -> list[Any]:
        edges = []
        for name in edge_types:
            own = None if ids is None else ids.get(name)
            edges += [make_frame(csc[name].indices.shape[0], {})] if own is None else frames_of_ids(dgl.EID, [own])
            if edge_masks is not None:
                edges[-1]._columns["edge_mask"] = make_column(edge_masks[name])
        return edges

    schema = block_schema(tuple(node_types), canonical)
    return schema.block(structure, node_frames, edge_frames, lazy=relation is not index_of_dgl)


def _by_type(value: object, only: str | EdgeType) -> Any:
    """Values by type; a homogeneous layer has one type."""
    return value if value is None or isinstance(value, dict) else {only: value}


def _narrow(csc: CSCFormatBase) -> tuple[Tensor, Tensor]:
    """Columns and rows, in int32 where that is enough."""
    enough = max(csc.indptr.numel() - 2, csc.indices.numel()) <= _LARGEST
    dtype = torch.int32 if enough else torch.int64
    return csc.indptr.to(dtype), csc.indices.to(dtype)
