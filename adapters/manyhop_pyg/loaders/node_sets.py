"""Loaders of batches that are sets of nodes: parts of a partition (Cluster-GCN), random parts."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.index import ptr2index
from torch_geometric.loader.cluster import Partition
from torch_geometric.sampler import NodeSamplerInput

from manyhop.arguments import as_ids, flag, integer, path_of
from manyhop.errors import InputError
from manyhop.files.saved_tensors import load_safely
from manyhop.files.tensor_file import replacing
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop.graph.build import check_ids
from manyhop.graph.metis import metis_parts
from manyhop_pyg.data.convert import edge_list, plain
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.subgraphs import ClusterSampler, NodeSetSampler
from manyhop_pyg.typing import Attributes, Batch, PyGData, Sample


def refuse(kwargs: Mapping[str, object], names: Sequence[str], reason: str) -> None:
    """Raise InputError for arguments of :class:`NodeLoader` that a loader does not have."""
    for name in names:
        if name in kwargs:
            raise InputError(f"Expected no {name}, got one: {reason}. Leave it out.")


def save_whole(content: object, path: Path) -> None:
    """Write a file that other processes see once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        torch.save(content, partial)


class NodeSetLoader(NodeLoader):
    """A loader whose seeds are numbers of node sets: 0, 1, ...

    Raises:
        InputError: arguments that define the nodes of a batch.
    """

    _reads_inputs_on_host = True  # which finds the nodes

    def __init__(self, data: Data, sampler: NodeSetSampler, num_sets: int, kwargs: dict[str, Any]) -> None:
        names = ("input_nodes", "input_time", "input_id", "node_sampler", "seed_parts")
        refuse(kwargs, names, f"{type(self).__name__} determines its nodes")
        self._num_sets = num_sets
        super().__init__(data=data, node_sampler=sampler, **kwargs)

    def _seed_input(self) -> NodeSamplerInput:
        return NodeSamplerInput(None, torch.arange(self._num_sets), None, None)

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        (into,) = super()._label(batch, out)
        del into["batch_size"]  # the first nodes are not seeds
        return [into]


def check_data(data: Data) -> Data:
    """Return data with ``edge_index``; raise InputError for anything else."""
    if not isinstance(data, Data) or not isinstance(data.edge_index, torch.Tensor):
        raise InputError(f"Expected Data with an edge_index, got {type(data).__name__} without. Convert it.")
    edges = edge_list(data.edge_index)
    if edges.dtype != data.edge_index.dtype or data.edge_index.is_neg():  # torch's operators may not support these
        data = copy.copy(data)
        data.edge_index = edges
    return data


class RandomNodeLoader(NodeLoader, torch_geometric.loader.RandomNodeLoader):  # type: ignore[misc]  # PyG is untyped
    """Load the nodes of all types in ``num_parts`` parts, with the edges inside: PyG's ``RandomNodeLoader``.

    With ``shuffle=True``, the parts of an epoch are random. Batches have nodes in the order of the loader, edges by
    destination, and their ids ``n_id`` and ``e_id``.

    Args:
        data: ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``.
        num_parts: number of batches.
        transform: called with each batch.
        **kwargs: arguments of :class:`NodeLoader`, except ``input_nodes`` and ``batch_size``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    @keeps_arguments
    def __init__(
        self, data: PyGData, num_parts: int, *, transform: Callable[..., Any] | None = None, **kwargs: Any
    ) -> None:
        self.num_parts = integer("num_parts", num_parts, 1)
        sampler = NeighborSampler(data, [], subgraph_type="induced")
        num_nodes = sampler.num_nodes
        total = sum(num_nodes.values()) if isinstance(num_nodes, dict) else num_nodes
        batch_size = max(1, -(-total // self.num_parts))
        if kwargs.get("batch_size") == batch_size:
            del kwargs["batch_size"]  # Lightning hands it back
        refuse(kwargs, ("batch_size", "input_nodes", "node_sampler", "seed_parts"), "num_parts defines the batches")
        super().__init__(
            data=data,
            node_sampler=sampler,
            input_nodes=dict.fromkeys(num_nodes) if isinstance(num_nodes, dict) else None,
            transform=transform,
            batch_size=batch_size,
            **kwargs,
        )

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        stores = super()._label(batch, out)
        for into in stores:
            del into["input_id"], into["batch_size"]  # the seeds are all nodes of the batch
        return stores


_TENSORS = ("indptr", "index", "partptr", "node_perm", "edge_perm")
"""Tensors of a partition, in order."""


class ClusterData(torch_geometric.loader.ClusterData):  # type: ignore[misc]  # PyG is untyped
    """Sort the nodes of a graph by cluster: PyG's ``ClusterData``, without torch-sparse and pyg-lib.

    METIS (``pymetis``, on undirected edges) or ``cluster`` assigns nodes to clusters. If a graph has no edges between
    different nodes, or fewer nodes than ``num_parts``, clusters are consecutive nodes. The attributes are copies of the
    data's attributes in the order of the clusters, as in PyG.

    Args:
        data: ``Data`` with ``edge_index``.
        num_parts: number of clusters.
        recursive: partition by recursive bisection.
        save_dir: folder to save the partition in, and to load it from if it exists. A partition of other edges raises
            an error. ``None``: do not save.
        filename: name of the file in this folder.
        log: print the beginning and end of partitioning to stderr.
        keep_inter_cluster_edges: whether ``cluster_data[i]`` has edges to other clusters.
        sparse_format: order of edges, ``"csr"`` by source or ``"csc"`` by destination.
        cluster: ``[num_nodes]`` cluster of each node, from 0 to ``num_parts - 1``. ``None``: use METIS.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph; a saved partition of another graph.
        GraphError: edges with ids out of range.
        MissingExtraError: ``pymetis`` is not installed, without ``cluster``.
    """

    def __init__(
        self,
        data: Data,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: Literal["csr", "csc"] = "csr",
        *,
        cluster: Tensor | None = None,
    ) -> None:
        num_parts = integer("num_parts", num_parts, 1)
        if sparse_format not in ("csr", "csc"):
            raise InputError(f"Expected sparse_format 'csr' or 'csc', got {sparse_format!r}.")
        data, recursive = check_data(data), flag("recursive", recursive)
        if cluster is not None and save_dir is not None:
            raise InputError("Expected save_dir only where METIS partitions, got also cluster. Leave one of them out.")
        if cluster is not None:
            cluster = as_ids("cluster", cluster, num_parts)
            if cluster.numel() != data.num_nodes:
                raise InputError(f"Expected cluster of shape [{data.num_nodes}], got {list(cluster.shape)}.")
        self.num_parts, self.recursive, self.sparse_format = num_parts, recursive, sparse_format
        self.keep_inter_cluster_edges = keep_inter_cluster_edges
        folder = f"part_{num_parts}{'_recursive' if recursive else ''}"
        path = None if save_dir is None else path_of("save_dir", save_dir) / folder / (filename or "metis.pt")
        if path is not None and path.exists():
            self.partition = self._load(data, path)
        else:
            report = log and cluster is None
            if report:
                print("Computing METIS partitioning...", file=sys.stderr)
            check_ids(HOMOGENEOUS_EDGE, "source", plain(data.edge_index)[0], data.num_nodes)
            check_ids(HOMOGENEOUS_EDGE, "destination", plain(data.edge_index)[1], data.num_nodes)
            found = self._metis(data.edge_index, data.num_nodes) if cluster is None else cluster
            self.partition = self._partition(data.edge_index, found.to(data.edge_index.device, torch.int64))
            if report:
                print("Done!", file=sys.stderr)
            if path is not None:
                save_whole(self.partition, path)
        self.data = self._permute_data(data, self.partition)

    def _load(self, data: Data, path: Path) -> Partition:
        partition = load_safely(path, [Partition], "Remove the file.")
        if not _is_partition_of(partition, data, self.num_parts, self.sparse_format):
            raise InputError(
                f"Expected the partition of this graph in {self.num_parts} parts in {self.sparse_format} format in "
                f"{path}, got another. Remove the file, or name another save_dir."
            )
        tensors = [getattr(partition, name).to(data.edge_index.device) for name in _TENSORS]
        return Partition(*tensors, self.sparse_format)

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        """Return the cluster of each node; as in PyG, subclasses may replace it."""
        src, dst = plain(edge_index).cpu().long().numpy()
        found = metis_parts([(src, dst)], len(src), num_nodes, self.num_parts, recursive=self.recursive)
        return torch.from_numpy(found.part)


class ClusterLoader(NodeSetLoader, torch_geometric.loader.ClusterLoader):  # type: ignore[misc]  # PyG is untyped
    """Load subgraphs of ``batch_size`` clusters with all edges inside (arXiv 1905.07953): PyG's ``ClusterLoader``.

    Batches also have ``n_id`` and ``e_id``, ids of nodes and edges in the original data, and ``input_id``, the
    clusters. ``shuffle=True`` combines different clusters in each epoch.

    Args:
        cluster_data: :class:`ClusterData`, or PyG's class.
        **kwargs: arguments of :class:`NodeLoader`, except ``input_nodes``.

    Raises:
        InputError: arguments that do not make sense.
    """

    @keeps_arguments
    def __init__(self, cluster_data: torch_geometric.loader.ClusterData, **kwargs: object) -> None:
        if not isinstance(cluster_data, torch_geometric.loader.ClusterData):
            raise InputError(
                f"Expected cluster_data as ClusterData, got {type(cluster_data).__name__}. Make one of Data."
            )
        self.cluster_data = cluster_data
        partition = cluster_data.partition
        by_source = partition.sparse_format == "csr"
        ends = ptr2index(partition.indptr), partition.index
        data = copy.copy(cluster_data.data)
        data.edge_index = torch.stack(ends if by_source else ends[::-1])
        sampler = ClusterSampler(data, "backward" if by_source else "forward", partition.partptr.cpu())
        super().__init__(data, sampler, len(cluster_data), kwargs)

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        (into,) = super()._label(batch, out)
        partition = self.cluster_data.partition
        masks = (None, None) if self._padding is None else self._padding.masks(out)
        for name, ids, mask in zip(("n_id", "e_id"), (partition.node_perm, partition.edge_perm), masks, strict=True):
            found = ids[getattr(batch, name).to(ids.device)].to(out.node.device)
            into[name] = found if mask is None else found.masked_fill(~mask, 0)
        return [into]


def _is_partition_of(found: object, data: Data, num_parts: int, sparse_format: str) -> bool:
    """Return whether the contents of a file are a partition of these edges."""
    if not isinstance(found, Partition) or found.sparse_format != sparse_format:
        return False
    tensors = [getattr(found, name) for name in _TENSORS]
    if not all(isinstance(x, Tensor) and x.dtype == torch.int64 for x in tensors):
        return False
    sizes = [data.num_nodes + 1, data.num_edges, num_parts + 1, data.num_nodes, data.num_edges]
    if [list(x.shape) for x in tensors] != [[size] for size in sizes]:
        return False
    indptr, index, partptr, node_perm, edge_perm = tensors
    for pointers, count in ((indptr, data.num_edges), (partptr, data.num_nodes)):
        if pointers[0] != 0 or pointers[-1] != count or bool((pointers.diff() < 0).any()):
            return False
    for order in (node_perm, edge_perm):
        if not torch.equal(order.sort().values, torch.arange(order.numel())):
            return False
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < data.num_nodes:
        return False
    ends = node_perm[ptr2index(indptr)], node_perm[index]
    edges = plain(data.edge_index).cpu().long()[:, edge_perm]
    return torch.equal(torch.stack(ends if sparse_format == "csr" else ends[::-1]), edges)
