"""Stages that sample: the layers of a minibatch, the input layer first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from manyhop.loading import next_key
from manyhop.sampling import NodeRequest, SampledSubgraph
from manyhop_dgl.graphbolt._base import functional_datapipe
from manyhop_dgl.graphbolt._functional import compact_csc_format, unique_and_compact_csc_formats
from manyhop_dgl.graphbolt._names import etype_tuple_to_str
from manyhop_dgl.graphbolt._sampled_subgraph import CSCFormatBase, SampledSubgraphImpl
from manyhop_dgl.graphbolt._stages import MiniBatchTransformer
from manyhop_dgl.graphbolt._stages_seeds import begin_nodes


@functional_datapipe("sample_subgraph")
class SubgraphSampler(MiniBatchTransformer):
    """The base of samplers. A subclass defines :meth:`sample_subgraphs`, or :meth:`sampling_stages`.

    Functional name: ``sample_subgraph``.

    Args:
        datapipe: minibatches with ``seed_nodes``, ``node_pairs`` (and negatives) or ``seeds``.
        args: go to :meth:`sampling_stages`, as do ``kwargs``.
    """

    def __init__(self, datapipe: Any, *args: Any, **kwargs: Any) -> None:
        begun = MiniBatchTransformer(datapipe, _begin)
        super().__init__(self.sampling_stages(begun, *args, **kwargs), _end)

    def sampling_stages(self, datapipe: Any) -> Any:
        """Add the stages that sample to a pipe, and return the last one.

        A minibatch has the nodes to begin with as ``_seed_nodes``, their times (or ``None``) as ``_seeds_timestamp``;
        it has to get ``input_nodes`` and ``sampled_subgraphs``.
        """
        return MiniBatchTransformer(datapipe, self._sample)

    def sample_subgraphs(self, seeds: Any, seeds_timestamp: Any) -> tuple[Any, list[Any]]:
        """Sample around nodes.

        Args:
            seeds: ``[num_nodes]``, or those by node type.
            seeds_timestamp: their times, ``[num_nodes]``; ``None`` without.

        Returns:
            The input nodes, and the layers, the input layer first.
        """
        raise NotImplementedError

    def _sample(self, minibatch: Any) -> Any:
        seeds, times = minibatch._seed_nodes, minibatch._seeds_timestamp
        minibatch.input_nodes, minibatch.sampled_subgraphs = self.sample_subgraphs(seeds, times)
        return minibatch


def _begin(minibatch: Any) -> Any:
    minibatch._seed_nodes, minibatch._seeds_timestamp = begin_nodes(minibatch)
    return minibatch


def _end(minibatch: Any) -> Any:
    del minibatch._seed_nodes, minibatch._seeds_timestamp
    return minibatch


@functional_datapipe("sample_neighbor")
class NeighborSampler(SubgraphSampler):
    """Samples neighbours of all nodes of a layer, layer by layer. Functional name: ``sample_neighbor``.

    Args:
        datapipe: minibatches with ``seed_nodes``, ``node_pairs`` (and negatives) or ``seeds``.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its methods.
        fanouts: edges per node and layer, the input layer first: an integer, ``[1]`` (counts for all edge types
            together) or ``[num_edge_types]`` integers; -1: all.
        replace: sample with replacement.
        prob_name: edge attribute with weights (floating-point) or a mask (bool) of the edges.
        deduplicate: number each node of a layer once; ``False``: once for each edge that leads to it.
        sampler: ``sampler(nodes, fanout, replace, prob_name)`` samples one layer; ``None``: ``graph.sample_neighbors``.

    Raises:
        InputError: (also at a batch) an argument does not make sense.
    """

    _one_layer = "sample_neighbors"
    _all_layers = "spec"

    def __init__(
        self,
        datapipe: Any,
        graph: Any,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        sampler: Callable[..., Any] | None = None,
    ) -> None:
        if not fanouts:
            raise InputError("Expected at least one fan-out, one per layer, got none.")
        super().__init__(datapipe, graph, fanouts, replace, prob_name, deduplicate, sampler)

    def sampling_stages(  # type: ignore[override]  # as in DGL
        self,
        datapipe: Any,
        graph: Any,
        fanouts: Sequence[int | Tensor],
        replace: bool,
        prob_name: str | None,
        deduplicate: bool,
        sampler: Callable[..., Any] | None,
    ) -> Any:
        """One stage for all layers."""
        given = getattr(graph, "sample_neighbors", None)
        if sampler is None or sampler == given:
            sampler = getattr(graph, self._one_layer)
        knows_layers = sampler == getattr(graph, self._one_layer) and hasattr(graph, "topology_for")
        tensors = [f if isinstance(f, Tensor) else torch.tensor([int(f)]) for f in fanouts]
        if knows_layers and deduplicate and len({f.numel() for f in tensors}) == 1:
            step: Any = AllLayers(graph, tensors, replace, prob_name, self._all_layers)
        else:
            step = partial(_layer_by_layer, graph, tensors, replace, prob_name, deduplicate, sampler)
        return MiniBatchTransformer(datapipe, step)


@functional_datapipe("sample_layer_neighbor")
class LayerNeighborSampler(NeighborSampler):
    """Samples neighbours so that the nodes of a layer choose the same ones where they can (arXiv 2210.13339, appendix
    A.3: exactly as many per node as :class:`NeighborSampler`). Functional name: ``sample_layer_neighbor``.

    Args:
        datapipe: minibatches with ``seed_nodes``, ``node_pairs`` (and negatives) or ``seeds``.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its methods.
        fanouts: as for :class:`NeighborSampler`.
        replace: sample with replacement.
        prob_name: edge attribute with weights (floating-point) or a mask (bool) of the edges.
        deduplicate: number each node of a layer once; ``False``: once for each edge that leads to it.
    """

    _one_layer = "sample_layer_neighbors"
    _all_layers = "layer_spec"

    def __init__(
        self,
        datapipe: Any,
        graph: Any,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
    ) -> None:
        super().__init__(datapipe, graph, fanouts, replace, prob_name, deduplicate)


@functional_datapipe("sample_in_subgraph")
class InSubgraphSampler(SubgraphSampler):
    """Takes all edges that lead to the nodes, as one layer. Functional name: ``sample_in_subgraph``.

    Args:
        datapipe: minibatches with ``seed_nodes``, ``node_pairs`` (and negatives) or ``seeds``.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its methods.
    """

    def __init__(self, datapipe: Any, graph: Any) -> None:
        super().__init__(datapipe)
        self.graph = graph

    def sample_subgraphs(self, seeds: Any, seeds_timestamp: Any) -> tuple[Any, list[Any]]:
        """All in-edges of ``seeds``; their times do not matter."""
        layer = _compacted(self.graph.in_subgraph(seeds), seeds, deduplicate=True)
        return layer.original_row_node_ids, [layer]


@functional_datapipe("temporal_sample_neighbor")
class TemporalNeighborSampler(SubgraphSampler):
    """Samples neighbours from before the time of the seed (``minibatch.timestamp``) that led to them; each edge leads
    to a row of its own. Functional name: ``temporal_sample_neighbor``.

    Args:
        datapipe: minibatches with ``timestamp``.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its methods.
        fanouts: as for :class:`NeighborSampler`.
        replace: sample with replacement.
        prob_name: edge attribute with a mask (bool) of the edges.
        node_timestamp_attr_name: node attribute with the times of nodes.
        edge_timestamp_attr_name: edge attribute with the times of edges.

    Raises:
        InputError: (at a batch) the minibatch has no ``timestamp``.
    """

    def __init__(
        self,
        datapipe: Any,
        graph: Any,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
    ) -> None:
        super().__init__(datapipe)
        self.graph = graph
        self.fanouts = [f if isinstance(f, Tensor) else torch.tensor([int(f)]) for f in fanouts]
        self._arguments = (replace, prob_name, node_timestamp_attr_name, edge_timestamp_attr_name)

    def sample_subgraphs(self, seeds: Any, seeds_timestamp: Any) -> tuple[Any, list[Any]]:
        """Sample around ``seeds``, from before their times."""
        if seeds_timestamp is None:
            raise InputError(
                "Expected minibatches with a timestamp for temporal sampling, got one without. Name an item of the "
                "ItemSet 'timestamp'."
            )
        seeds, times = _with_all_types(self.graph, seeds), _with_all_types(self.graph, seeds_timestamp)
        layers: list[Any] = []
        for fanout in reversed(self.fanouts):
            sampled = self.graph.temporal_sample_neighbors(seeds, times, fanout, *self._arguments)
            rows, csc, times = compact_csc_format(sampled.sampled_csc, seeds, times)
            layers.insert(0, SampledSubgraphImpl(csc, seeds, rows, sampled.original_edge_ids))
            seeds = rows
        return seeds, layers


class AllLayers:
    """Samples all layers by one call of the engine, and cuts them apart.

    Args:
        graph: the graph.
        fanouts: per layer ``[1]`` or ``[num_edge_types]``, the input layer first.
        replace: sample with replacement.
        prob_name: edge attribute with weights or a mask.
        method: of the graph's topology, which says how to sample.
    """

    def __init__(
        self, graph: Any, fanouts: Sequence[Tensor], replace: bool, prob_name: str | None, method: str
    ) -> None:
        self._graph, self._fanouts, self._prob_name = graph, fanouts, prob_name
        self._replace, self._method = replace, method
        self._known: tuple[Any, torch.device, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_known": None}

    def ask(self, minibatch: Any) -> Asked:
        """What to sample for a minibatch, and with what."""
        seeds = minibatch._seed_nodes
        some = next(iter(seeds.values())) if isinstance(seeds, dict) else seeds
        topology, sampler = self._sampler(some.device)
        return Asked(topology, sampler, NodeRequest(key=next_key(), seeds=topology.seeds(seeds)))

    def _sampler(self, device: torch.device) -> tuple[Any, Any]:
        """The topology of the graph as it is now, and a sampler for it."""
        known = self._known
        if known is not None:
            current = self._graph.topology(fused=known[0].fused, probs_name=self._prob_name)
            if known[0] is current and known[1] == device:
                return current, known[2]
        topology = self._graph.topology_for(self._fanouts, self._prob_name)
        spec = getattr(topology, self._method)(self._fanouts, replace=self._replace)
        self._known = topology, device, topology.sampler(spec, device)
        return topology, self._known[2]

    def answer(self, minibatch: Any, asked: Asked, sample: Any) -> Any:
        """Put what was sampled into the minibatch."""
        by_type = asked.topology.by_type(sample)
        layers = layers_of(by_type, with_ids=asked.topology.has_original_edge_ids)
        minibatch.input_nodes, minibatch.sampled_subgraphs = layers[0].original_row_node_ids, layers
        return minibatch

    def __call__(self, minibatch: Any) -> Any:
        asked = self.ask(minibatch)
        return self.answer(minibatch, asked, asked.sampler.sample(asked.request))


class Asked(NamedTuple):
    """What to sample for a minibatch."""

    topology: Any
    sampler: Any
    request: NodeRequest


def layers_of(sample: SampledSubgraph, *, with_ids: bool) -> list[SampledSubgraphImpl]:
    """The layers of a sample whose hops ask for all nodes so far, the input layer first.

    Args:
        sample: from seeds to inputs; its tensors are not copied.
        with_ids: whether edges have ids.
    """
    nodes, edges = sample.num_sampled_nodes, sample.num_sampled_edges
    assert nodes is not None
    assert edges is not None
    num_hops = len(next(iter(nodes.values()))) - 1
    hetero = tuple(sample.node) != (HOMOGENEOUS_NODE,)
    counts = dict.fromkeys(sample.node, 0)
    starts = dict.fromkeys(sample.row, 0)
    columns: dict[str, Tensor] = {}
    layers: list[SampledSubgraphImpl] = []
    for hop in range(num_hops + 1):
        for ntype in counts:
            counts[ntype] += nodes[ntype][hop]
        rows = {ntype: sample.node[ntype][:n] for ntype, n in counts.items()}
        if hop > 0:
            csc, ids = {}, {}
            for edge_type, begin in starts.items():
                end = starts[edge_type] = begin + edges[edge_type][hop - 1]
                name = etype_tuple_to_str(edge_type)
                indptr = _indptr(sample.col[edge_type][begin:end], columns[edge_type[2]].numel())
                csc[name] = CSCFormatBase.trusted(indptr, sample.row[edge_type][begin:end])
                if with_ids:
                    edge_id = sample.edge_id[edge_type]
                    assert edge_id is not None
                    ids[name] = edge_id[begin:end]
            layers.insert(0, _layer(csc, columns, rows, ids if with_ids else None, hetero))
        columns = rows
    return layers


def _layer(csc: Any, columns: Any, rows: Any, ids: Any, hetero: bool) -> SampledSubgraphImpl:
    if hetero:
        return SampledSubgraphImpl(csc, columns, rows, ids)
    name = etype_tuple_to_str(HOMOGENEOUS_EDGE)
    node = HOMOGENEOUS_NODE
    return SampledSubgraphImpl(csc[name], columns[node], rows[node], ids and ids[name])


def _indptr(col: Tensor, num_columns: int) -> Tensor:
    """``[num_columns + 1] int64``: where each column begins among the ascending ``col``."""
    indptr: Tensor = torch._convert_indices_from_coo_to_csr(col, num_columns)
    return indptr


def _layer_by_layer(
    graph: Any,
    fanouts: Sequence[Tensor],
    replace: bool,
    prob_name: str | None,
    deduplicate: bool,
    sampler: Callable[..., Any],
    minibatch: Any,
) -> Any:
    """Sample with what samples one layer, and number its nodes."""
    seeds = _with_all_types(graph, minibatch._seed_nodes)
    layers: list[Any] = []
    for fanout in reversed(fanouts):
        layers.insert(0, _compacted(sampler(seeds, fanout, replace, prob_name), seeds, deduplicate))
        seeds = layers[0].original_row_node_ids
    minibatch.input_nodes, minibatch.sampled_subgraphs = seeds, layers
    return minibatch


def _compacted(sampled: Any, columns: Any, deduplicate: bool) -> SampledSubgraphImpl:
    """A layer whose rows are nodes of the graph, with positions instead."""
    number = unique_and_compact_csc_formats if deduplicate else compact_csc_format
    rows, csc = number(sampled.sampled_csc, columns)
    return SampledSubgraphImpl(csc, columns, rows, sampled.original_edge_ids)


def _with_all_types(graph: Any, values: Any) -> Any:
    """Nodes, or their times, of all node types of the graph: none where there are no seeds."""
    if not isinstance(values, Mapping):
        return values
    some = next(iter(values.values()))
    return {ntype: values.get(ntype, some.new_empty(0)) for ntype in graph.node_type_to_id}
