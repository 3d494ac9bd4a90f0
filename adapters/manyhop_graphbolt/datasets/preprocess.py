"""The raw graph of a dataset -> a sampling graph in a file, made once; graphs in files, also of DGL's GraphBolt."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import check_range, integer, path_of
from manyhop.errors import GraphError, InputError, MissingExtraError
from manyhop.files.tensor_file import replacing
from manyhop_graphbolt.features.disk import DatasetFolder, entry_of, existing, feature_of, read_edges, read_tensor
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph, fused_csc_sampling_graph, joined, sort_by_destination
from manyhop_graphbolt.types import ORIGINAL_EDGE_ID, GBWarning, ends_of

_IMPORTED_IN = os.getpid()


@contextmanager
def on_one_core_if_forked() -> Iterator[None]:
    """Limit torch's operators to one thread in the body, in a forked process.

    OpenMP does not survive a fork: where the parent's operators have used multiple threads, the first operator of the
    child that does so waits for ever for threads which only the parent has.
    """
    if os.getpid() == _IMPORTED_IN:
        yield  # set_num_threads, even to the same number, would start a pool of threads
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_FOLDER = Path("preprocessed") / "manyhop"
_GRAPH = _FOLDER / "fused_csc_sampling_graph.pt"
_LARGEST = torch.iinfo(torch.int32).max
_OF_EDGES = ("type", "format", "path", "in_memory")  # edges are sorted into memory in either case
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
        include_original_edge_id: see :class:`OnDiskDataset`, also for ``auto_cast_to_optimal_dtype`` and
            ``allow_outside_paths``.
        force_preprocess: ``True``: make it again. ``False``: use the existing one. ``None``: make it if an argument,
            or the size or time of a file, has changed.

    Returns:
        The path of the ``metadata.yaml`` that has the sampling graph in it.

    Raises:
        InputError: a file is missing or damaged, or has something unknown.
        GraphError: edges or features that contradict each other.
    """
    folder = path_of("dataset_dir", dataset_dir)
    if not folder.is_dir():
        raise InputError(f"Invalid dataset path: {folder}. Expected a folder with metadata.yaml, found none.")
    files = DatasetFolder(folder, allow_outside_paths)
    done, of_dgl = folder / _FOLDER / "metadata.yaml", folder / "preprocessed" / "metadata.yaml"
    if of_dgl.exists() and not _has_originals(files):
        return _ready(of_dgl, include_original_edge_id, force_preprocess)
    output = read_yaml(folder / "metadata.yaml")
    described = output.pop("graph", None)
    if not isinstance(described, Mapping):
        raise InputError(f"Invalid config: {folder / 'metadata.yaml'} does not contain graph field.")
    unknown = sorted(set(described) - {"nodes", "edges", "feature_data"})
    if unknown:
        warnings.warn(f"metadata.yaml: unknown entries of graph are not used: {unknown}", GBWarning, stacklevel=3)
    facts = {
        "version": _VERSION,
        "include_original_edge_id": include_original_edge_id,
        "auto_cast_to_optimal_dtype": auto_cast_to_optimal_dtype,
        "inputs": _inputs(files, described),
    }
    before = read_yaml(done) if done.exists() else {}
    if before and force_preprocess is False:
        return str(done)
    output["graph_topology"] = {"type": "FusedCSCSamplingGraph", "path": str(_GRAPH)}
    output |= {"include_original_edge_id": include_original_edge_id, "manyhop": facts}
    if force_preprocess or before.get("manyhop") != facts or not (folder / _GRAPH).exists():
        features = [feature_of(entry) for entry in output.get("feature_data") or []]
        if any(feature.domain == "edge" for feature in features) and not include_original_edge_id:
            warnings.warn(
                "Edge feature is stored, but edge IDs are not saved: pass include_original_edge_id=True to read it for "
                "sampled edges.",
                GBWarning,
                stacklevel=3,
            )
        with on_one_core_if_forked():
            graph = _sampling_graph(files, described, include_original_edge_id, auto_cast_to_optimal_dtype)
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        with replacing(folder / _GRAPH) as new:
            torch.save(graph, new)
    if before != output:
        with replacing(done) as new:  # last: it marks the rest as complete
            new.write_text(_yaml().safe_dump(output, sort_keys=False), encoding="utf-8")
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


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
    except ImportError:
        raise MissingExtraError("PyYAML", "dgl", "Reading datasets of GraphBolt") from None
    return yaml


def _has_originals(files: DatasetFolder) -> bool:
    """Return whether the files exist that the graph can be built from."""
    description = files.path / "metadata.yaml"
    if not description.is_file():
        return False
    graph = read_yaml(description).get("graph")
    edges = graph.get("edges") or [] if isinstance(graph, Mapping) else []
    return any(files.file(entry_of(entry, "edges", ["path"], _OF_EDGES)["path"]).exists() for entry in edges)


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
    paths = [entry_of(entry, "edges", ["path"], _OF_EDGES)["path"] for entry in graph.get("edges") or []]
    paths += [feature_of(entry).path for entry in graph.get("feature_data") or []]
    found: dict[str, object] = {"graph": repr(graph)}
    for path in paths:
        stat = existing(folder.file(path)).stat()
        found[str(path)] = [stat.st_size, stat.st_mtime_ns]
    return found


def _sampling_graph(
    files: DatasetFolder, data: Mapping[str, Any], include_original_edge_id: bool, auto_cast: bool
) -> FusedCSCSamplingGraph:
    """Return the graph that the ``graph`` part of metadata.yaml describes."""
    where = files.path / "metadata.yaml"
    nodes = [entry_of(entry, "nodes", ["num"], ["type"]) for entry in data.get("nodes") or []]
    edges = [entry_of(entry, "edges", ["path", "format"], _OF_EDGES) for entry in data.get("edges") or []]
    if not nodes or not edges:
        raise InputError(f"Expected 'nodes' and 'edges' of a graph in {where}, got {sorted(data)}.")
    typed = any(entry["type"] is not None for entry in [*nodes, *edges])
    if typed != all(entry["type"] is not None for entry in [*nodes, *edges]) or (not typed and len(nodes + edges) > 2):
        raise InputError(f"Expected types for all nodes and edges in {where}, or one entry of each without types.")
    nodes, edges = [sorted(entries, key=lambda entry: str(entry["type"])) for entries in (nodes, edges)]
    counts = {entry["type"]: _count(entry["num"]) for entry in nodes}
    offset = dict(zip(counts, accumulate([0, *counts.values()]), strict=False))
    total, parts, edge_counts = sum(counts.values()), [], dict[Any, int]()
    for entry in edges:
        path = files.file(entry["path"])
        ends = read_edges(path, str(entry["format"]))
        for end, (what, kind) in enumerate(zip(("source", "destination"), ends_of(entry["type"]), strict=True)):
            if kind not in counts:
                raise GraphError(f"Expected edges between nodes of the types {list(counts)}, got '{entry['type']}'.")
            check_range(f"{what} nodes of {path}", ends[end], counts[kind], GraphError)
            ends[end] += offset[kind]
        parts.append(ends)
        edge_counts[entry["type"]] = ends.size(1)
    if len(counts) < len(nodes) or len(edge_counts) < len(edges):
        raise InputError(f"Expected each type of nodes and of edges once in {where}, got some twice.")
    src, dst = torch.cat(parts, dim=1)
    indptr, indices, order = sort_by_destination(src, dst, total)
    begins = torch.tensor([0, *edge_counts.values()]).cumsum(0)
    kind_of_edge = torch.bucketize(order, begins[1:], right=True)
    id_dtype, edge_dtype = [
        torch.int32 if auto_cast and number <= _LARGEST else torch.int64 for number in (total, int(begins[-1]))
    ]
    node_data, edge_data = _attributes(files, data.get("feature_data") or [], {"node": counts, "edge": edge_counts})
    edge_data = {name: values[order] for name, values in edge_data.items()}
    if include_original_edge_id:
        edge_data[ORIGINAL_EDGE_ID] = (order - begins[kind_of_edge]).to(edge_dtype)
    types: dict[str, Any] = {}
    if typed:
        types["node_type_offset"] = torch.tensor([*offset.values(), total]).to(id_dtype)
        small = (one for one in (torch.uint8, torch.int16, torch.int32) if len(edges) - 1 <= torch.iinfo(one).max)
        types["type_per_edge"] = kind_of_edge.to(next(small) if auto_cast else torch.int64)
        types["node_type_to_id"] = {name: k for k, name in enumerate(counts)}
        types["edge_type_to_id"] = {name: k for k, name in enumerate(edge_counts)}
    return fused_csc_sampling_graph(
        indptr.to(edge_dtype),
        indices.to(id_dtype),
        **types,
        node_attributes=node_data or None,
        edge_attributes=edge_data or None,
    )


def _attributes(
    files: DatasetFolder, entries: Sequence[object], sizes: Mapping[str, Mapping[Any, int]]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the data of nodes and of edges for samplers by name, of all types in a row, in the order of their files.

    ``sizes`` has the number of nodes, and edges, by type.
    """
    found: dict[str, dict[Any, dict[str, Tensor]]] = {domain: {t: {} for t in some} for domain, some in sizes.items()}
    for feature in map(feature_of, entries):
        size = sizes.get(feature.domain, {}).get(feature.type)
        if size is None:
            known = [list(by_kind) for by_kind in sizes.values()]
            raise InputError(
                f"Expected feature '{feature.name}' of the graph to belong to one of {known[0]} or {known[1]}, got "
                f"{feature.domain} '{feature.type}'."
            )
        path = files.file(feature.path)
        values = read_tensor(path, feature.format)
        if values.size(0) != size:
            raise GraphError(f"{path}: Expected {size} rows, one per {feature.domain}, got {values.size(0)}.")
        of_type = found[feature.domain][feature.type]
        if feature.name in of_type:
            raise InputError(f"Expected each feature of the graph in metadata.yaml once, got '{feature.name}' twice.")
        of_type[feature.name] = values
    return joined(found["node"], "node"), joined(found["edge"], "edge")


def _count(value: object) -> int:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return integer("the number of nodes in metadata.yaml", value, 0)


_reading = threading.Lock()
_PACKAGES = (__name__.partition(".")[0], "manyhop_dgl" + ".graphbolt")  # that have written graphs
_DGL_VERSION = 6199  # which GraphBolt writes into its graphs


def read_sampling_graph(path: Path) -> FusedCSCSamplingGraph:
    """Load a sampling graph that ``torch.save`` has written, here or in DGL. Only tensors are unpickled."""
    known: list[Any] = [
        *((FusedCSCSamplingGraph, f"{module}.graph.graph.FusedCSCSamplingGraph") for module in _PACKAGES),
        (_OfDGL, "dgl.graphbolt.impl.fused_csc_sampling_graph.FusedCSCSamplingGraph"),
        (_OfTorch, "torch.ScriptObject"),
    ]
    try:
        with _reading, torch.serialization.safe_globals(known):  # which are forgotten again at its end
            graph = torch.load(path, weights_only=True)
        unordered = isinstance(graph, _OfDGL) and graph.unordered()
        if isinstance(graph, _OfDGL):
            graph = graph.convert()
    except Exception as error:  # damaged files raise errors of many kinds
        raise InputError(
            f"{path}: Expected the sampling graph of the dataset, which cannot be read: "
            f"{(str(error) or repr(error)).splitlines()[0]}. Make it again with force_preprocess=True."
        ) from error
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise InputError(f"{path}: Expected a FusedCSCSamplingGraph, got a {type(graph).__name__}.")
    if unordered:
        warnings.warn(
            f"{path}: Expected original edge ids beside the edge data {unordered}, which DGL leaves in the order of "
            "the files of edges, got none: the data belong to other edges. Restore the files of edges.",
            GBWarning,
            stacklevel=2,
        )
    graph.indices = torch.from_numpy(graph.indices.numpy().copy())  # numpy allocates with huge pages
    return graph


class _OfTorch:
    """An object of a C++ class, pickled by torch as its state and the name of its class."""

    def __setstate__(self, state: tuple[dict[str, dict[str, Tensor]], str]) -> None:
        self.state = state[0]


class _OfDGL:
    """DGL's graph: an object around one of C++."""

    _c_csc_graph: _OfTorch

    def unordered(self) -> list[str]:
        """Return the names of edge data whose order is unknown, without original edge ids."""
        data = self._c_csc_graph.state.get("edge_attributes") or {}
        return [] if ORIGINAL_EDGE_ID in data else sorted(data)

    def convert(self) -> FusedCSCSamplingGraph:
        """Convert a graph of DGL's GraphBolt to a :class:`FusedCSCSamplingGraph`.

        DGL leaves edge data in the order of the files of edges. Original edge ids sort them into the graph's order.
        """
        state: dict[str, dict[str, Any]] = self._c_csc_graph.state
        tensors = state["independent_tensors"]
        if int(tensors["version_number"]) != _DGL_VERSION:
            raise InputError(
                f"Expected version {_DGL_VERSION} of GraphBolt's files, got {int(tensors['version_number'])}."
            )
        numbers = {
            name: {key: int(value) for key, value in state[name].items()} if name in state else None
            for name in ("node_type_to_id", "edge_type_to_id")
        }
        data = dict(state.get("edge_attributes") or {})
        kind = tensors.get("type_per_edge")
        if ORIGINAL_EDGE_ID in data:
            row = data[ORIGINAL_EDGE_ID].long()
            if kind is not None:  # ids count within a type
                sizes = kind.long().bincount()
                row = row + (sizes.cumsum(0) - sizes)[kind.long()]
            data |= {name: values[row] for name, values in data.items() if name != ORIGINAL_EDGE_ID}
        return fused_csc_sampling_graph(
            tensors["indptr"],
            tensors["indices"],
            tensors.get("node_type_offset"),
            kind,
            numbers["node_type_to_id"],
            numbers["edge_type_to_id"],
            state.get("node_attributes"),
            data or None,
        )
