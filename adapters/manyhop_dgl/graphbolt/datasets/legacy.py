"""A dataset of DGL's older kind, or of OGB, as one of GraphBolt's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl.graphbolt.datasets.dataset import Dataset, Items, OnDiskTask, all_nodes_of
from manyhop_dgl.graphbolt.features.feature import BasicFeatureStore, FeatureKey
from manyhop_dgl.graphbolt.features.torch_based import TorchBasedFeature
from manyhop_dgl.graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_dgl.graphbolt.graph.make import structure_of
from manyhop_dgl.graphbolt.items.names import etype_tuple_to_str
from manyhop_dgl.graphbolt.items.sets import HeteroItemSet, ItemSet

_MASKS = ("train_mask", "val_mask", "test_mask")


class LegacyDataset(Dataset):
    """A dataset of one graph for node classification: of ``dgl.data``, or of OGB for DGL.

    The sets come from ``get_idx_split()`` where there is one, else from the masks of the nodes.

    Args:
        legacy: the dataset. Heterogeneous ones need ``get_idx_split()``.

    Raises:
        InputError: several graphs, or no masks of the nodes for training.
    """

    def __init__(self, legacy: Any) -> None:
        if len(legacy) != 1:
            raise InputError(f"Expected a dataset of one graph, got {len(legacy)}.")
        first = legacy[0]
        graph, labels = first if isinstance(first, tuple) else (first, None)
        homogeneous = bool(graph.is_homogeneous)
        if hasattr(legacy, "get_idx_split") and labels is not None:
            split = legacy.get_idx_split()
            sets = [_items(split[name], labels) for name in ("train", "valid", "test")]
        elif homogeneous and all(name in graph.ndata for name in (*_MASKS, "label")):
            ids = [graph.ndata[name].bool().nonzero().view(-1) for name in _MASKS]
            sets = [_items(own, graph.ndata["label"]) for own in ids]
        else:
            raise InputError(
                f"Expected a dataset with get_idx_split(), or a homogeneous graph with node data {[*_MASKS, 'label']}, "
                "got neither. Add the masks, or build item sets and call from_dglgraph(graph)."
            )
        self._tasks = [OnDiskTask({"num_classes": legacy.num_classes, "name": "node_classification"}, *sets)]
        self._graph, _ = structure_of(graph, homogeneous, include_original_edge_id=True)
        self._feature = BasicFeatureStore(_features(graph, homogeneous))
        self._all_nodes_set = all_nodes_of(self._graph)
        self._dataset_name = legacy.name

    @property
    def tasks(self) -> list[OnDiskTask]:
        """The one task, node classification."""
        return self._tasks

    @property
    def graph(self) -> FusedCSCSamplingGraph:
        """The graph, with the ids of its edges."""
        return self._graph

    @property
    def feature(self) -> BasicFeatureStore:
        """Node and edge data."""
        return self._feature

    @property
    def dataset_name(self) -> str:
        """The name of the dataset."""
        return str(self._dataset_name)

    @property
    def all_nodes_set(self) -> Items | None:
        """All nodes, by the name ``"seeds"``."""
        return self._all_nodes_set


def _items(ids: Any, labels: Any) -> Items:
    if isinstance(ids, dict):
        return HeteroItemSet(
            {name: ItemSet((own, labels[name][own]), ("seeds", "labels")) for name, own in ids.items()}
        )
    return ItemSet((ids, labels[ids]), names=("seeds", "labels"))


def _features(graph: Any, homogeneous: bool) -> dict[FeatureKey, TorchBasedFeature]:
    features = {}
    for ntype in graph.ntypes:
        for name, values in graph.nodes[ntype].data.items():
            features["node", None if homogeneous else ntype, name] = TorchBasedFeature(_wide(values))
    for etype in graph.canonical_etypes:
        kind = None if homogeneous else etype_tuple_to_str(etype)
        for name, values in graph.edges[etype].data.items():
            features["edge", kind, name] = TorchBasedFeature(_wide(values))
    return features


def _wide(values: Tensor) -> Tensor:
    return values.view(-1, 1) if values.dim() == 1 else values
