"""The stage that fetches all features of a minibatch by one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch

from manyhop.errors import InputError
from manyhop.features import gather
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop.loading.pipeline import PaddedRows, clear_rows
from manyhop_graphbolt.features.feature import FeatureKey, Gather, ReadRequest, read_by
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.stages.stage import MiniBatchTransformer
from manyhop_graphbolt.types import (
    Features,
    Nodes,
    Pipe,
    by_type,
    check_hints,
    etype_str_to_tuple,
    etype_tuple_to_str,
    functional_datapipe,
)

Keys: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]


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
        super().__init__(datapipe, self._fetch)
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

    def _fetch(self, minibatch: MiniBatch) -> MiniBatch:
        self.fetch([minibatch], partial(gather, threads=torch.get_num_threads()))
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
