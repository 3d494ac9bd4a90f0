"""The inputs of a loader (seed nodes, seed edges), checked and as tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, remote_backend_utils
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.typing import InputEdges, InputNodes

from manyhop.arguments import as_ids, as_tensor
from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop_pyg.data.topologies import is_hetero, read_edge_index
from manyhop_pyg.samplers.requests import TypedNodeInput, input_of
from manyhop_pyg.samplers.seeds import TypedEdgeInput
from manyhop_pyg.samplers.spec import EdgeInput, GivenNegatives, negatives_of
from manyhop_pyg.typing import PyGData

KindT = TypeVar("KindT", NodeType, EdgeType)
EdgeValues: TypeAlias = Tensor | Mapping[EdgeType, Tensor] | None
"""``[num_seeds, ...]``; by type if seed edges have multiple types."""


def seed_input(data: PyGData, input_nodes: object, input_time: object, input_id: object) -> NodeSamplerInput:
    """Return seed nodes of one type, or of multiple types, ``{type: ids}``."""
    if not isinstance(input_nodes, Mapping):
        for name, value in (("input_time", input_time), ("input_id", input_id)):
            if isinstance(value, Mapping):
                raise InputError(f"Expected {name} as a tensor for seeds of one type, got a dict.")
        return node_input(data, input_nodes, input_time, input_id)
    times, ids = _of_types("input_time", input_time, input_nodes), _of_types("input_id", input_id, input_nodes)
    each = [node_input(data, (t, nodes), times.get(t), ids.get(t)) for t, nodes in input_nodes.items()]
    return _together(each, input_nodes)


def given_nodes(
    seeds: object, input_time: object, node_type: object, device: torch.device | None = None
) -> NodeSamplerInput:
    """Return seed nodes for ``loader.batch``, of the loader's node type or types; samplers check their range.

    ``device`` is the GPU that samples, if one does: seeds of one type without times stay on their device and have no
    ``input_id``, which is then 0, 1, ...
    """
    by_type = seeds if not isinstance(seeds, Tensor) and isinstance(seeds, Mapping) else None
    if isinstance(node_type, tuple) != (by_type is not None):
        got = "without types" if by_type is None else f"of {list(by_type)}"
        wanted = "without types" if node_type is None else f"of the loader's type of input nodes, {node_type!r}"
        raise InputError(f"Expected seeds {wanted}, got seeds {got}.")
    if by_type is None:
        quick = device is not None and input_time is None  # nothing is copied, and the GPU not waited for
        nodes = as_ids("seeds", seeds, None if quick else math.inf)
        if quick:
            columns = {"input_id": None, "node": nodes, "time": None, "input_type": node_type}
            return input_of(NodeSamplerInput, columns)
        time = as_time("input_time", input_time, nodes.numel())
        return NodeSamplerInput(torch.arange(nodes.numel()), nodes, time, node_type)
    times = _of_types("input_time", input_time, by_type)
    return _together([given_nodes(ids, times.get(t), t) for t, ids in by_type.items()], by_type)


def _of_types(name: str, given: object, node_types: Mapping[KindT, object]) -> Mapping[KindT, Tensor]:
    """Return an argument by type, for all types or none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or set(given) != set(node_types):
        got = list(given) if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise InputError(f"Expected {name} as a dict for the types of the seeds, {list(node_types)}, got {got}.")
    return given


def _together(each: Sequence[NodeSamplerInput], node_types: Iterable[NodeType]) -> TypedNodeInput:
    if not each:
        raise InputError("Expected seeds of one type or several, got an empty dict.")
    sizes = [one.node.numel() for one in each]
    ids = [torch.arange(n) if one.input_id is None else one.input_id for n, one in zip(sizes, each, strict=True)]
    time = None if each[0].time is None else torch.cat([one.time for one in each])
    return TypedNodeInput(torch.cat(ids), torch.cat([one.node for one in each]), time, tuple(node_types), sizes)


def node_input(data: PyGData, input_nodes: InputNodes, input_time: object, input_id: object) -> NodeSamplerInput:
    """Return seed nodes of all nodes, ids or a mask, with a node type in heterogeneous graphs."""
    node_type, nodes = _split_type(data, input_nodes)
    num_nodes = number_of_nodes(data, node_type)
    if nodes is None:
        if num_nodes is None:
            raise InputError(f"The number of nodes of type {node_type!r} is not known: pass the seeds as a tensor.")
        nodes = torch.arange(num_nodes)
    nodes = as_tensor("input_nodes", nodes)
    if nodes.dtype == torch.bool:
        if nodes.dim() != 1 or (num_nodes is not None and nodes.numel() != num_nodes):
            raise InputError(
                f"Expected a mask of input nodes of shape [{num_nodes}], got {list(nodes.shape)}. A mask has one entry "
                "per node of the graph."
            )
        nodes = nodes.nonzero().view(-1)
        input_id = nodes if input_id is None else input_id
    nodes = as_ids("input_nodes", nodes, math.inf if num_nodes is None else num_nodes)
    input_id = None if input_id is None else _column("input_id", input_id)
    if input_id is not None and input_id.shape != nodes.shape:
        raise InputError(f"Expected input_id of shape {list(nodes.shape)}, got {list(input_id.shape)}.")
    time = as_time("input_time", input_time, nodes.numel())
    return NodeSamplerInput(input_id=input_id, node=nodes, time=time, input_type=node_type)


def edge_input(
    data: PyGData,
    edge_label_index: InputEdges | Mapping[EdgeType, Tensor | None],
    edge_label: EdgeValues,
    edge_label_time: EdgeValues,
    input_id: EdgeValues,
    neg_sampling: NegativeSampling | None,
) -> EdgeSamplerInput:
    """Return seed edges: all edges of a type, or pairs of nodes. Labels are raised by 1 if negatives need 0.

    For a dict, return seed edges of multiple types; labels, times and ids are then dicts, too.
    """
    if isinstance(edge_label_index, Mapping):
        if not edge_label_index:
            raise InputError("Expected seed edges of one type or several, got an empty dict.")
        label = _of_types("edge_label", edge_label, edge_label_index)
        time = _of_types("edge_label_time", edge_label_time, edge_label_index)
        ids = _of_types("input_id", input_id, edge_label_index)
        parts = {}
        for t, index in edge_label_index.items():
            one = t if index is None else (t, index)
            negatives = negatives_of(neg_sampling, _split_edge_type(data, one)[0])
            part = edge_input(data, one, label.get(t), time.get(t), ids.get(t), negatives)
            parts[part.input_type] = part
        return TypedEdgeInput(parts)
    edge_type, index = _split_edge_type(data, edge_label_index)
    ends = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
    sizes = [number_of_nodes(data, end) for end in ends]
    given = edge_label, edge_label_time, input_id, neg_sampling
    inputs = pairs_input("edge_label_index", edge_type, index, sizes, *given)
    if not isinstance(neg_sampling, GivenNegatives) or not isinstance(neg_sampling.dst, Tensor):
        return inputs
    neg_dst, n = neg_sampling.dst.cpu(), inputs.row.numel()
    if neg_dst.size(0) != n:
        raise InputError(f"Expected negatives for the {n} seed edges, one row for each, got {neg_dst.size(0)} rows.")
    as_ids("negatives", neg_dst.reshape(-1), math.inf if sizes[1] is None else sizes[1])
    return EdgeInput.of(inputs, neg_dst)


def pairs_input(
    name: str,
    edge_type: EdgeType | None,
    index: object,
    sizes: Sequence[int | None],
    edge_label: EdgeValues,
    edge_label_time: EdgeValues,
    input_id: EdgeValues,
    neg_sampling: NegativeSampling | None,
) -> EdgeSamplerInput:
    """Return seed edges of node pairs ``index``, the argument ``name``; ``sizes``: numbers of nodes, if known."""
    index = as_tensor(name, index)
    if index.dim() != 2 or index.size(0) != 2:
        raise InputError(f"Expected {name} of shape [2, num_edges], got {list(index.shape)}.")
    row, col = (as_ids(name, ids, math.inf if n is None else n) for ids, n in zip(index, sizes, strict=True))
    n = index.size(1)
    input_id = None if input_id is None else _column("input_id", input_id)
    edge_label = None if edge_label is None else _column("edge_label", edge_label)
    for what, value in (("edge_label", edge_label), ("input_id", input_id)):
        if value is not None and (value.dim() == 0 or value.size(0) != n):
            raise InputError(
                f"Expected {what} as a tensor of shape [{n}], one entry per seed edge, got {list(value.shape)}."
            )
    edge_label_time = as_time("edge_label_time", edge_label_time, n)
    if neg_sampling is not None and edge_label is not None:
        if neg_sampling.is_triplet():
            raise InputError(
                "'edge_label' needs to be undefined for 'triplet'-based negative sampling. Use `src_index`, "
                "`dst_pos_index` and `dst_neg_index` of the batch to distinguish positive from negative samples."
            )
        if edge_label.is_complex():
            raise InputError(f"Expected edge_label as real numbers with negatives, got {edge_label.dtype}.")
        if n > 0 and edge_label.min() == 0:
            edge_label = edge_label + 1  # 0 now denotes negatives
    return EdgeSamplerInput(input_id, row, col, edge_label, edge_label_time, edge_type)


def number_of_nodes(data: PyGData, node_type: NodeType | None) -> int | None:
    """Return the number of nodes of a type (``None`` in homogeneous data); ``None``: unknown to the stores."""
    n: int | Tensor | None = None
    if isinstance(data, Data):
        n = data.num_nodes
    elif isinstance(data, HeteroData):
        n = data[node_type].num_nodes if node_type in data.node_types else None
    elif node_type is None:
        sizes = [attr.size for attr in data[1].get_all_edge_attrs()]
        return max(max(s) for s in sizes) if sizes and all(s is not None and None not in s for s in sizes) else None
    else:
        with suppress(ValueError):  # the stores do not tell
            n = remote_backend_utils.num_nodes(*data, node_type)
    return None if n is None else int(n)


def as_time(name: str, given: object, n: int) -> Tensor | None:
    """Return times of seeds, ``[n]`` or ``[n, 2]``, if given; raise InputError for other shapes or dtypes."""
    if given is None:
        return None
    time = _column(name, given)
    if tuple(time.shape) not in ((n,), (n, 2)) or time.dtype == torch.bool or time.is_complex():
        raise InputError(
            f"Expected {name} as a tensor of integers or floats of shape [{n}], or [{n}, 2] for start and end, got "
            f"{time.dtype} of shape {list(time.shape)}."
        )
    return time


def _column(name: str, given: object) -> Tensor:
    """Return values of seeds as a tensor that torch can index: not of unsigned integers."""
    values = as_tensor(name, given)
    return values.long() if values.dtype in (torch.uint16, torch.uint32, torch.uint64) else values


def _split_type(data: PyGData, input_nodes: InputNodes) -> tuple[NodeType | None, object]:
    """Return the node type of the seeds, and the seeds; ``None``: all nodes."""
    if isinstance(data, Data):
        if isinstance(input_nodes, str) or _is_typed(input_nodes):
            raise InputError(f"Expected input_nodes without a node type, as Data has no types, got {input_nodes!r}.")
        return None, input_nodes
    known = list(data.node_types) if isinstance(data, HeteroData) else None
    if input_nodes is None and (known is not None or is_hetero(data[1])):
        types = "" if known is None else f" The graph has: {known}."
        raise InputError(
            f"Expected input_nodes to name the type of the seed nodes: 'type' for all nodes, or ('type', ids).{types}"
        )
    if known is None and not isinstance(input_nodes, str) and not _is_typed(input_nodes):
        return None, input_nodes  # a homogeneous store
    if not isinstance(input_nodes, str) and not _is_typed(input_nodes):
        raise InputError(
            f"Expected input_nodes as 'type' or ('type', ids), got {type(input_nodes).__name__}. Begin with the type."
        )
    node_type, nodes = (input_nodes, None) if isinstance(input_nodes, str) else input_nodes
    if known is not None and node_type not in known:
        raise InputError(f"Unknown node type {node_type!r} in input_nodes. The graph has: {known}.")
    return node_type, nodes


def _is_typed(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str)


def _split_edge_type(data: PyGData, edge_label_index: InputEdges) -> tuple[EdgeType | None, object]:
    """Return the type of the seed edges, and their endpoints."""
    if isinstance(data, Data):
        if isinstance(edge_label_index, tuple | list) and any(isinstance(x, str | tuple) for x in edge_label_index):
            raise InputError("Expected edge_label_index without an edge type, as Data has no types.")
        return None, data.edge_index if edge_label_index is None else edge_label_index
    if not isinstance(edge_label_index, tuple | list) or len(edge_label_index) == 0:
        if isinstance(edge_label_index, Tensor) and not isinstance(data, HeteroData):
            return None, edge_label_index
        raise InputError(
            "Expected edge_label_index to name the type of the seed edges: ('src', 'rel', 'dst') for all edges, or "
            "(('src', 'rel', 'dst'), index)."
        )
    if isinstance(edge_label_index[0], str):
        edge_type, index = tuple(edge_label_index), None
    elif len(edge_label_index) == 2:
        edge_type, index = edge_label_index
    else:
        raise InputError(f"Expected edge_label_index as (edge type, index), got {len(edge_label_index)} entries.")
    if isinstance(data, HeteroData):
        edge_type = data._to_canonical(*edge_type)
        if index is None and edge_type not in data.edge_types:
            raise InputError(f"Unknown edge type {edge_type} in edge_label_index. The graph has: {data.edge_types}.")
        for end in (edge_type[0], edge_type[-1]):
            if end not in data.node_types:
                raise InputError(f"Unknown node type {end!r} in edge_label_index. The graph has: {data.node_types}.")
        return edge_type, data[edge_type].edge_index if index is None else index
    if index is None:
        index = read_edge_index(data[1], edge_type)
    return edge_type, index
