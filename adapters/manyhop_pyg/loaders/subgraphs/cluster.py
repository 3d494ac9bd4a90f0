"""The loader of Cluster-GCN, and the data that is partitioned for it."""

from __future__ import annotations

import copy
from typing import Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.index import ptr2index
from torch_geometric.loader.cluster import Partition

from manyhop.arguments import as_ids, flag, integer
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop.graph.build import check_ids
from manyhop.graph.metis import metis_parts
from manyhop_pyg.data.convert import plain
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.loaders.subgraphs.node_sets import NodeSetLoader, check_data
from manyhop_pyg.samplers.node_sets import ClusterSampler
from manyhop_pyg.typing import Attributes, Batch, Sample


class ClusterData(torch_geometric.loader.ClusterData):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``ClusterData``, without torch-sparse and pyg-lib: the nodes of a graph in clusters, one after the other.

    METIS (by ``pymetis``; without directions of edges), or ``cluster``, assigns nodes to clusters. Of a graph without
    edges between different nodes, or with fewer nodes than ``num_parts``, each cluster has consecutive nodes. The
    attributes are copies of the data's, in the order of the clusters, as in PyG.

    Args:
        data: ``Data`` with ``edge_index``.
        num_parts: number of clusters.
        recursive: partition by recursive bisection.
        save_dir: folder where the partition is kept, and read from if it is there; ``None``: nowhere.
        filename: of the partition in that folder.
        log: report on stderr when partitioning begins and ends.
        keep_inter_cluster_edges: whether ``cluster_data[i]`` has edges to other clusters.
        sparse_format: ``"csr"``: edges by source; ``"csc"``: by destination.
        cluster: ``[num_nodes]`` the cluster of each node, from 0 to ``num_parts - 1``; ``None``: METIS partitions.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: edges that lead to nodes that there are not.
        MissingExtraError: there is no ``cluster``, and ``pymetis`` is not installed.
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
            raise InputError("Expected save_dir only where METIS partitions, got cluster, too. Leave one of them out.")
        if cluster is not None:
            cluster = as_ids("cluster", cluster, num_parts)
            if cluster.numel() != data.num_nodes:
                raise InputError(f"Expected cluster of shape [{data.num_nodes}], got {list(cluster.shape)}.")
        self._cluster = cluster
        with torch.serialization.safe_globals([Partition]):  # which PyG's way of loading a file warns about
            super().__init__(
                data,
                num_parts,
                recursive,
                save_dir,
                filename,
                log and cluster is None,
                keep_inter_cluster_edges,
                sparse_format,
            )
        del self._cluster

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        """The cluster of each node."""
        src, dst = plain(edge_index)
        check_ids(HOMOGENEOUS_EDGE, "source", src, num_nodes)
        check_ids(HOMOGENEOUS_EDGE, "destination", dst, num_nodes)
        if self._cluster is not None:
            return self._cluster.to(edge_index.device, torch.int64)
        ends = src.cpu().long().numpy(), dst.cpu().long().numpy()
        found = metis_parts([ends], src.numel(), num_nodes, self.num_parts, recursive=self.recursive)
        return torch.from_numpy(found.part).to(edge_index.device)


class ClusterLoader(NodeSetLoader, torch_geometric.loader.ClusterLoader):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``ClusterLoader``: subgraphs of ``batch_size`` clusters, with the edges between them (arXiv 1905.07953).

    Batches are PyG's, with the ids of nodes and edges in the data that was partitioned as ``n_id`` and ``e_id``, and
    the clusters as ``input_id``. ``shuffle=True`` draws other clusters together in each epoch.

    Args:
        cluster_data: :class:`ClusterData`, or PyG's.
        **kwargs: of :class:`NodeLoader` but for ``input_nodes``, and of torch's ``DataLoader``.

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
