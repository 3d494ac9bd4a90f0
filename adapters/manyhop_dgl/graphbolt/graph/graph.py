"""The graph that GraphBolt's samplers work on: one CSC for all node and edge types."""

from __future__ import annotations

import textwrap
from typing import Self

import torch

from manyhop.features import is_pinned
from manyhop.stores import TopologyPlace
from manyhop.system.copying import to_device
from manyhop_dgl.graphbolt.features.pinning import pinned
from manyhop_dgl.graphbolt.graph.fused_csc import ATTRIBUTES
from manyhop_dgl.graphbolt.graph.sampling import Sampling
from manyhop_dgl.graphbolt.graph.shared import copy_to_shared_memory


class SamplingGraph:
    """What all graphs for sampling share."""

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """How many nodes there are; by type in a heterogeneous graph."""
        raise NotImplementedError

    @property
    def num_edges(self) -> int | dict[str, int]:
        """How many edges there are; by type in a heterogeneous graph."""
        raise NotImplementedError

    def copy_to_shared_memory(self, shared_memory_name: str) -> SamplingGraph:
        """Copy the graph into memory that other processes can open by name."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> SamplingGraph:
        """Return a copy on another device."""
        raise NotImplementedError


class FusedCSCSamplingGraph(Sampling, SamplingGraph):
    """A graph whose edges are grouped by destination, those of all types in one table.

    Nodes of one type have consecutive ids.

    Made by :func:`fused_csc_sampling_graph` and :func:`from_dglgraph`. The tensors can be replaced and written to at
    any time; the tables that samplers use follow when they are next asked for.

    Attributes:
        csc_indptr: ``[num_nodes + 1]`` integer: where the edges of each node begin.
        indices: ``[num_edges]`` integer: source node of each edge.
        node_type_offset: ``[num_node_types + 1]`` integer: where the nodes of each type begin; ``None``: one type.
        type_per_edge: ``[num_edges]`` integer: edge type id of each edge; ``None``: one type.
        node_type_to_id: node type -> its number.
        edge_type_to_id: edge type ``"source:relation:destination"`` -> its number.
        node_attributes: name -> ``[num_nodes, ...]``.
        edge_attributes: name -> ``[num_edges, ...]``, in the order of ``indices``.
        topology_place: where loaders on GPUs read the topology; ``None``: where each of them decides.
    """

    def copy_to_shared_memory(self, shared_memory_name: str) -> FusedCSCSamplingGraph:
        """Copy the graph into memory that other processes open with :func:`load_from_shared_memory`.

        The name is free again when the copy is gone, or the process that made it.

        Args:
            shared_memory_name: any name without a slash; it belongs to this machine and user.

        Raises:
            InputError: the name is taken, or the graph lies on a GPU.
            CapacityError: there is not enough shared memory.
        """
        return copy_to_shared_memory(self, shared_memory_name)

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on another device, or in pinned memory (``"pinned"``)."""
        return self._map(lambda x: to_device(x, device, "edges"))

    def pin_memory_(self) -> Self:
        """Pin the memory of all tensors for GPUs to read, in place, or in copies below 64 MiB; return the graph.

        Raises:
            InputError: there is no GPU.
            CapacityError: the system does not let this process pin as much memory.
        """
        self.__dict__.update(self._map(pinned).__getstate__())
        return self

    def is_pinned(self) -> bool:
        """Return whether a GPU can read all tensors directly."""
        return all(tensor.device.type == "cpu" and is_pinned(tensor) for tensor in self.tensors())

    def __repr__(self) -> str:
        parts = [f"csc_indptr={self.csc_indptr}", f"indices={self.indices}"]
        parts.append(f"total_num_nodes={self.total_num_nodes}, num_edges={self.num_edges}")
        for name in ("node_type_offset", "type_per_edge", "node_type_to_id", "edge_type_to_id", *ATTRIBUTES):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)}")
        title, text = type(self).__name__, ",\n".join(parts)
        return textwrap.indent(f"{title}({text},)", " " * (len(title) + 1)).strip()


torch.serialization.add_safe_globals(
    [FusedCSCSamplingGraph, TopologyPlace]
)  # a graph saved by torch.save loads with weights_only=True
