"""The raw graph of a dataset -> a sampling graph in a file, made once."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import check_range, path_of
from manyhop.errors import GraphError, InputError, MissingExtraError
from manyhop.files.disk_room import replacing
from manyhop.system.threads import in_forked_children
from manyhop_graphbolt.features.on_disk import (
    DatasetFolder,
    OnDiskFeatureData,
    existing,
    feature_of,
    read_edges,
    read_tensor,
)
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.make import fused_csc_sampling_graph, sort_by_destination
from manyhop_graphbolt.types import ORIGINAL_EDGE_ID, GBWarning, etype_str_to_tuple


class _Process:
    is_forked = False


def _note() -> None:
    _Process.is_forked = True


in_forked_children(_note)


@contextmanager
def on_one_core_if_forked() -> Iterator[None]:
    """Limit torch's operators to one thread in the body, in a forked process.

    OpenMP does not survive a fork: where the parent's operators have used multiple threads, the first operator of the
    child that does so waits for ever for threads which only the parent has.
    """
    before = torch.get_num_threads()
    if not _Process.is_forked or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_FOLDER = Path("preprocessed") / "manyhop"
_GRAPH = _FOLDER / "fused_csc_sampling_graph.pt"
_LARGEST = torch.iinfo(torch.int32).max
_VERSION = 1


def preprocess_ondisk_dataset(
    dataset_dir: str | Path,
    include_original_edge_id: bool = False,
    force_preprocess: bool | None = None,
    auto_cast_to_optimal_dtype: bool = True,
    allow_outside_paths: bool = False,
) -> str:
    """Build the sampling graph of a dataset, unless it exists.

    It is saved to ``preprocessed/manyhop/`` in the dataset's folder. DGL's own files in ``preprocessed/`` are not
    changed, and are used only if the original files of edges are missing.

    Args:
        dataset_dir: the folder with ``metadata.yaml``.
        include_original_edge_id: keep the position of each edge in its file, to read edge features by it.
        force_preprocess: ``True``: make it again. ``False``: use the existing one. ``None``: make it if an argument,
            or the size or time of a file, has changed.
        auto_cast_to_optimal_dtype: int32 for ids that fit, the smallest integers for edge types.
        allow_outside_paths: also read files outside of the folder if ``metadata.yaml`` names them.

    Returns:
        The path of the ``metadata.yaml`` that has the sampling graph in it.

    Raises:
        InputError: a file is missing or damaged, or has something unknown.
        GraphError: edges or features that contradict each other.
    """
    folder = path_of("dataset_dir", dataset_dir)
    if not folder.exists():
        raise InputError(f"Invalid dataset path: {folder}. Expected a folder with metadata.yaml, found none.")
    if not folder.is_dir():
        raise InputError(f"The dataset must be a directory. But got {folder}.")
    files = DatasetFolder(folder, allow_outside_paths)
    done = folder / _FOLDER / "metadata.yaml"
    of_dgl = folder / "preprocessed" / "metadata.yaml"
    if of_dgl.exists() and not _has_originals(files):
        return _ready(of_dgl, include_original_edge_id, force_preprocess)
    config = read_yaml(folder / "metadata.yaml")
    if not isinstance(config.get("graph"), Mapping):
        raise InputError(f"Invalid config: {folder / 'metadata.yaml'} does not contain graph field.")
    unknown = sorted(set(config["graph"]) - {"nodes", "edges", "feature_data"})
    if unknown:
        warnings.warn(f"metadata.yaml: unknown entries of graph are not used: {unknown}", GBWarning, stacklevel=3)
    inputs = _inputs(files, config["graph"])
    facts = {
        "version": _VERSION,
        "include_original_edge_id": include_original_edge_id,
        "auto_cast_to_optimal_dtype": auto_cast_to_optimal_dtype,
        "inputs": inputs,
    }
    before = read_yaml(done) if done.exists() else {}
    if before and force_preprocess is False:
        return str(done)
    output = deepcopy(config)
    described = output.pop("graph")
    output["graph_topology"] = {"type": "FusedCSCSamplingGraph", "path": str(_GRAPH)}
    output["include_original_edge_id"] = include_original_edge_id
    output["manyhop"] = facts
    if force_preprocess or before.get("manyhop") != facts or not (folder / _GRAPH).exists():
        _warn_of_edge_features(config, include_original_edge_id)
        with on_one_core_if_forked():
            graph = _sampling_graph(files, described, include_original_edge_id, auto_cast_to_optimal_dtype)
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        with replacing(folder / _GRAPH) as new:
            torch.save(graph, new)
    if before != output:
        write_yaml(done, output)  # last: it marks the rest as complete
    return str(done)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping."""
    yaml = _yaml()
    if not path.is_file():
        raise InputError(f"{path}: Expected the description of a dataset, found no {path.name}.")
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: Expected YAML: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: Expected a mapping, got a {type(config).__name__}.")
    return config


def write_yaml(path: Path, config: Mapping[str, object]) -> None:
    """Write a YAML file atomically."""
    with replacing(path) as new:
        new.write_text(_yaml().safe_dump(dict(config), sort_keys=False), encoding="utf-8")


def _warn_of_edge_features(config: Mapping[str, Any], include_original_edge_id: bool) -> None:
    features = [feature_of(entry) for entry in config.get("feature_data") or []]
    if any(feature.domain == "edge" for feature in features) and not include_original_edge_id:
        warnings.warn(
            "Edge feature is stored, but edge IDs are not saved: pass include_original_edge_id=True to read it for "
            "sampled edges.",
            GBWarning,
            stacklevel=4,
        )


def _yaml() -> ModuleType:
    try:
        import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
    except ImportError:
        raise MissingExtraError("PyYAML", "dgl", "Reading datasets of GraphBolt") from None
    module: ModuleType = yaml
    return module


def _has_originals(files: DatasetFolder) -> bool:
    """Return whether the files exist that the graph can be built from."""
    description = files.path / "metadata.yaml"
    if not description.is_file():
        return False
    graph = read_yaml(description).get("graph")
    edges = graph.get("edges") or [] if isinstance(graph, Mapping) else []
    return any(files.file(_entry(entry, "path", "edges")).exists() for entry in edges)


def _ready(made: Path, include_original_edge_id: bool, force_preprocess: bool | None) -> str:
    """Return the graph that DGL has preprocessed, if the original files are missing."""
    if force_preprocess:
        raise InputError(f"{made.parents[1]}: Expected edge files to sort again, found none. Restore them.")
    has_ids = bool(read_yaml(made).get("include_original_edge_id"))
    if include_original_edge_id and not has_ids:
        raise InputError(
            f"{made}: Expected a graph with original edge ids, got one that DGL made without them, and no edge "
            "files to make it again. Restore the original files, or pass include_original_edge_id=False."
        )
    return str(made)


def _inputs(folder: DatasetFolder, graph: Mapping[str, Any]) -> dict[str, object]:
    """Return size and time of each file of the sampling graph, and the graph's part of metadata.yaml."""
    entries = [*(graph.get("edges") or []), *(graph.get("feature_data") or [])]
    found: dict[str, object] = {"graph": repr(graph)}
    for entry in entries:
        stat = existing(folder.file(_entry(entry, "path", "graph"))).stat()
        found[str(entry["path"])] = [stat.st_size, stat.st_mtime_ns]
    return found


def _sampling_graph(
    files: DatasetFolder, data: dict[str, Any], include_original_edge_id: bool, auto_cast: bool
) -> FusedCSCSamplingGraph:
    """Return the graph that the ``graph`` part of metadata.yaml describes."""
    folder = files.path
    nodes, edges = data.get("nodes") or [], data.get("edges") or []
    if not nodes or not edges:
        raise InputError(f"Expected 'nodes' and 'edges' of a graph in {folder / 'metadata.yaml'}, got {sorted(data)}.")
    typed = [entry.get("type") is not None for entry in [*nodes, *edges] if isinstance(entry, Mapping)]
    if len(typed) < len(nodes) + len(edges):
        raise InputError(f"Expected a mapping for each entry of nodes and edges in {folder / 'metadata.yaml'}.")
    if any(typed) != all(typed) or (not any(typed) and len(typed) > 2):
        raise InputError(
            f"Expected types for all nodes and edges in {folder / 'metadata.yaml'}, or one entry of each without types."
        )
    if any(typed):
        nodes, edges = sorted(nodes, key=lambda x: str(x["type"])), sorted(edges, key=lambda x: str(x["type"]))
    node_types = [str(entry.get("type")) for entry in nodes]
    edge_types = [str(entry.get("type")) for entry in edges]
    of_edges = {"type", "format", "path", "in_memory"}  # edges are sorted into memory in either case
    for entries, known, where in ((nodes, {"type", "num"}, "nodes"), (edges, of_edges, "edges")):
        for entry in entries:
            if set(entry) - known:
                got = sorted(set(entry) - known)
                raise InputError(f"Expected only {sorted(known)} in {where} in metadata.yaml, also got {got}.")
    counts = [_count(_entry(entry, "num", "nodes")) for entry in nodes]
    offset = torch.tensor([0, *counts]).cumsum(0)
    total = int(offset[-1])
    src, dst, begins = [], [], [0]
    for edge_type, entry in zip(edge_types, edges, strict=True):
        path = files.file(_entry(entry, "path", "edges"))
        ends = read_edges(path, str(_entry(entry, "format", "edges")))
        kinds = (0, 0)
        if any(typed):
            source, _, destination = etype_str_to_tuple(edge_type)
            for name in (source, destination):
                if name not in node_types:
                    raise GraphError(f"Expected edges between nodes of the types {node_types}, got '{edge_type}'.")
            kinds = node_types.index(source), node_types.index(destination)
        for end, (what, k) in enumerate(zip(("source", "destination"), kinds, strict=True)):
            check_range(f"{what} nodes of {path}", ends[end], counts[k], GraphError)
        src.append(ends[0] + offset[kinds[0]])
        dst.append(ends[1] + offset[kinds[1]])
        begins.append(begins[-1] + ends.size(1))
    csc = sort_by_destination(torch.cat(src), torch.cat(dst), total)
    id_dtype = torch.int32 if auto_cast and total <= _LARGEST else torch.int64
    edge_dtype = torch.int32 if auto_cast and begins[-1] <= _LARGEST else torch.int64
    kind_of_edge = torch.bucketize(csc.order, torch.tensor(begins[1:]), right=True)
    attributes = _attributes(files, data.get("feature_data") or [], node_types, edge_types, offset.tolist(), begins)
    edge_attributes = {name: values[csc.order] for name, values in attributes["edge"].items()}
    if include_original_edge_id:
        own = csc.order - torch.tensor(begins)[kind_of_edge]
        edge_attributes[ORIGINAL_EDGE_ID] = own.to(edge_dtype)
    return fused_csc_sampling_graph(
        csc.indptr.to(edge_dtype),
        csc.indices.to(id_dtype),
        node_type_offset=offset.to(id_dtype) if any(typed) else None,
        type_per_edge=kind_of_edge.to(_kind_dtype(len(edges)) if auto_cast else torch.int64) if any(typed) else None,
        node_type_to_id={name: k for k, name in enumerate(node_types)} if any(typed) else None,
        edge_type_to_id={name: k for k, name in enumerate(edge_types)} if any(typed) else None,
        node_attributes=attributes["node"] or None,
        edge_attributes=edge_attributes or None,
    )


def _attributes(
    files: DatasetFolder,
    entries: Any,
    node_types: list[str],
    edge_types: list[str],
    offset: list[int],
    begins: list[int],
) -> dict[str, dict[str, Tensor]]:
    """Return the data for samplers by domain and name, of all types in a row, edges in the order of their files."""
    found: dict[str, dict[str, dict[str, Tensor]]] = {"node": {}, "edge": {}}
    sizes = {
        "node": dict(zip(node_types, _steps(offset), strict=True)),
        "edge": dict(zip(edge_types, _steps(begins), strict=True)),
    }
    for entry in entries:
        feature: OnDiskFeatureData = feature_of(entry)
        own = sizes.get(feature.domain.value)
        if own is None or str(feature.type) not in own:
            raise InputError(
                f"Expected feature '{feature.name}' of the graph to belong to one of {node_types} or {edge_types}, got "
                f"{feature.domain.value} '{feature.type}'."
            )
        path = files.file(feature.path)
        values = read_tensor(path, feature.format.value)
        if values.size(0) != own[str(feature.type)]:
            raise GraphError(
                f"{path}: Expected {own[str(feature.type)]} rows, one per {feature.domain.value}, got {values.size(0)}."
            )
        of_name = found[feature.domain.value].setdefault(feature.name, {})
        if str(feature.type) in of_name:
            raise InputError(f"Expected each feature of the graph in metadata.yaml once, got '{feature.name}' twice.")
        of_name[str(feature.type)] = values
    joined: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}}
    for domain, types in (("node", node_types), ("edge", edge_types)):
        for name, by_type in found[domain].items():
            if set(by_type) != set(types):
                raise GraphError(
                    f"{domain.capitalize()} feature {name} does not cover all {domain} types. Existing types: "
                    f"{sorted(by_type)}. Expected types: {types}."
                )
            joined[domain][name] = torch.cat([by_type[t] for t in types])
    return joined


def _entry(entry: object, name: str, where: str) -> object:
    if not isinstance(entry, Mapping) or name not in entry:
        raise InputError(f"Expected '{name}' in each entry of '{where}' in metadata.yaml, got {entry!r}.")
    return entry[name]


def _count(value: object) -> int:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"Expected the number of nodes in metadata.yaml as an integer, got {value!r}.")
    return value


def _steps(bounds: list[int]) -> list[int]:
    return [b - a for a, b in pairwise(bounds)]


def _kind_dtype(num_types: int) -> torch.dtype:
    """Return the smallest dtype for numbers of edge types."""
    dtypes = (torch.uint8, torch.int16, torch.int32, torch.int64)
    return dtypes[bisect.bisect_left([torch.iinfo(dtype).max for dtype in dtypes], num_types - 1)]
