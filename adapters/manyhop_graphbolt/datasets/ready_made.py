"""Ready-made datasets: GraphBolt's own in existing folders, and datasets of dgl.data and OGB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.memory.places import Place
from manyhop_graphbolt.datasets.dataset import Dataset, Items, OnDiskDataset, OnDiskTask, all_nodes_of
from manyhop_graphbolt.features.feature import BasicFeatureStore, FeatureKey
from manyhop_graphbolt.features.tensors import TorchBasedFeature
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.make import structure_of
from manyhop_graphbolt.items.sets import HeteroItemSet, ItemSet
from manyhop_graphbolt.types import etype_tuple_to_str


class BuiltinDataset(OnDiskDataset):
    """One of GraphBolt's ready-made datasets, in the folder ``root/name-seeds`` (as after DGL 2.1), else ``root/name``.

    Nothing is downloaded.

    Args:
        name: of the dataset.
        root: the folder that it is in.
        placement: as of :class:`OnDiskDataset`.
        device: as of :class:`OnDiskDataset`.

    Raises:
        InputError: it is not there.
    """

    _NAMES = (
        "cora",
        "igb-het-medium",
        "igb-het-small",
        "igb-het-tiny",
        "igb-hom",
        "igb-hom-large",
        "igb-hom-medium",
        "igb-hom-small",
        "igb-hom-tiny",
        "ogbl-citation2",
        "ogb-lsc-mag240m",
        "ogbn-arxiv",
        "ogbn-mag",
        "ogbn-papers100M",
        "ogbn-products",
    )

    def __init__(
        self,
        name: str,
        root: str | Path = "datasets",
        *,
        placement: Place = "process",
        device: torch.device | str | None = None,
    ) -> None:
        own = name.removesuffix("-seeds")
        folders = [Path(root) / f"{own}-seeds", *([] if name.endswith("-seeds") else [Path(root) / own])]
        folder = next((path for path in folders if path.exists()), None)
        if folder is None:
            raise InputError(
                f"Expected the dataset '{name}' in {' or '.join(map(str, folders))}, found none. "
                + (
                    f"This package downloads nothing. Download {own}-seeds.zip from DGL's page of GraphBolt datasets "
                    f"(https://data.dgl.ai/dataset/graphbolt/{own}-seeds.zip) and unpack it into {Path(root)}."
                    if own in self._NAMES
                    else f"Available datasets are {list(self._NAMES)}; for your own, use OnDiskDataset(folder)."
                )
            )
        super().__init__(folder, placement=placement, device=device)


_MASKS = ("train_mask", "val_mask", "test_mask")


class LegacyDataset(Dataset):
    """A dataset of one graph for node classification: of ``dgl.data``, or of OGB for DGL.

    The sets come from ``get_idx_split()`` if there is one, else from the masks of the nodes.

    Args:
        legacy: the dataset. Heterogeneous ones need ``get_idx_split()``.

    Raises:
        InputError: multiple graphs, or no masks of the nodes for training.
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
