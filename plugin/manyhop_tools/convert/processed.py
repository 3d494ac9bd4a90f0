"""Readers of MAG240M (OGB-LSC), IGB and IGBH: folders with ``processed/`` and a folder per node and edge type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.formats import open as open_rows
from manyhop.files.formats import read_raw
from manyhop.files.graph_writer import GraphWriter
from manyhop.files.rows import Rows
from manyhop.files.saved_tensors import load_plain, mask_of
from manyhop.files.sort import EdgeSorter
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop_tools.convert.edge_lists import EdgeIndexFile
from manyhop_tools.convert.source import least_counts, report

_NAMES = {"node_feat": "x", "node_label": "y", "node_label_19": "y"}
_RAW_WIDTH = {"node_feat": 1024, "node_label_19": None, "node_label_2K": None}  # of IGB's large files, float32
_SPLITS = {"train": "train", "val": "valid", "test": "test-dev"}  # as in OGB's own HeteroData


def is_processed(folder: Path) -> bool:
    """Return whether it is the folder of such a data set."""
    return any((folder / "processed").glob("*__*/edge_index.npy"))


@dataclass(frozen=True)
class Processed:
    """A data set in such a folder: features ``x``, labels ``y``; other files ``node_*.npy`` keep their names.

    MAG240M has ``meta.pt`` and ``split_dict.pt``, which become numbers of nodes, masks and ``num_classes``. IGB's edges
    are pairs, and the features and labels of its large sizes are raw float32, 1024 features per node.
    """

    folder: Path

    @property
    def homogeneous(self) -> bool:
        """Return whether the graph has one node type and one edge type."""
        edge_types = [*self._edge_types()]
        return len(edge_types) == 1 and edge_types[0][0] == edge_types[0][2]

    def write(self, writer: GraphWriter) -> None:
        """Write the graph."""
        meta, one = self._meta(), self.homogeneous
        sorters: dict[EdgeType, EdgeSorter] = {}
        edges = {t: EdgeIndexFile(path / "edge_index.npy", pairs=not meta) for t, path in self._edge_types().items()}
        for edge_type, file in edges.items():
            sorters[edge_type] = writer.sorter({})
            for src, dst in file.pieces():
                sorters[edge_type].add(src, dst, {})
        counts: dict[NodeType, int] = {}
        for node_type, least in sorted(least_counts(sorters).items()):
            tensors = self._tensors(node_type)
            given = [meta[node_type]] if node_type in meta else [rows.shape[0] for rows in tensors.values()]
            count = counts[node_type] = given[0] if given else least
            if not given:
                report(f"{self.folder}: '{node_type}' has no tensors: {count} nodes, 1 + the highest id.")
            if node_type == "paper":
                tensors |= self._masks(count)
            writer.add_nodes(HOMOGENEOUS_NODE if one else node_type, count, tensors)
        for edge_type, sorter in sorters.items():
            ends = counts[edge_type[0]], counts[edge_type[2]]
            writer.add_sorted(HOMOGENEOUS_EDGE if one else edge_type, sorter, *ends)
        writer.add_others({name: value for name, value in meta.items() if name not in counts})

    def _edge_types(self) -> dict[EdgeType, Path]:
        """Return edge types, in alphabetical order, and their folders."""
        found: dict[EdgeType, Path] = {}
        for path in sorted((self.folder / "processed").glob("*__*")):
            names = path.name.split("___" if "___" in path.name else "__")
            if len(names) != 3 or not all(names):
                raise InputError(f"{path}: expected a folder's name such as paper__cites__paper, of three names.")
            found[names[0], names[1], names[2]] = path
        return found

    def _meta(self) -> dict[str, int]:
        """Numbers of nodes by type and of classes, of MAG240M."""
        path = self.folder / "meta.pt"
        meta = load_plain(path) if path.exists() else {}
        if not isinstance(meta, dict) or not all(isinstance(n, int) and n >= 0 for n in meta.values()):
            raise InputError(f"{path}: expected a dictionary of the numbers of nodes and classes.")
        return meta

    def _tensors(self, node_type: NodeType) -> dict[str, Tensor | Rows]:
        found: dict[str, Tensor | Rows] = {}
        for path in sorted((self.folder / "processed" / node_type).glob("node_*.npy")):
            with path.open("rb") as file:
                has_header = file.read(6) == b"\x93NUMPY"
            if has_header or path.stem not in _RAW_WIDTH:
                rows = open_rows(path)
            else:
                report(f"{path}: has no header, so it is read as IGB's large sizes are, as raw float32.")
                rows = read_raw(path, torch.float32, _RAW_WIDTH[path.stem])
            found[_NAMES.get(path.stem, path.stem)] = rows
        return found

    def _masks(self, count: int) -> dict[str, Tensor | Rows]:
        path = self.folder / "split_dict.pt"
        if not path.exists():
            report(
                f"{self.folder}: has no split, so the graph will have no masks (IGB's loader draws 60, 20 and 20 %)."
            )
            return {}
        split = load_plain(path)
        if not isinstance(split, dict) or not {"train", "valid"} <= set(split):
            raise InputError(f"{path}: expected a dictionary with 'train', 'valid' and others, got {split!r:.100}.")
        return {
            f"{ours}_mask": mask_of(split[theirs], count, f"{path}, '{theirs}'")
            for ours, theirs in _SPLITS.items()
            if theirs in split
        }
