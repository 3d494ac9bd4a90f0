"""Datasets: a graph, features and the sets of tasks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from manyhop.arguments import path_of
from manyhop.errors import InputError
from manyhop.memory.places import Place
from manyhop.memory.stores import store_device
from manyhop_graphbolt.datasets.preprocess import (
    on_one_core_if_forked,
    preprocess_ondisk_dataset,
    read_sampling_graph,
    read_yaml,
)
from manyhop_graphbolt.features.disk import (
    DatasetFolder,
    TorchBasedFeatureStore,
    check_file,
    entry_of,
    feature_of,
    read_tensor,
)
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph, in_place
from manyhop_graphbolt.items.sampler import HeteroItemSet, ItemSet
from manyhop_graphbolt.types import GBWarning, by_type, show

Items = ItemSet | HeteroItemSet
_OF_NODES = ("seeds", "seed_nodes", "node_pairs")
_SETS = ("train_set", "validation_set", "test_set")
_PARTS = ("tasks", "graph", "feature", "dataset_name", "all_nodes_set")


class Task:
    """The base of tasks. Subclasses have ``metadata``, ``train_set``, ``validation_set`` and ``test_set``."""

    def __getattr__(self, name: str) -> Any:
        raise (NotImplementedError if name in ("metadata", *_SETS) else AttributeError)(name)


class Dataset:
    """The base of datasets. Subclasses have the attributes ``tasks``, ``graph``, ``feature``, ``dataset_name`` and
    ``all_nodes_set``."""

    def __getattr__(self, name: str) -> Any:
        raise (NotImplementedError if name in _PARTS else AttributeError)(name)


@dataclass(eq=False, repr=False)
class OnDiskTask(Task):
    """A task of given parts: its name, the number of classes, ..., and the items to train, validate and test with."""

    metadata: dict[str, Any]
    train_set: Items | None
    validation_set: Items | None
    test_set: Items | None

    def __repr__(self) -> str:
        return show(type(self).__name__, vars(self))


class OnDiskDataset(Dataset):
    """A dataset in a folder with a ``metadata.yaml``, as GraphBolt defines it (docs/dgl/graphbolt.md has an example).

    The graph is sorted once, when the dataset is first made; see :func:`preprocess_ondisk_dataset`.

    Args:
        path: the folder.
        include_original_edge_id: keep the position of each edge in its file, to read edge features by it.
        force_preprocess: ``True``: sort the graph again; ``False``: use it unchanged; ``None``: again if something
            has changed.
        auto_cast_to_optimal_dtype: int32 for ids that fit, the smallest integers for edge types.
        allow_outside_paths: also read files outside of the folder if ``metadata.yaml`` names them.
        placement: where graph and features are. ``"process"``: in this process, features with ``in_memory: false`` in
            their files. ``"mapped"``: all features in their files. ``"shared"``: both once per node. ``"pinned"``,
            ``"device"``, or ``"sharded"`` with ``device="cuda"`` (over the GPUs of each node): where all loaders of a
            GPU read features and topology. ``"sharded"`` (over the host memory of the nodes) and ``"distributed"``
            (over all GPUs): the same for features, whose rows ranks exchange; each node has one copy of the graph.
            ``"auto"``: once per node; the first loader decides which memory its GPU reads. But for ``"process"`` and
            ``"mapped"``, all ranks of the run load the dataset.
        device: this rank's GPU, for places of GPUs.

    Raises:
        InputError: a file is missing or damaged, or has unknown content; an unknown placement, or a missing
            GPU.
        GraphError: edges that contradict the numbers of nodes.
        MissingExtraError: PyYAML is not installed.
    """

    tasks: list[OnDiskTask]
    graph: FusedCSCSamplingGraph | None
    feature: TorchBasedFeatureStore
    dataset_name: str | None

    all_nodes_set: Items | None
    """All nodes, by the name ``"seeds"``."""

    def __init__(
        self,
        path: str | Path,
        include_original_edge_id: bool = False,
        force_preprocess: bool | None = None,
        auto_cast_to_optimal_dtype: bool = True,
        allow_outside_paths: bool = False,
        *,
        placement: Place = "process",
        device: torch.device | str | None = None,
    ) -> None:
        gpu = store_device(placement, device, None)
        self._is_spread = placement == "distributed" or (placement == "sharded" and gpu is None)
        self._placement, self._device = placement, device
        folder = path_of("path", path)
        folder = folder.parent if folder.name == "metadata.yaml" else folder
        self._files = DatasetFolder(folder, allow_outside_paths)
        made = preprocess_ondisk_dataset(
            folder, include_original_edge_id, force_preprocess, auto_cast_to_optimal_dtype, allow_outside_paths
        )
        self.yaml_data = read_yaml(Path(made))
        """The parsed metadata.yaml; it can be changed before :meth:`load`."""
        self._auto_cast = auto_cast_to_optimal_dtype

    def load(self, tasks: str | list[str] | None = None) -> Self:
        """Read the graph, features and sets; return the dataset.

        Args:
            tasks: names of the tasks to read; ``None``: all.

        Raises:
            InputError: a file is missing or damaged, or has unknown content.
            TypeError: names in another form.
        """
        tasks = [tasks] if isinstance(tasks, str) else tasks
        if tasks is not None and not isinstance(tasks, list):
            raise TypeError(f"The type of selected_task should be list, but got {type(tasks)}.")
        described = deepcopy(self.yaml_data)
        for key in ("include_original_edge_id", "auto_cast_to_optimal_dtype", "manyhop"):
            described.pop(key, None)
        if unknown := sorted(set(described) - {"dataset_name", "graph_topology", "feature_data", "tasks"}):
            warnings.warn(f"metadata.yaml: unknown entries are not used: {unknown}", GBWarning, stacklevel=2)
        features = [feature_of(entry) for entry in described.get("feature_data") or []]
        for spec in features:
            spec.path = str(self._files.file(spec.path))
        self.dataset_name = described.get("dataset_name")
        with on_one_core_if_forked():
            self.graph = self._load_graph(described.get("graph_topology"))
            self.feature = TorchBasedFeatureStore(features, placement=self._placement, device=self._device)
            self._check_features()
            self.tasks = self._make_tasks(described.get("tasks") or [], tasks)
        self.all_nodes_set = all_nodes_of(self.graph)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in _PARTS:
            raise InputError(
                "Please ensure that you have called the OnDiskDataset.load() method to properly load the data."
            )
        raise AttributeError(name)

    def _load_graph(self, topology: object) -> FusedCSCSamplingGraph | None:
        if topology is None:
            return None
        if not isinstance(topology, Mapping) or topology.get("type") != "FusedCSCSamplingGraph":
            raise InputError(
                f"Expected graph_topology in metadata.yaml with a path and type: FusedCSCSamplingGraph, got {topology}."
            )
        path = self._files.file(topology.get("path"))
        place = "process" if self._placement == "mapped" else "shared" if self._is_spread else self._placement
        return in_place(lambda: read_sampling_graph(path), place)

    def _check_features(self) -> None:
        """Raise InputError unless every node and edge has a row."""
        if self.graph is None:
            return
        counts = {"node": by_type(self.graph.num_nodes), "edge": by_type(self.graph.num_edges)}
        for (domain, kind, name), feature in self.feature.items():
            if domain not in counts:
                continue
            if kind not in counts[domain]:
                known = [one for one in counts[domain] if one is not None] or "no type"
                raise InputError(f"Expected {domain} feature '{name}' to be of {known}, got '{kind}'.")
            if feature.count() != counts[domain][kind]:
                raise InputError(
                    f"Expected {counts[domain][kind]} rows of {domain} feature '{name}'{f' of {kind}' if kind else ''},"
                    f" one per {domain}, got {feature.count()}."
                )

    def _make_tasks(self, described: list[object], wanted: list[str] | None) -> list[OnDiskTask]:
        made = []
        for number, task in enumerate(described):
            if not isinstance(task, Mapping):
                raise InputError(f"Expected each entry of tasks in metadata.yaml to be a mapping, got {task!r}.")
            metadata = {key: value for key, value in task.items() if key not in _SETS}
            name = metadata.get("name")
            if wanted is None or name in wanted:
                title = f"task '{name}'" if name is not None else f"task {number}"
                made.append(
                    OnDiskTask(metadata, *[self._read_set(f"{title}, {part}", task.get(part)) for part in _SETS])
                )
        missing = set(wanted or []) - {task.metadata.get("name") for task in made}
        if missing:
            warnings.warn(f"Below tasks are not found in YAML: {missing}. Skipped.", GBWarning, stacklevel=3)
        return made

    def _read_set(self, title: str, described: object) -> Items | None:
        """Read the items of a training, validation or test set; ``None``: there is none."""
        try:
            if not isinstance(described, list | None):
                raise InputError(f"Expected a list of the entries of a set in metadata.yaml, got {described!r}.")
            entries = [entry_of(entry, "a set", ["data"], ["type"]) for entry in described or ()]
            types = [entry["type"] for entry in entries]
            if len(set(types)) < len(types) or (None in types and len(types) > 1):
                raise InputError(f"Expected a different type for each entry of a set in metadata.yaml, got {types}.")
            sets = {entry["type"]: self._items(entry) for entry in entries}
        except InputError as error:
            raise type(error)(f"{title}: {error}") from error
        return HeteroItemSet(sets) if sets and None not in sets else sets.get(None)

    def _items(self, entry: Mapping[str, Any]) -> ItemSet:
        if not entry["data"]:
            raise InputError("Expected at least one entry in the 'data' of each set in metadata.yaml, got none.")
        described = [
            entry_of(one, "the data of a set", ["format", "path"], ["name", "in_memory"]) for one in entry["data"]
        ]
        tensors = tuple(map(self._read, described))
        if len({len(tensor) for tensor in tensors}) > 1:
            got = {data["path"]: len(tensor) for data, tensor in zip(described, tensors, strict=True)}
            of = f" of type '{entry['type']}'" if entry["type"] is not None else ""
            raise InputError(f"Expected the same number of rows in all files of the items{of}, got {got}.")
        names = tuple(data["name"] for data in described)
        return ItemSet(tensors, names=None if all(name is None for name in names) else names)

    def _read(self, data: Mapping[str, Any]) -> Tensor:
        path, in_memory = self._files.file(data["path"]), True if data["in_memory"] is None else data["in_memory"]
        check_file(data["format"], in_memory, data["path"])
        tensor = read_tensor(path, data["format"], in_memory=in_memory)
        if tensor.dim() == 0:
            raise InputError(f"{path}: Expected a row per item, got a single number.")
        narrow = self.graph is not None and self.graph.indices.dtype == torch.int32
        cast = self._auto_cast and in_memory and narrow and data["name"] in _OF_NODES
        return tensor.to(torch.int32) if cast and not tensor.is_floating_point() else tensor


def all_nodes_of(graph: FusedCSCSamplingGraph | None) -> Items | None:
    """Return an item set of all nodes of a graph, named ``"seeds"``."""
    if graph is None:
        warnings.warn("`all_nodes_set` is returned as None, since graph is None.", GBWarning, stacklevel=3)
        return None
    dtype = graph.indices.dtype
    counts = by_type(graph.num_nodes)
    sets = {kind: ItemSet(torch.tensor(count, dtype=dtype), names="seeds") for kind, count in counts.items()}
    return sets[None] if None in sets else HeteroItemSet(sets)


class BuiltinDataset(OnDiskDataset):
    """One of GraphBolt's ready-made datasets, in ``root/name-seeds`` (of later versions than DGL 2.1) or ``root/name``.

    Nothing is downloaded.

    Args:
        name: of the dataset.
        root: the folder that it is in.
        placement: see :class:`OnDiskDataset`, also for ``device``.

    Raises:
        InputError: a missing dataset.
    """

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
                f"Expected the dataset '{name}' in {' or '.join(map(str, folders))}, found none. Nothing is "
                f"downloaded: get https://data.dgl.ai/dataset/graphbolt/{own}-seeds.zip from DGL and unpack it into "
                f"{Path(root)}; for a dataset of your own, use OnDiskDataset(folder)."
            )
        super().__init__(folder, placement=placement, device=device)
