"""``pad="auto"``: minibatches of fixed sizes, so that a training step is captured in a CUDA graph, or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading.padding import Pad, check_pad_option, lengthened, mask_of
from manyhop.loading.pipeline import Counts, Padded, Padder, pad_sizes
from manyhop.sampling import SampledSubgraph
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.subgraph import SampledSubgraphImpl
from manyhop_graphbolt.graph.topology import Topology
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.loader.chain import Chain, Sampled, Sampling
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.sampling import begin_nodes, layers_of, put_layers
from manyhop_graphbolt.stages.stage import CopyTo, SeedEdgesExcluder, edges_to_exclude, is_ours
from manyhop_graphbolt.types import Nodes, Pipe, as_given, by_type, ends_of, etype_str_to_tuple, etype_tuple_to_str

_IDS = ("seeds", "labels", "indexes", "timestamp")
_MARGIN = 0.1

Sizes = dict[str | None, int]
"""Type of seeds -> rows; of untyped ones, ``None``."""


def check_pad(pad: Pad | None, chain: Chain) -> None:
    """Raise InputError if the minibatches of a chain cannot be padded."""
    check_pad_option(pad)
    if pad is None:
        return
    if chain.sampling is None:
        raise InputError(
            "Expected sample_neighbor or sample_layer_neighbor in a chain with pad='auto', got neither. Leave pad out."
        )
    excluder = _excluder_of(chain.sampling)
    for stage in chain.sampling.after:
        if is_ours(stage) and not isinstance(stage, FeatureFetcher | CopyTo) and stage is not excluder:
            raise InputError(
                "Expected only fetch_feature and copy_to after sampling with pad='auto', and exclude_seed_edges before "
                f"these, got a {type(stage).__name__}, which changes sizes. Leave one of them out."
            )


def _excluder_of(sampling: Sampling) -> SeedEdgesExcluder | None:
    """Return the stage right after sampling that excludes seed edges, before minibatches are padded."""
    first = next(iter(sampling.after), None)
    return first if isinstance(first, SeedEdgesExcluder) else None


class Padding:
    """How the minibatches of one loader are padded. Safe to call from multiple threads."""

    def __init__(
        self, sampling: Sampling, samples: Sequence[Sampled], batch_size: int, device: torch.device | None
    ) -> None:
        self._sampling, self._excluder = sampling, _excluder_of(sampling)
        seeds_of = [by_type(one.item.seeds) for one in samples]
        kind, first = next(iter(seeds_of[0].items()))
        alone = len(seeds_of[0]) == 1  # all full minibatches have as many seeds then
        counts = [Counts.of(one.topology.by_type(one.sample)) for one in samples]
        seeds: dict[NodeType, int] | None = None
        if alone and first.dim() == 1:
            seeds = {t: batch_size if t == (kind or HOMOGENEOUS_NODE) else 0 for t in counts[0].nodes}
        self.sizes = pad_sizes(counts, seeds=seeds, empty=_empty_types(sampling.stage.graph))
        self._pad = Padder(self.sizes, num_trees=batch_size, device=device)
        most = Sizes()
        for one in seeds_of:
            most |= {t: max(len(ids), most.get(t, 0)) for t, ids in one.items()}
        self._links = {t: n if alone else int(n * (1 + _MARGIN)) + 1 for t, n in most.items()}

    def answer(self, minibatches: Sequence[MiniBatch], topology: Topology, samples: Sequence[SampledSubgraph]) -> None:
        """Add padded samples to minibatches; on a GPU, all of them by one kernel."""
        by_kind = [topology.by_type(sample) for sample in samples]
        if self._excluder is not None:
            both = zip(minibatches, by_kind, strict=True)
            by_kind = [_without_seed_edges(self._excluder, *one) for one in both]
        padded = self._pad(by_kind)
        layers = layers_of([one.sample for one in padded], with_ids=topology.has_original_edge_ids)
        put_layers(minibatches, layers)
        for minibatch, own, one in zip(minibatches, layers, padded, strict=True):
            _mark(minibatch, own, one)
            self._pad_seeds(minibatch, one)

    @property
    def replaced(self) -> tuple[Pipe, Callable[[Any], object]]:
        """The stage that samples, and the function that samples and pads instead."""
        return self._sampling.stage, self._sample

    def _sample(self, minibatch: MiniBatch) -> MiniBatch:
        topology, sample = self._sampling.stage.draw(begin_nodes(minibatch)[0])
        self.answer([minibatch], topology, [sample])
        return minibatch

    def _pad_seeds(self, minibatch: MiniBatch, padded: Padded) -> None:
        """Pad the values per seed: nodes to the number of columns of the last layer, links to fixed numbers."""
        spare = {t: blocks[0] - 1 for t, blocks in padded.sizes.nodes.items()}  # the last column of a type is padding
        seeds, sizes = by_type(minibatch.seeds), Sizes()
        for t, ids in seeds.items():
            n, least = len(ids), min(spare[end] for end in _ends(t, ids))  # -1: without padding
            sizes[t] = least + 1 if ids.dim() == 1 else n if least < 0 else _grown(self._links.get(t, n), n)
        for name in (*_IDS, "compacted_seeds"):
            filled = {}
            for t, part in by_type(getattr(minibatch, name, None)).items():
                if not isinstance(part, Tensor):
                    raise InputError(f"Expected {name} as tensors with pad='auto', got a {type(part).__name__}.")
                fills = [spare[end] for end in _ends(t, seeds[t])] if name == "compacted_seeds" else [0]
                filled[t] = _filled(part, sizes[t], fills)
            if filled:
                setattr(minibatch, name, as_given(filled))
        device = next(iter(padded.node_mask.values())).device
        minibatch.seed_mask = as_given({t: mask_of(len(ids), sizes[t], device) for t, ids in seeds.items()})


def _ends(t: str | None, seeds: Tensor) -> list[NodeType]:
    """Return the type of each node of a seed, which is a node or a link."""
    return [end or HOMOGENEOUS_NODE for end in ([t] if seeds.dim() == 1 else ends_of(t))]


def _grown(size: int, number: int) -> int:
    """Return the smallest of a few sizes that holds a number."""
    while size < number:
        size = size * 5 // 4 + 1
    return size


def _filled(values: Tensor, size: int, fills: Sequence[int]) -> Tensor:
    """Return ``[size, ...]``: values, followed by a fill for each column."""
    if len(set(fills)) == 1:
        return lengthened(values, size, fills[0])
    columns = [lengthened(one, size, fill) for one, fill in zip(values.unbind(dim=1), fills, strict=True)]
    return torch.stack(columns, dim=1)


def _empty_types(graph: FusedCSCSamplingGraph) -> list[NodeType | EdgeType]:
    """Return the types that a graph has no nodes, or edges, of."""
    nodes, edges = by_type(graph.num_nodes), by_type(graph.num_edges)
    empty = [t for t, n in nodes.items() if t and n == 0]
    return [*empty, *(etype_str_to_tuple(t) for t, n in edges.items() if t and n == 0)]


def _without_seed_edges(excluder: SeedEdgesExcluder, minibatch: MiniBatch, sample: SampledSubgraph) -> SampledSubgraph:
    """Return a sample, by type, without the seed edges in any layer, with all nodes."""
    assert sample.num_sampled_edges is not None
    sampled = [] if tuple(sample.node) == (HOMOGENEOUS_NODE,) else [etype_tuple_to_str(t) for t in sample.row]
    edges: Nodes = edges_to_exclude(minibatch, excluder.include_reverse_edges, excluder.reverse_etypes_mapping, sampled)
    keep = {t: torch.ones_like(row, dtype=torch.bool) for t, row in sample.row.items()}
    counts = {t: list(hops) for t, hops in sample.num_sampled_edges.items()}
    begins = dict.fromkeys(counts, 0)
    for hop, layer in enumerate(reversed(layers_of([sample], with_ids=False)[0])):
        for edge_type, drop in layer.edges_to_exclude(edges).items():
            t = HOMOGENEOUS_EDGE if edge_type is None else etype_str_to_tuple(edge_type)
            keep[t][begins[t] + drop] = False
            counts[t][hop] -= drop.numel()
        begins = {t: begin + sample.num_sampled_edges[t][hop] for t, begin in begins.items()}

    def kept(values: Mapping[EdgeType, Any]) -> dict[EdgeType, Any]:
        return {t: None if value is None else value[keep[t]] for t, value in values.items()}

    weights = None if sample.edge_weight is None else kept(sample.edge_weight)
    row, col, ids = kept(sample.row), kept(sample.col), kept(sample.edge_id)
    return replace(sample, row=row, col=col, edge_id=ids, edge_weight=weights, num_sampled_edges=counts)


def _mark(minibatch: MiniBatch, layers: Sequence[SampledSubgraphImpl], padded: Padded) -> None:
    """Set the masks of a minibatch and its layers: which rows and edges are real."""
    edges = {
        None if t == HOMOGENEOUS_EDGE else etype_tuple_to_str(t): mask.split_with_sizes(list(padded.sizes.edges[t]))
        for t, mask in padded.edge_mask.items()
    }
    for hop, layer in enumerate(reversed(layers)):
        rows = by_type(layer.original_row_node_ids)
        layer.row_mask = as_given({t: padded.node_mask[t or HOMOGENEOUS_NODE][: len(ids)] for t, ids in rows.items()})
        layer.edge_mask = as_given({t: parts[hop] for t, parts in edges.items()})
    minibatch.node_mask, minibatch.padding = layers[0].row_mask, padded
