"""The stage that fetches all features of a minibatch by one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import gather
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop.loading.pipeline import PaddedRows, clear_rows
from manyhop_graphbolt.features.feature import FeatureKey, Gather, ReadRequest, read_by
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.stages.stage import MiniBatchTransformer
from manyhop_graphbolt.types import (
    Features,
    Pipe,
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
        for what, keys in (("node_feature_keys", node_feature_keys), ("edge_feature_keys", edge_feature_keys)):
            if isinstance(keys, str) or any(isinstance(names, str) for names in _lists(keys)):
                raise InputError(f"Expected {what} as lists of names, got {keys!r}. Pass a list.")
        kinds = {isinstance(keys, Mapping) for keys in (node_feature_keys, edge_feature_keys) if keys}
        if len(kinds) > 1:
            raise InputError(
                "Expected node_feature_keys and edge_feature_keys both by type (heterogeneous) or both without types, "
                f"got {node_feature_keys!r} and {edge_feature_keys!r}."
            )
        self.feature_store = feature_store
        self.node_feature_keys = node_feature_keys
        self.edge_feature_keys = edge_feature_keys

    def feature_keys(self) -> Iterator[FeatureKey]:
        """Yield the keys of all features that are fetched."""
        for domain, keys in (("node", self.node_feature_keys), ("edge", self.edge_feature_keys)):
            for kind, names in keys.items() if isinstance(keys, Mapping) else [(None, keys or ())]:
                for name in names:
                    yield domain, None if kind is None else _text(kind), name

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
        padded: list[MiniBatch] = []
        for minibatch in minibatches:
            self._ask(minibatch, wanted, slots)
            if minibatch.padding is not None:
                padded.append(minibatch)
        rows = read_by(self.feature_store, wanted, gather_rows)
        nbytes = 0
        for (into, key), value in zip(slots, rows, strict=True):
            into[key] = value
            nbytes += getattr(value, "nbytes", 0)
        if padded:
            clear_rows([rows for minibatch in padded for rows in _padded_rows(minibatch)])
        return nbytes

    def _ask(self, minibatch: MiniBatch, wanted: list[ReadRequest], slots: list[tuple[Features, object]]) -> None:
        """Add the requests of a minibatch, and the slots for their rows."""
        node_features: Features = {}
        edge_features: list[Features] = [{} for _ in range(minibatch.num_layers())]
        if self.node_feature_keys:
            if minibatch.input_nodes is None:
                raise InputError(
                    f"Expected a minibatch with input_nodes to fetch {self.node_feature_keys!r} of, got one without. "
                    "Sample before fetching."
                )
            for ntype, name, ids in _requested(
                "node", self.node_feature_keys, minibatch.input_nodes, minibatch.input_nodes
            ):
                wanted.append(("node", ntype, name, ids))
                slots.append((node_features, name if ntype is None else (ntype, name)))
        of_layers = [minibatch.edge_ids(layer) for layer in range(len(edge_features) if self.edge_feature_keys else 0)]
        etypes = {_text(t): None for edges in of_layers if isinstance(edges, Mapping) for t in edges}  # of any layer
        for edges, into in zip(of_layers, edge_features, strict=False):
            assert self.edge_feature_keys is not None
            if edges is None:
                raise InputError(
                    f"Expected edges with ids to fetch {self.edge_feature_keys!r} by, got some without. Keep the "
                    "ORIGINAL_EDGE_ID attribute of the graph's edges. Where the graph has one edge type, and its "
                    "features are in the order of graph.indices, set it: graph.edge_attributes = {gb.ORIGINAL_EDGE_ID: "
                    "torch.arange(graph.total_num_edges)}."
                )
            if isinstance(edges, Mapping):
                edges = {_text(t): ids for t, ids in edges.items()}
            for etype, name, ids in _requested("edge", self.edge_feature_keys, edges, etypes):
                wanted.append(("edge", etype, name, ids))
                slots.append((into, name if etype is None else (etype, name)))
        minibatch.set_node_features(node_features)
        minibatch.set_edge_features(edge_features)


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


def _lists(keys: Keys | None) -> Sequence[object]:
    return list(keys.values()) if isinstance(keys, Mapping) else []


def _text(kind: str | EdgeType) -> str:
    return etype_tuple_to_str(kind) if isinstance(kind, tuple) else kind


def _requested(
    kind: str, keys: Keys, ids: Tensor | Mapping[str, Tensor], known: Collection[str]
) -> list[tuple[str | None, str, Tensor]]:
    """Return type, name and ids of each wanted feature. Its type must be known; types without ids are skipped."""
    if isinstance(keys, Mapping) != isinstance(ids, Mapping):
        raise InputError(
            f"Expected {kind}_feature_keys {'by type' if isinstance(ids, Mapping) else 'without types'}, as the "
            f"minibatch is {'heterogeneous' if isinstance(ids, Mapping) else 'homogeneous'}; got {keys!r}."
        )
    if not isinstance(keys, Mapping) or not isinstance(ids, Mapping):
        assert not isinstance(ids, Mapping)
        return [(None, name, ids) for name in keys]
    keys = {_text(t): names for t, names in keys.items()}
    unknown = [t for t in keys if t not in known]
    if unknown:
        raise InputError(f"Expected {kind}_feature_keys of the types {list(known)}, got {unknown}.")
    return [(t, name, ids[t]) for t, names in keys.items() if ids.get(t) is not None for name in names]
