"""PyG's sampler interface over the engine: any PyG loader can use these samplers, also in worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.base import DataType, NumNeighbors, SubgraphType

from manyhop.arguments import flag, flags
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading import next_key
from manyhop.sampling import BatchKey, EdgeSampler, NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling.seed_edges import sample_together
from manyhop_pyg.data.convert import Topology, build_topology, claim_place, read_data
from manyhop_pyg.samplers.requests import SeedRequests, host_engine, node_metadata, seeds_of
from manyhop_pyg.samplers.seeds import SeedEdges, columns_of_edges, finish_seed_edges
from manyhop_pyg.samplers.spec import as_num_neighbors, read_fanouts, reverse_types
from manyhop_pyg.typing import PyGData, Sample


class EngineSampler(BaseSampler):  # type: ignore[misc]  # PyG is untyped
    """A sampler whose engine is built anew in each process."""

    topology: Topology
    gpu_samplings: dict[Hashable, object]
    """Created and shared by the loaders of this sampler."""

    def _rebuild(self) -> None:
        """Build the engine for the current settings."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, object]:
        made_anew = ("engine", "seed_edges", "gpu_samplings")
        return {name: value for name, value in self.__dict__.items() if name not in made_anew}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.gpu_samplings = {}
        self._rebuild()


def _subgraph_type(value: object) -> SubgraphType:
    try:
        return SubgraphType(value)
    except ValueError:
        raise InputError(
            f"Expected subgraph_type 'directional', 'bidirectional' or 'induced', got {value!r}."
        ) from None


def _strategy(value: object) -> object:
    if value not in ("uniform", "last"):
        raise InputError(f"Expected temporal_strategy 'uniform' or 'last', got {value!r}.")
    return value


_SETTINGS: dict[str, Callable[[Any], object]] = {
    "num_neighbors": as_num_neighbors,
    "subgraph_type": _subgraph_type,
    "replace": partial(flag, "replace"),
    "disjoint": partial(flag, "disjoint"),
    "temporal_strategy": _strategy,
    "keep_orig_edges": partial(flag, "keep_orig_edges"),
}
"""Attributes of a sampler that may be set later, and what converts their values."""


class NeighborSampler(EngineSampler):
    """Sample neighbours, hop by hop: PyG's ``NeighborSampler``, without pyg-lib or torch-sparse.

    It is a PyG ``BaseSampler``: pass it to any loader as ``node_sampler``, ``link_sampler`` or ``neighbor_sampler``.
    ``edge`` of its outputs holds the user's edge ids, so ``edge_permutation`` is ``None``. ``num_neighbors``,
    ``subgraph_type``, ``replace``, ``disjoint`` and ``temporal_strategy`` may be set later.

    Args:
        data: ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``.
        num_neighbors: neighbours per node and hop (-1: all, 0: none); a list, or lists by edge type.
        subgraph_type: ``"directional"`` (the sampled edges), ``"bidirectional"`` (and their reverses) or ``"induced"``
            (all edges among the sampled nodes).
        replace: sample with replacement.
        disjoint: create one tree per seed; always with times.
        temporal_strategy: ``"uniform"`` or ``"last"``: choice among the neighbours that are early enough.
        time_attr: name of the attribute with times of nodes ``[num_nodes]`` or edges ``[num_edges]``.
        weight_attr: name of the attribute with edge weights ``[num_edges]``. Neighbours are drawn in proportion to
            them, with times among those that are early enough. Not with ``temporal_strategy="last"``.
        is_sorted: whether edges are sorted by destination (and time); this is checked.
        share_memory: move the topology to shared memory, for spawned worker processes.
        directed: deprecated; ``False`` means ``subgraph_type="induced"``.
        sample_direction: ``"forward"`` samples sources of edges, ``"backward"`` destinations.
        time_window: with times, exclude edges earlier than the seed's time minus this number.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: a topology, times or weights that are wrong.
    """

    def __init__(
        self,
        data: PyGData,
        num_neighbors: NumNeighbors | list[int] | dict[EdgeType, list[int]],
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: Literal["forward", "backward"] = "forward",
        *,
        time_window: float | None = None,
    ) -> None:
        flags(is_sorted=is_sorted, share_memory=share_memory, directed=directed)
        if hasattr(self, "_sample"):  # of PyG's class
            raise InputError(
                f"Expected {type(self).__name__} to override sample_from_nodes or sample_from_edges, got its own "
                "_sample, which is not called. Change the result of these."
            )
        if sample_direction not in ("forward", "backward"):
            raise InputError(f"Expected sample_direction 'forward' or 'backward', got {sample_direction!r}.")
        raw = read_data(data)
        self.data_type = DataType.from_data(data)
        self.sample_direction = sample_direction
        self.topology = build_topology(
            raw,
            time_attr=time_attr,
            weight_attr=weight_attr,
            is_sorted=is_sorted,
            backward=sample_direction == "backward",
        )
        claim_place(data, self.topology)
        self.requests = SeedRequests(self.topology, time_window)
        self.time_window = self.requests.window
        self._weighted = weight_attr is not None
        if not directed:
            warnings.warn(
                "The usage of the 'directed' argument is deprecated. Use `subgraph_type='induced'` instead.",
                stacklevel=2,
            )
        given = num_neighbors, subgraph_type if directed else "induced", replace, disjoint, temporal_strategy, False
        for name, value in zip(_SETTINGS, given, strict=True):
            setattr(self, name, value)
        self.gpu_samplings = {}
        if share_memory:
            share_topology(self.topology)
        self._rebuild()

    def _rebuild(self) -> None:
        if self.is_temporal:
            self.__dict__["disjoint"] = True
        self.adds_reverses = self.keep_orig_edges and self.subgraph_type == SubgraphType.bidirectional
        kind = SubgraphType.directional if self.adds_reverses else self.subgraph_type
        self.spec = NeighborSpec(
            fanouts=read_fanouts(self.num_neighbors, self.topology),
            replace=self.replace,
            weighted=self._weighted,
            temporal=self.temporal_strategy if self.is_temporal else None,
            disjoint=self.disjoint,
            subgraph=kind.value,
            reverse=reverse_types(self.topology) if kind == SubgraphType.bidirectional else None,
        )
        self.engine = host_engine(self.topology.graph, self.spec)
        self.seed_edges = SeedEdges(self.topology, partial(EdgeSampler, self.engine, disjoint=self.disjoint))
        """The engine's samplers around seed edges."""

    def sample_from_nodes(self, index: NodeSamplerInput) -> Sample:
        """Sample around seed nodes; ``metadata`` of the result is ``(input_id, time)``."""
        out = self.node_output(self.engine.sample(self.node_request(index, next_key())))
        out.metadata = node_metadata(index, index.input_id, index.time)
        return out

    def node_request(self, index: NodeSamplerInput, key: BatchKey) -> NodeRequest:
        """Return the engine's request for seed nodes."""
        return self.requests.of_nodes(*seeds_of(index), key)

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        *,
        exclude_true: bool = False,
        exclude: Mapping[EdgeType, Tensor] | None = None,
    ) -> Sample:
        """Sample around the endpoints of seed edges and of negatives drawn for them.

        Args:
            index: the seed edges.
            neg_sampling: negatives; ``None``: none.
            exclude_true: never draw an edge of the graph as a negative.
            exclude: edge type of the graph -> ``[n] int64`` ids of edges to exclude.

        Returns:
            A sample with ``metadata``: ``(input_id, edge_label_index, edge_label, time)``, for triplets
            ``(input_id, src_index, dst_pos_index, dst_neg_index, time)``.

        Raises:
            InputError: seeds or negatives that do not fit the graph.
        """
        samplers = self.seed_edges.of(index, neg_sampling, exclude_true=exclude_true)
        edge_types = [sampler.edge_type for sampler in samplers]
        requests = self.requests.of_edges(index, edge_types, next_key(), neg_sampling, exclude=exclude)
        sampled, seed_edges = sample_together(samplers, requests)
        metadata = finish_seed_edges(index, sampled, seed_edges, neg_sampling, columns_of_edges(index))
        out = self.node_output(sampled[0].subgraph)
        out.metadata = metadata
        return out

    def node_output(self, sample: SampledSubgraph) -> Sample:
        """Convert the engine's sample to PyG's."""
        out = to_sampler_output(sample, self.topology)
        return out.to_bidirectional(keep_orig_edges=True) if self.adds_reverses else out

    # Attributes of PyG's sampler.

    num_neighbors: NumNeighbors
    """Neighbours per node, hop by hop; ``len()`` is the number of hops."""
    subgraph_type: SubgraphType
    replace: bool
    disjoint: bool
    """Whether each seed has its own tree; always with times."""
    temporal_strategy: Literal["uniform", "last"]
    keep_orig_edges: bool
    """Whether bidirectional batches keep the sampled edges as ``_orig_edge_index``."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; sample by new settings."""
        convert = _SETTINGS.get(name)
        super().__setattr__(name, value if convert is None else convert(value))
        if convert is not None and "engine" in vars(self):
            self._rebuild()

    @property
    def is_hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return self.topology.hetero

    @property
    def is_temporal(self) -> bool:
        """Whether neighbours are restricted by time."""
        return self.topology.is_temporal

    @property
    def num_nodes(self) -> int | dict[NodeType, int]:
        """Number of nodes; by node type in heterogeneous graphs."""
        num_nodes = self.topology.graph.num_nodes
        return dict(num_nodes) if self.is_hetero else num_nodes[HOMOGENEOUS_NODE]

    @property
    def node_types(self) -> list[NodeType | None]:
        """Node types; ``[None]`` without types."""
        return list(self.topology.graph.node_types) if self.is_hetero else [None]

    @property
    def edge_types(self) -> list[EdgeType | None]:
        """Edge types as the user has them; ``[None]`` without types."""
        return list(self.topology.user_edge_type.values()) if self.is_hetero else [None]

    @property
    def node_time(self) -> Tensor | dict[NodeType, Tensor] | None:
        """Times of the nodes, as given."""
        times = self.topology.node_time
        return times if self.is_hetero and times else times.get(HOMOGENEOUS_NODE)

    @property
    def edge_time(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """Times of the edges, as given."""
        times = self.topology.edge_time
        return times if self.is_hetero and times else times.get(HOMOGENEOUS_EDGE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_neighbors={self.num_neighbors.values})"


def share_topology(topology: Topology) -> None:
    """Move the tables into shared memory, in place."""
    for tensor in topology.graph.tables():
        tensor.share_memory_()  # type: ignore[no-untyped-call]


def to_sampler_output(sample: SampledSubgraph, topology: Topology) -> SamplerOutput | HeteroSamplerOutput:
    """Rename types, turn the edges of backward sampling, and keep the user's dtype of indices.

    ``edge`` holds the user's edge ids, so no permutation is left to apply.
    """
    dtype = topology.index_dtype
    if not topology.hetero:
        t = HOMOGENEOUS_EDGE
        row, col = _ends(sample, t, dtype, topology.backward)
        return SamplerOutput(
            node=_of(sample.node[HOMOGENEOUS_NODE], dtype),
            row=row,
            col=col,
            edge=sample.edge_id[t],
            batch=None if sample.tree is None else _of(sample.tree[HOMOGENEOUS_NODE], dtype),
            num_sampled_nodes=None if sample.num_sampled_nodes is None else sample.num_sampled_nodes[HOMOGENEOUS_NODE],
            num_sampled_edges=None if sample.num_sampled_edges is None else sample.num_sampled_edges[t],
        )
    user, edges = topology.user_edge_type, sample.num_sampled_edges
    rows: dict[EdgeType, Tensor] = {}
    cols: dict[EdgeType, Tensor] = {}
    for t, name in user.items():
        rows[name], cols[name] = _ends(sample, t, dtype, topology.backward)
    return HeteroSamplerOutput(
        node={k: _of(v, dtype) for k, v in sample.node.items()},
        row=rows,
        col=cols,
        edge={name: sample.edge_id[t] for t, name in user.items()},
        batch=None if sample.tree is None else {k: _of(v, dtype) for k, v in sample.tree.items()},
        num_sampled_nodes=sample.num_sampled_nodes,
        num_sampled_edges=None if edges is None else {user[t]: counts for t, counts in edges.items()},
    )


def _of(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values if values.dtype == dtype else values.to(dtype)  # a call costs more than a look


def _ends(sample: SampledSubgraph, t: EdgeType, dtype: torch.dtype, backward: bool) -> tuple[Tensor, Tensor]:
    row, col = sample.row[t], sample.col[t]
    if dtype != torch.int64:
        row, col = sample.edge_index(t).to(dtype)
    return (col, row) if backward else (row, col)
