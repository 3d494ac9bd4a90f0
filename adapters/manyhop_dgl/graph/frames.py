"""Data of nodes and edges by name, and where the ranks of a run hold it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.files import Rows
from manyhop.graph import EdgeType, NodeType
from manyhop.memory.places import Place
from manyhop.memory.stores import (
    GPURows,
    NodeRows,
    TopologyPlace,
    as_it_is,
    is_held,
    place_for_topology,
    rows_in,
    store_device,
)
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.system.arrays import describe
from manyhop_dgl.typing import GraphLike
from manyhop_embedding import Embedding

KindT = TypeVar("KindT", NodeType, EdgeType)


@dataclass(frozen=True)
class RankStores:
    """Stores tensors at a placement of ranks, nodes or GPUs. All ranks create and call it."""

    edges: NodeRows
    """Every node holds all edges."""

    whole: NodeRows | GPURows
    """For data of one dimension: where GPUs read it, or once per node."""

    spread: NodeRows | GPURows
    """The user's placement, for data of two or more dimensions."""

    topology: TopologyPlace | None
    """Where GPUs read the topology; ``None``: where each loader decides."""

    @staticmethod
    def of(placement: Place, timeout: float | None, device: torch.device | str | None = None) -> RankStores | None:
        """Return the stores of a placement; ``None`` if the data belong to this process only.

        Raises:
            InputError: an unknown placement, a timeout or a device that does not make sense.
        """
        gpu = store_device(placement, device, timeout)
        if placement in ("process", "mapped"):
            return None
        edges = NodeRows(False, timeout or DEFAULT_TIMEOUT)
        spread = rows_in(placement, gpu, timeout)
        assert spread is not None
        whole = spread if placement in ("pinned", "device") else edges
        topology = None if gpu is None and placement != "auto" else place_for_topology(placement)
        return RankStores(edges, whole, edges if placement in ("shared", "auto") else spread, topology)

    def put(self, tensor: Any, begin: int | None, name: str) -> Tensor | ShardedRows | DistributedRows:
        """Store a tensor: all ranks pass the whole (``begin`` is ``None``), or each its rows, which begin at ``begin``.

        Raises:
            FeatureError: the parts do not fit together.
            RankError: the ranks set different data, or are late.
        """
        index = None if begin is None else slice(begin, begin + len(tensor))
        return (self.spread if getattr(tensor, "ndim", 0) > 1 else self.whole).put(tensor, index, name)

    def read(self, rows: Rows, name: str) -> Tensor | ShardedRows | DistributedRows:
        """Read a tensor from files that all nodes see: each rank reads only its own rows.

        Raises:
            InputError: a file that is truncated or damaged.
            RankError: another rank failed or is late.
        """
        return (self.spread if len(rows.shape) > 1 else self.whole).read(rows, name)


@dataclass(frozen=True)
class GraphFrames:
    """All data of a graph, as its frames hold it now; values are tensors ``[num_nodes or num_edges, ...]``, in a
    ``manyhop_dgl.Graph`` also ``ShardedRows``, ``DistributedRows`` and trainable rows (``Embedding``)."""

    nodes: Mapping[NodeType, Mapping[str, Any]]
    """By node type, then by name."""

    edges: Mapping[EdgeType, Mapping[str, Any]]
    """By canonical edge type, then by name."""


def frames(g: GraphLike) -> GraphFrames:
    """Return the data of a ``DGLGraph`` or a ``manyhop_dgl.Graph``. Costs next to nothing: views, not copies.

    Ask again for each batch: data may be replaced or removed in between.
    """
    return GraphFrames(
        {node_type: g.nodes[node_type].data for node_type in g.ntypes},
        {edge_type: g.edges[edge_type].data for edge_type in g.canonical_etypes},
    )


class Frame(MutableMapping[str, Any]):
    """The data of one node type or edge type: name -> tensor ``[num_rows, ...]`` or an embedding of as many rows, kept
    unchanged, not copied.

    Args:
        num_rows: nodes or edges of the type.
        what: whose data it is, for errors.
        stores: stores tensors at a placement; ``None``: they remain in this process.
    """

    def __init__(self, num_rows: int, what: str, stores: RankStores | None = None) -> None:
        self.num_rows, self._what, self._stores = num_rows, what, stores
        self.data: dict[str, Any] = {}
        """Name -> what is held. Each change makes a new dictionary, so one look at it shows loaders that nothing has
        changed."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.data:
            raise KeyError(f"there is no {name!r} among the data of {self._what}: {list(self.data)}")
        return self.data[name]

    def __setitem__(self, name: str, value: object) -> None:
        self.put(name, value, None)

    def __delitem__(self, name: str) -> None:
        _ = self[name]  # raises the error
        self.data = {other: value for other, value in self.data.items() if other != name}

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return repr(self.data)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_stores": None}  # another process is no rank of those who share it

    def __copy__(self) -> Frame:
        other = Frame(self.num_rows, self._what, self._stores)
        other.data = self.data
        return other

    def put(self, name: str, value: object, begin: int | None) -> None:
        """Set a whole tensor (``begin`` is ``None``) or, with all ranks, parts of it: this one's from row ``begin`` on.

        Raises:
            FeatureError: a wrong length or device, no tensor.
            RankError: the ranks set different data.
        """
        if not isinstance(name, str):
            raise InputError(f"Expected the name of data as a string, got {name!r}.")
        if begin is not None and self._stores is None:
            raise InputError(
                f"Expected '{name}' of {self._what} as a whole: the graph belongs to this process. Ranks set parts of "
                "a graph with placement='shared' or 'sharded'."
            )
        if isinstance(value, Embedding) and begin is None:
            there: object = value
        else:
            there = as_it_is(value) if begin is None else None
        if there is not None:
            value = there
        elif isinstance(value, Rows):
            value = value.mapped() if self._stores is None else self._stores.read(value, f"'{name}' of {self._what}")
        elif self._stores is not None:
            value = self._stores.put(value, begin, f"'{name}' of {self._what}")  # errors of one rank reach the others
        self._check(name, value)
        self.hold(name, value)

    def hold(self, name: str, value: object) -> None:
        """Return rows that are already at their placement."""
        self.data = {**self.data, name: value}

    def _check(self, name: str, value: object) -> None:
        if not isinstance(value, Tensor | ShardedRows | DistributedRows | Embedding):
            raise FeatureError(
                f"Expected '{name}' of {self._what} as a tensor, got a {type(value).__name__}. Convert it."
            )
        if isinstance(value, Tensor) and (value.layout is not torch.strided or value.is_nested):
            raise FeatureError(f"Expected '{name}' of {self._what} as a dense tensor, got {describe(value)}.")
        if isinstance(value, Tensor) and value.device.type != "cpu" and not is_held(value):
            raise FeatureError(
                f"Expected '{name}' of {self._what} on the CPU, like the graph, got it on {value.device}. Leave it "
                "in host memory: the DataLoader brings rows to the GPU (device=...)."
            )
        shape = [value.num_rows] if isinstance(value, Embedding) else list(value.shape)
        if not shape or shape[0] != self.num_rows:
            what = f"an embedding of {shape[0]}" if isinstance(value, Embedding) else f"shape {shape}"
            raise FeatureError(f"Expected '{name}' of {self._what} to have {self.num_rows} rows, one each, got {what}.")


def copied(frames: Mapping[KindT, Frame]) -> dict[KindT, Frame]:
    """Copy frames, not their tensors."""
    return {kind: copy.copy(frame) for kind, frame in frames.items()}


class TypedData(MutableMapping[str, Any]):
    """``g.ndata`` and ``g.edata`` of a graph with multiple types: name -> ``{type: tensor}``."""

    def __init__(self, frames: Mapping[Any, Frame], key: Callable[[Any], NodeType | EdgeType]) -> None:
        self._frames, self._key = frames, key

    def __getitem__(self, name: str) -> dict[Any, Any]:
        found = {kind: frame[name] for kind, frame in self._frames.items() if name in frame}
        if not found:
            raise KeyError(f"no type has data {name!r}")
        return found

    def __setitem__(self, name: str, value: object) -> None:
        if not isinstance(value, Mapping):
            raise FeatureError(
                f"Expected {{type: tensor}} for {name!r} in a graph with multiple types, got {type(value).__name__}. "
                f"The types are {list(self._frames)}."
            )
        for kind, tensor in {self._key(kind): tensor for kind, tensor in value.items()}.items():
            self._frames[kind][name] = tensor

    def __delitem__(self, name: str) -> None:
        for kind in self[name]:
            del self._frames[kind][name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for frame in self._frames.values() for name in frame))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(dict(self))


def whole(name: str, value: object) -> Tensor:
    """Return data that must be a tensor of this node.

    Raises:
        FeatureError: its rows are spread over nodes or GPUs, or it is an embedding.
    """
    if isinstance(value, Tensor):
        return value
    rows = "trainable" if isinstance(value, Embedding) else "spread over nodes or GPUs"
    raise FeatureError(f"Expected '{name}' as a tensor of this node; its rows are {rows}. Remove it from the graph.")
