"""Sampling without DGL's objects: blocks of tensors, with rows of features, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from manyhop.arguments import flag
from manyhop.errors import FeatureError
from manyhop.features import RowRequest, gather
from manyhop.graph import EdgeType, NodeType
from manyhop.loading import batch_key
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.graph.topology import EdgeDir, of_type
from manyhop_dgl.samplers.arguments import (
    check_name,
    check_names,
    freeze_fanouts,
    type_of,
)
from manyhop_dgl.samplers.keys import next_key
from manyhop_dgl.samplers.plan import Arguments, as_device
from manyhop_dgl.samplers.tensors import BlockTensors, only
from manyhop_dgl.typing import Fanouts, GraphLike, Names

KindT = TypeVar("KindT", NodeType, EdgeType)


def sample_tensors(
    graph: GraphLike,
    seed_nodes: object,
    fanouts: Fanouts,
    *,
    edge_dir: EdgeDir = "in",
    prob: str | None = None,
    mask: str | None = None,
    replace: bool = False,
    exclude_eids: object = None,
    key: tuple[int, int, int] | None = None,
    device: torch.device | str | None = None,
    node_features: Names = None,
    edge_features: Names = None,
) -> BlockTensors:
    """Sample blocks as tensors. It needs no build of DGL for the device, nor DGL at all for a ``manyhop_dgl.Graph``.

    The sample is that of :class:`NeighborSampler` for the same key, on the CPU and on a GPU. On a GPU the edges are
    read from its memory, to which they are copied once per graph.

    Args:
        graph: a ``DGLGraph`` on the CPU or a ``manyhop_dgl.Graph``.
        seed_nodes: ``[num_seeds]`` ids, or a dict, node type -> ids; on the CPU or on the device.
        fanouts: as for :class:`NeighborSampler`, like the following four.
        edge_dir: ``"in"`` or ``"out"``.
        prob: name of edge data to pick by.
        mask: name of boolean edge data: edges that may be sampled.
        replace: sample with replacement.
        exclude_eids: edge ids, or a dict, edge type -> edge ids: they are removed from the picks.
        key: ``(seed, epoch, batch)``: determines the sample. ``None``: in a loader's iteration, the key of the
            batch, otherwise drawn.
        device: where to sample and to gather; ``None``: on the CPU.
        node_features: names of node data to gather for the input nodes (of every node type that has it), or a dict,
            node type -> names.
        edge_features: names of edge data to gather for the edges of all blocks, or a dict, edge type -> names.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: data for ``prob`` or ``mask`` that is missing or wrong.
        FeatureError: features that the graph does not have.
        CapacityError: the batch does not fit in memory.
    """
    check_name(prob, "prob")
    check_name(mask, "mask")
    arguments = Arguments(freeze_fanouts(fanouts), edge_dir, prob, mask, flag("replace", replace))
    check_names(node_features, "node_features")
    check_names(edge_features, "edge_features")
    own = next_key() if key is None else batch_key(key)
    tensors = arguments.sample(graph, seed_nodes, exclude_eids, own, as_device(device))[1]
    return with_rows(tensors, graph, node_features, edge_features)


def with_rows(tensors: BlockTensors, graph: GraphLike, node_features: Names, edge_features: Names) -> BlockTensors:
    """Blocks with rows of the graph's current data, gathered by one call.

    Raises:
        FeatureError: data that the graph does not have.
        InputError: types that it does not have.
    """
    if not node_features and not edge_features:
        return tensors
    data = frames(graph)
    nodes: list[tuple[str, NodeType, RowRequest]] = [
        (name, t, RowRequest(data.nodes[t][name], tensors.node[t], name=f"'{name}' of node type '{t}'"))
        for name, t in wanted(node_features, data.nodes, "node")
    ]
    edges: list[tuple[int, str, EdgeType, RowRequest]] = [
        (i, name, t, RowRequest(data.edges[t][name], ids, name=f"'{name}'{of_type(t)}"))
        for name, t in wanted(edge_features, data.edges, "edge")
        for i, block in enumerate(tensors.blocks)
        for ids in (list(block.ids.values())[list(data.edges).index(t)],)
    ]
    rows = gather([item[2] for item in nodes] + [item[3] for item in edges])
    of_nodes: dict[str, dict[NodeType, Tensor]] = {}
    for (name, t, _), row in zip(nodes, rows, strict=False):
        of_nodes.setdefault(name, {})[t] = row
    of_edges: list[dict[str, dict[EdgeType, Tensor]]] = [{} for _ in tensors.blocks]
    for (i, name, edge_type, _), row in zip(edges, rows[len(nodes) :], strict=True):
        of_edges[i].setdefault(name, {})[edge_type] = row
    return replace(
        tensors,
        node_features={name: only(by_type, among=len(data.nodes)) for name, by_type in of_nodes.items()},
        edge_features=[
            {name: only(by_type, among=len(data.edges)) for name, by_type in block.items()} for block in of_edges
        ]
        if edge_features
        else [],
    )


def wanted(names: Names, data: Mapping[KindT, Mapping[str, object]], what: str) -> list[tuple[str, KindT]]:
    """Name and type of all data that is requested."""
    if not names:
        return []
    if isinstance(names, Mapping):
        by_type = {type_of(t, data, what, f"{what}_features"): list(of_type) for t, of_type in names.items()}
        missing = [(name, t) for t, of_type in by_type.items() for name in of_type if name not in data[t]]
        if missing:
            name, t = missing[0]
            raise FeatureError(f"Expected '{name}' among the data of {what} type {t!r}, which has: {list(data[t])}.")
        return [(name, t) for t, of_type in by_type.items() for name in of_type]
    for name in names:
        if not any(name in of_type for of_type in data.values()):
            known = sorted({known for of_type in data.values() for known in of_type})
            raise FeatureError(f"Expected '{name}' among the {what} data of the graph, which has: {known}.")
    return [(name, t) for name in names for t, of_type in data.items() if name in of_type]
