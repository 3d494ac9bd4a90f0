"""Types of values and names, values by type, pipes of minibatches, and hints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils.data import IterDataPipe

from manyhop.arguments import flag, integer
from manyhop.errors import InputError
from manyhop.graph import EdgeType
from manyhop_dgl.samplers.tensors import Composite, apply_nested

Pipe: TypeAlias = IterDataPipe[Any]
"""A pipe of minibatches, or of other items."""
Nodes: TypeAlias = Tensor | dict[str, Tensor]
"""A tensor, by node type or edge type: ids ``[n]``, pairs of ids ``[n, 2]``, times, labels, ..."""
Fanout: TypeAlias = int | Sequence[int] | Tensor
"""Edges per node of one layer: of all types together, or ``[num_edge_types]``."""
Features: TypeAlias = dict[Any, Tensor]
"""Feature name, or ``(type, feature name)`` -> rows ``[n, ...]``."""


def by_type(value: object) -> dict[Any, Any]:
    """Return values by type; an untyped value has the type ``None``, and ``None`` no values."""
    return {} if value is None else dict(value) if isinstance(value, Mapping) else {None: value}


def as_given(values: dict[Any, Any]) -> Any:
    """Undo :func:`by_type`."""
    return values.get(None, values)


def ends_of(kind: str | None) -> tuple[Any, Any]:
    """Return the node types of the two ends of an edge type; ``None`` twice for untyped edges."""
    return (None, None) if kind is None else etype_str_to_tuple(kind)[::2]


class GBWarning(UserWarning):
    """The category of all warnings of this package, as in DGL 2.4."""


_SHARED = "placement='shared', or pass the graph to the processes that you start"
_OVERLAP = "none of the stages by which GraphBolt overlaps others: here they always overlap"
GONE = {
    **dict.fromkeys(("negative_srcs", "negative_dsts"), "seeds with labels and indexes"),
    **dict.fromkeys(("compacted_negative_srcs", "compacted_negative_dsts"), "compacted_seeds with labels and indexes"),
    **dict.fromkeys(("compacted_node_pairs", "positive_node_pairs", "negative_node_pairs"), "compacted_seeds"),
    **dict.fromkeys(("copy_to_shared_memory", "load_from_shared_memory"), _SHARED),
    **dict.fromkeys(
        ("buffer", "mark_end", "wait", "wait_future", "fetch_insubgraph_data", "sample_per_layer"), _OVERLAP
    ),
    "node_pairs": "seeds",
    "add_reverse_edges_2": "add_reverse_edges",
    "sample_negative_edges_uniform_2": "sample_negative_edges_uniform",
    "isin": "torch.isin",
    "FusedSampledSubgraphImpl": "SampledSubgraphImpl",
    "LegacyDataset": "from_dglgraph(g), a BasicFeatureStore and item sets",
    "InSubgraphSampler": "NeighborSampler(datapipe, graph, [-1])",
    "sample_in_subgraph": "sample_neighbor(graph, [-1])",
    "in_subgraph": "sample_neighbors(nodes, -1)",
    "TemporalLayerNeighborSampler": "TemporalNeighborSampler",
    "temporal_sample_layer_neighbor": "temporal_sample_neighbor",
    "temporal_sample_layer_neighbors": "temporal_sample_neighbors",
    "expand_indptr": "torch.repeat_interleave",
    "index_select": "tensor[index]",
}
"""Names of GraphBolt that are not supported, and their replacements."""


def missing(owner: str, name: str) -> AttributeError:
    """Return the error of an attribute that does not exist."""
    if name in GONE:
        return AttributeError(f"{name} is not part of manyhop's GraphBolt. Use {GONE[name]}.", name=name)
    text = f"{owner} has no {name!r}. docs/dgl/graphbolt-names.md lists the names that are supported."
    return AttributeError(text, name=name)


CANONICAL_ETYPE_DELIMITER = ":"
"""The separator of the three names of an edge type."""

ORIGINAL_EDGE_ID = "_ORIGINAL_EDGE_ID"
"""The edge attribute with the ids that edges had before they were sorted by destination."""


def etype_str_to_tuple(c_etype: str | EdgeType) -> EdgeType:
    """Split a type: ``"user:likes:item"`` -> ``("user", "likes", "item")``. A tuple is returned unchanged.

    Raises:
        InputError: not three names.
    """
    parts = tuple(c_etype.split(CANONICAL_ETYPE_DELIMITER)) if isinstance(c_etype, str) else c_etype
    if not isinstance(parts, tuple) or len(parts) != 3:
        raise InputError(f"Expected an edge type as 'source:relation:destination', got {c_etype!r}. Pass a str.")
    return parts


def etype_tuple_to_str(c_etype: EdgeType) -> str:
    """Join a type: ``("user", "likes", "item")`` -> ``"user:likes:item"``.

    Raises:
        InputError: not a tuple of three names.
    """
    if not isinstance(c_etype, tuple) or len(c_etype) != 3 or not all(isinstance(name, str) for name in c_etype):
        raise InputError(f"Expected an edge type as a tuple of three names, got {c_etype!r}.")
    return CANONICAL_ETYPE_DELIMITER.join(c_etype)


Kind = TypeVar("Kind", bound=type[Any])

_functions: dict[str, Any] = {}


class DataPipe(IterDataPipe[Any]):
    """A torch ``IterDataPipe`` that finds this package's functional forms first.

    DGL's own GraphBolt may have registered names such as ``sample_neighbor`` in the same process.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _functions:
            return functools.update_wrapper(functools.partial(_functions[name], self), _functions[name], ("__doc__",))
        if name in GONE:
            raise missing("a pipe", name)
        return super().__getattr__(name)


def functional_datapipe(name: str) -> Callable[[Kind], Kind]:
    """Let ``datapipe.name(...)`` be ``Class(datapipe, ...)``, for pipes of any kind."""

    def register(kind: Kind) -> Kind:
        _functions[name] = kind
        if name not in IterDataPipe.functions:  # otherwise DGL's own GraphBolt was first
            IterDataPipe.register_datapipe_as_function(name, kind)
        return kind

    return register


def move(value: object, device: torch.device | str, non_blocking: bool, known: dict[int, object]) -> object:
    """Move everything in ``value`` that can be moved to a device; ``known`` has the copies of tensors, by their id."""

    def move_one(part: object) -> object:
        if isinstance(part, Tensor):
            if id(part) not in known:
                known[id(part)] = part.to(device, non_blocking=non_blocking)
            return known[id(part)]
        if isinstance(part, Movable) and type(part).to is Movable.to:  # else it is the user's own
            return part.to(device, non_blocking, known=known)
        return part.to(device) if hasattr(part, "to") else part

    return apply_nested(value, move_one)


class Movable(Composite):
    """The base of objects whose attributes can be moved in place."""

    def to(
        self, device: torch.device | str, non_blocking: bool = False, *, known: dict[int, object] | None = None
    ) -> Self:
        """Move the attributes to a device, in place, and return ``self``; ``known``: see :func:`move`."""
        known = {} if known is None else known
        for name in self.moving():
            value = getattr(self, name)
            if value is not None:  # as most are, of a minibatch
                setattr(self, name, move(value, device, non_blocking, known))
        return self


def show(title: str, named: dict[str, object]) -> str:
    """Format ``title(name=value, ...)``, one name per line, with the lines of a value below each other."""
    lines = []
    for name, value in named.items():
        text = str(value)
        if isinstance(value, list):
            text = "[" + ",\n".join(map(str, value)).replace("\n", "\n ") + "]"
        lines.append(f"{name}=" + text.replace("\n", "\n" + " " * (len(name) + 1)))
    indent = " " * (len(title) + 1)
    return f"{title}(" + f",\n{indent}".join(line.replace("\n", "\n" + indent) for line in lines) + ")"


_COUNTS = {"num_gpu_cached_edges": 0, "gpu_cache_threshold": 0, "max_uva_threads": 1}
"""Those that are numbers, and the least that they can be."""


def check_hints(known: Collection[str] = (), **hints: object) -> None:
    """Check the values of hints by their names."""
    for name, value in hints.items():
        if known and name not in known:
            raise InputError(f"Expected further arguments among {list(known)}, got {name!r}. Leave it out.")
        if name in _COUNTS:
            integer(name, value, _COUNTS[name])
        elif flag(name, value) and name == "cooperative":
            raise InputError(
                "Expected cooperative=False, got True. Leave it out: each rank samples its own minibatches. "
                "To exchange fewer rows, pass seed_parts to the DistributedItemSampler."
            )
