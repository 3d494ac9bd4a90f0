"""Stages: pipes that process items one by one, in any thread. Those that apply functions, copy and fetch features."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import torch
from torch.utils.data.datapipes.iter import Mapper

from manyhop.arguments import callables, flag, integer
from manyhop.errors import InputError
from manyhop.features import gather
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop.loading import BatchContext, current_batch, current_key
from manyhop.loading.pipeline import PaddedRows, clear_rows
from manyhop.sampling import BatchKey
from manyhop_graphbolt.features.feature import FeatureKey, Gather, ReadRequest, read_by
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.types import (
    DataPipe,
    Features,
    Nodes,
    Pipe,
    by_type,
    etype_str_to_tuple,
    etype_tuple_to_str,
    functional_datapipe,
    move,
)

Keys: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]
Step = Callable[[Any], Any]

FUNCTIONS = 1 << 15
"""The first draw of functions after the last stage of this package: more than the stages draw."""

_OURS = __name__.rpartition(".")[0]


def key_of_batch() -> BatchKey:
    """Return the key of the batch that this thread is making."""
    key = current_key()
    assert key is not None
    return key


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


class Stage(DataPipe):
    """A pipe that does something to each item of another pipe."""

    def __init__(self, datapipe: Pipe) -> None:
        super().__init__()
        self.datapipe = datapipe

    def step(self, item: object) -> object:
        """Apply the stage to one item."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        source, stages, functions = chain_of(self)
        for item in source:
            key = getattr(item, "key", None)
            for some, first in ((stages, 0), (functions, FUNCTIONS)):
                with nullcontext() if key is None else BatchContext(key, current_batch(), first):
                    for stage in some:
                        item = step(stage, item)
            yield item

    def __len__(self) -> int:
        """Return the number of items of the source."""
        return len(self.datapipe)


def chain_of(pipe: Pipe) -> tuple[Pipe, list[Pipe], list[Pipe]]:
    """Return the chain that ends with a pipe; torch's ``map`` is also a stage.

    Returns:
        The source, an item sampler or another pipe that is no stage; the stages up to the last one that samples,
        fetches, moves, ..., and functions of the user between those; functions of the user after them.
    """
    stages: list[Pipe] = []
    while isinstance(pipe, Stage) or _is_map(pipe):
        stages.insert(0, pipe)
        pipe = pipe.datapipe
    cut = max((i + 1 for i, stage in enumerate(stages) if is_ours(stage)), default=0)
    return pipe, stages[:cut], stages[cut:]


def _is_map(pipe: Pipe) -> TypeGuard[Mapper[object]]:
    """Return whether a pipe is torch's ``map``, or a user's subclass with its own function."""
    return isinstance(pipe, Mapper) and type(pipe).__iter__ is Mapper.__iter__


def is_ours(stage: Pipe) -> bool:
    """Return whether a stage is not a function of the user."""
    if not isinstance(stage, MiniBatchTransformer):
        return isinstance(stage, CopyTo)
    function: object = stage.transformer
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__module__", "")).startswith(_OURS)


def is_of_this_package(stage: Pipe) -> bool:
    """Return whether the class of a stage belongs to this package."""
    return type(stage).__module__.startswith(_OURS)


def step(stage: Any, item: Any) -> object:
    """Apply one stage to an item."""
    return stage.step(item) if isinstance(stage, Stage) else stage._apply_fn(item)


@functional_datapipe("transform")
class MiniBatchTransformer(Stage):
    """Applies a function to each minibatch. Functional name: ``transform``.

    Args:
        datapipe: minibatches.
        transformer: ``transformer(minibatch)`` returns a minibatch; ``None``: it is unchanged.

    Raises:
        InputError: no function, or (at a batch) one that returns something else.
    """

    def __init__(self, datapipe: Pipe, transformer: Step | None = None) -> None:
        super().__init__(datapipe)
        callables(transformer=transformer)
        self.transformer = transformer

    def step(self, item: object) -> object:
        """Apply the function."""
        if self.transformer is None:
            return item
        out = self.transformer(item)
        if not isinstance(out, MiniBatch):
            raise InputError(
                f"Expected {getattr(self.transformer, '__name__', self.transformer)!s} to return a MiniBatch, got a "
                f"{type(out).__name__}. Return the minibatch, or use map() to return something else."
            )
        if out is not item and out.key is None and isinstance(item, MiniBatch):
            out.key = item.key
        return out


@functional_datapipe("copy_to")
class CopyTo(Stage):
    """Moves each item to a device. Functional name: ``copy_to``.

    Args:
        datapipe: items of any kind: objects with ``to``, and containers of these, are moved.
        device: where to.
        extra_attrs: attributes of the items that are moved as well. (A bool is ``non_blocking``, as in later
            versions than DGL 2.1.)
        non_blocking: a hint; copies to a GPU never block.

    Raises:
        InputError: no device, or ``extra_attrs`` is a single name.
    """

    def __init__(
        self,
        datapipe: Pipe,
        device: torch.device | str,
        extra_attrs: Iterable[str] | bool | None = None,
        non_blocking: bool = False,
    ) -> None:
        super().__init__(datapipe)
        if isinstance(extra_attrs, bool):
            non_blocking, extra_attrs = extra_attrs, None
        check_hints(non_blocking=non_blocking)
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            raise InputError(f"Expected device to be 'cuda', 'cuda:0' or 'cpu', got {device!r}.") from None
        if isinstance(extra_attrs, str):
            raise InputError(f"Expected extra_attrs as a list of names, got {extra_attrs!r}. Pass a list.")
        self.extra_attrs = tuple(extra_attrs or ())

    def step(self, item: object) -> object:
        """Move it."""
        known: dict[int, object] = {}
        waits = self.device.type != "cuda"  # copies to a GPU are in order there; the host would read too early
        item = move(item, self.device, not waits, known)
        for name in self.extra_attrs:
            setattr(item, name, move(getattr(item, name), self.device, not waits, known))
        return item


@functional_datapipe("fetch_feature")
class FeatureFetcher(MiniBatchTransformer):
    """Reads the features of the input nodes, and of the edges of all layers. Functional name: ``fetch_feature``.

    The features are on the device of the nodes, or edges.

    Args:
        datapipe: minibatches whose layers are sampled.
        feature_store: a :class:`FeatureStore`, or an object with its ``read``.
        node_feature_keys: names of node features; of heterogeneous graphs, by node type.
        edge_feature_keys: names of edge features; of heterogeneous graphs, by edge type.
        overlap_fetch: a hint; reads overlap in either case.
        cooperative: only ``False``.

    Raises:
        InputError: no feature store; names by type of one kind, and without types of the other; (at a batch) names by
            type for a minibatch without types, or vice versa, types that it does not have, no input nodes, or
            edge features if edges have no ids.
        FeatureError: (at a batch) an unknown feature, or one with too few rows.
    """

    def __init__(
        self,
        datapipe: Pipe,
        feature_store: object,
        node_feature_keys: Keys | None = None,
        edge_feature_keys: Keys | None = None,
        overlap_fetch: bool = True,
        cooperative: bool = False,
    ) -> None:
        super().__init__(datapipe, self.fetch_one)
        check_hints(overlap_fetch=overlap_fetch, cooperative=cooperative)
        if not callable(getattr(feature_store, "read", None)):
            raise InputError(
                f"Expected a FeatureStore, or an object with its read, got a {type(feature_store).__name__}. Make one: "
                "BasicFeatureStore({('node', None, 'feat'): TorchBasedFeature(tensor)})."
            )
        self.feature_store = feature_store
        self._keys: dict[str, dict[str | None, Sequence[str]]] = {}
        for domain, keys in (("node", node_feature_keys), ("edge", edge_feature_keys)):
            by_kind = by_type(keys or None)
            if any(isinstance(names, str) for names in by_kind.values()):
                raise InputError(f"Expected {domain}_feature_keys as lists of names, got {keys!r}. Pass a list.")
            self._keys[domain] = {_text(kind): names for kind, names in by_kind.items()}
        if len({None in by_kind for by_kind in self._keys.values() if by_kind}) > 1:
            raise InputError(
                "Expected node_feature_keys and edge_feature_keys both by type (heterogeneous) or both without types, "
                f"got {node_feature_keys!r} and {edge_feature_keys!r}."
            )

    def feature_keys(self) -> list[FeatureKey]:
        """Return the keys of all features that are fetched."""
        return [(d, kind, name) for d, keys in self._keys.items() for kind, names in keys.items() for name in names]

    def fetch_one(self, minibatch: MiniBatch, gather_rows: Gather | None = None) -> MiniBatch:
        """Add features to a minibatch; ``gather_rows``: see :meth:`fetch`."""
        self.fetch([minibatch], gather_rows or partial(gather, threads=torch.get_num_threads()))
        return minibatch

    def fetch(self, minibatches: Sequence[MiniBatch], gather_rows: Gather) -> int:
        """Add features to multiple minibatches, by one gather; return the bytes of their rows.

        Args:
            minibatches: whose layers are sampled.
            gather_rows: what :func:`manyhop.features.gather` does.
        """
        wanted: list[ReadRequest] = []
        slots: list[tuple[Features, object]] = []
        for minibatch in minibatches:
            self._ask(minibatch, wanted, slots)
        rows = read_by(self.feature_store, wanted, gather_rows)
        for (into, key), value in zip(slots, rows, strict=True):
            into[key] = value
        if padded := [minibatch for minibatch in minibatches if minibatch.padding is not None]:
            clear_rows([padding for minibatch in padded for padding in _padded_rows(minibatch)])
        return sum([getattr(value, "nbytes", 0) for value in rows])

    def _ask(self, minibatch: MiniBatch, wanted: list[ReadRequest], slots: list[tuple[Features, object]]) -> None:
        """Add the requests of a minibatch, and the slots for their rows."""
        node_features: Features = {}
        edge_features: list[Features] = [{} for _ in range(minibatch.num_layers())]

        def request(domain: str, ids: Nodes, known: Collection[str | None], into: Features) -> None:
            keys, by_kind = self._keys[domain], {_text(kind): part for kind, part in by_type(ids).items()}
            typed = isinstance(ids, Mapping)
            if typed == (None in keys):
                raise InputError(
                    f"Expected {domain}_feature_keys {'by type' if typed else 'without types'}, as the minibatch is "
                    f"{'heterogeneous' if typed else 'homogeneous'}; got {keys!r}."
                )
            if unknown := [kind for kind in keys if kind not in known]:
                raise InputError(f"Expected {domain}_feature_keys of the types {list(known)}, got {unknown}.")
            for kind, names in keys.items():
                for name in names if by_kind.get(kind) is not None else ():
                    wanted.append((domain, kind, name, by_kind[kind]))
                    slots.append((into, name if kind is None else (kind, name)))

        if self._keys["node"]:
            nodes = minibatch.input_nodes
            if nodes is None:
                raise InputError(
                    f"Expected a minibatch with input_nodes to fetch {self._keys['node']!r} of, got one without. "
                    "Sample before fetching."
                )
            request("node", nodes, by_type(nodes), node_features)
        of_layers = [minibatch.edge_ids(layer) for layer in range(len(edge_features) if self._keys["edge"] else 0)]
        etypes = {_text(kind): None for edges in of_layers for kind in by_type(edges)}  # of any layer
        for edges, into in zip(of_layers, edge_features, strict=False):
            if edges is None:
                raise InputError(
                    f"Expected edges with ids to fetch {self._keys['edge']!r} by, got some without. Keep the "
                    "ORIGINAL_EDGE_ID attribute of the graph's edges. Where the graph has one edge type, and its "
                    "features are in the order of graph.indices, set it: graph.edge_attributes = {gb.ORIGINAL_EDGE_ID: "
                    "torch.arange(graph.total_num_edges)}."
                )
            request("edge", edges, etypes, into)
        minibatch.node_features, minibatch.edge_features = node_features, edge_features


def _padded_rows(minibatch: MiniBatch) -> Iterator[PaddedRows]:
    """Yield the features of a padded minibatch."""
    padded, num_layers = minibatch.padding, minibatch.num_layers()
    assert padded is not None
    for key, rows in (minibatch.node_features or {}).items():
        yield PaddedRows(rows, padded, key[0] if isinstance(key, tuple) else HOMOGENEOUS_NODE)
    for layer, features in enumerate(minibatch.edge_features or ()):
        for key, rows in features.items():
            kind = etype_str_to_tuple(key[0]) if isinstance(key, tuple) else HOMOGENEOUS_EDGE
            yield PaddedRows(rows, padded, kind, block=num_layers - 1 - layer)


def _text(kind: str | EdgeType | None) -> str | None:
    return etype_tuple_to_str(kind) if isinstance(kind, tuple) else kind
