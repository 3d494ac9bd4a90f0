"""``pad="auto"``: minibatches of fixed sizes, so that a training step is captured in a CUDA graph, or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading.padding import Pad, check_pad_option, lengthened, mask_of
from manyhop.loading.pipeline import Counts, Padded, Padder, pad_sizes
from manyhop.sampling import SampledSubgraph
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.topology import Topology
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.loader.chain import Chain, Sampling
from manyhop_graphbolt.loader.source import Sampled
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.layers import layers_of, mark_padding, put_layers
from manyhop_graphbolt.stages.sampling import begin_nodes
from manyhop_graphbolt.stages.stage import CopyTo, SeedEdgesExcluder, is_ours
from manyhop_graphbolt.types import Pipe, etype_str_to_tuple

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
    excluder = excluder_of(chain.sampling)
    for stage in chain.sampling.after:
        if is_ours(stage) and not isinstance(stage, FeatureFetcher | CopyTo) and stage is not excluder:
            raise InputError(
                "Expected only fetch_feature and copy_to after sampling with pad='auto', and exclude_seed_edges before "
                f"these, got a {type(stage).__name__}, which changes sizes. Leave one of them out."
            )


def excluder_of(sampling: Sampling) -> SeedEdgesExcluder | None:
    """Return the stage right after sampling that excludes seed edges, before minibatches are padded."""
    first = next(iter(sampling.after), None)
    return first if isinstance(first, SeedEdgesExcluder) else None


class Padding:
    """How the minibatches of one loader are padded. Safe to call from multiple threads."""

    def __init__(
        self, sampling: Sampling, samples: Sequence[Sampled], batch_size: int, device: torch.device | None
    ) -> None:
        self._sampling = sampling
        self._excluder = excluder_of(sampling)
        seeds_of = [_seeds(one.item) for one in samples]
        kind, first = next(iter(seeds_of[0].items()))
        alone = len(seeds_of[0]) == 1  # all full minibatches have as many seeds then
        by_type = [one.topology.by_type(one.sample) for one in samples]
        counts = [Counts.of(one) for one in by_type]
        seeds: dict[NodeType, int] | None = None
        if alone and first.are_nodes:
            seeds = {t: batch_size if t == (kind or HOMOGENEOUS_NODE) else 0 for t in counts[0].nodes}
        self.sizes = pad_sizes(counts, seeds=seeds, empty=_empty_types(sampling.layers.graph))
        self._pad = Padder(self.sizes, num_trees=batch_size, device=device)
        most = Sizes()
        for one in seeds_of:
            most |= {t: max(part.number, most.get(t, 0)) for t, part in one.items()}
        self._links = {t: n if alone else int(n * (1 + _MARGIN)) + 1 for t, n in most.items()}

    def answer(
        self, minibatches: Sequence[MiniBatch], topology: Topology, samples: Sequence[SampledSubgraph]
    ) -> list[MiniBatch]:
        """Add padded samples to minibatches; on a GPU, all of them by one kernel."""
        by_type = [topology.by_type(sample) for sample in samples]
        if self._excluder is not None:
            by_type = [self._excluder.before_padding(*both) for both in zip(minibatches, by_type, strict=True)]
        padded = self._pad(by_type)
        layers = layers_of([one.sample for one in padded], with_ids=topology.has_original_edge_ids)
        put_layers(minibatches, layers)
        for minibatch, own, one in zip(minibatches, layers, padded, strict=True):
            mark_padding(minibatch, own, one)
            self._pad_seeds(minibatch, one)
        return list(minibatches)

    @property
    def replaced(self) -> tuple[Pipe, Callable[[Any], object]]:
        """The stage that samples, and the function that samples and pads instead."""
        return self._sampling.stage, self._sample

    def _sample(self, minibatch: MiniBatch) -> MiniBatch:
        topology, sample = self._sampling.layers.drawn(begin_nodes(minibatch)[0])
        return self.answer([minibatch], topology, [sample])[0]

    def _pad_seeds(self, minibatch: MiniBatch, padded: Padded) -> None:
        """Pad the values per seed: nodes to the number of columns of the last layer, links to fixed numbers."""
        spare = {t: blocks[0] - 1 for t, blocks in padded.sizes.nodes.items()}  # the last column of a type is padding
        seeds, sizes = _seeds(minibatch), Sizes()
        for t, (n, width, are_nodes) in seeds.items():
            least = min([spare[end] for end in _ends(t, width)])  # -1: without padding
            sizes[t] = least + 1 if are_nodes else n if least < 0 else _grown(self._links.get(t, n), n)
        for name in _IDS:
            self._fill(minibatch, name, sizes, lambda kind, width: [0] * width)
        self._fill(minibatch, "compacted_seeds", sizes, lambda kind, width: [spare[t] for t in _ends(kind, width)])
        device = next(iter(padded.node_mask.values())).device
        masks = {t: mask_of(n, sizes[t], device) for t, (n, _, _) in seeds.items()}
        minibatch.seed_mask = masks.get(None, masks)  # type: ignore[arg-type]  # types have names

    def _fill(
        self, minibatch: MiniBatch, name: str, sizes: Sizes, fills: Callable[[str | None, int], list[int]]
    ) -> None:
        value = getattr(minibatch, name, None)
        if value is None:
            return

        def filled(kind: str | None, part: object) -> object:
            if not isinstance(part, Tensor):
                raise InputError(f"Expected {name} as tensors with pad='auto', got a {type(part).__name__}.")
            return _filled(part, sizes[kind], fills(kind, part.size(1) if part.dim() > 1 else 1))

        typed = isinstance(value, Mapping)
        setattr(minibatch, name, {t: filled(t, v) for t, v in value.items()} if typed else filled(None, value))


class _Seeds(NamedTuple):
    """The seeds of a type."""

    number: int
    width: int
    """Nodes of each."""
    are_nodes: bool
    """Whether they are nodes, not links between some."""


def _seeds(minibatch: MiniBatch) -> dict[str | None, _Seeds]:
    """Return the seeds of a minibatch by type; untyped ones have the type ``None``."""
    given: Any = minibatch.seeds
    return {
        t: _Seeds(len(part), part.size(1) if part.dim() > 1 else 1, part.dim() == 1)
        for t, part in (given if isinstance(given, Mapping) else {None: given}).items()
    }


def _ends(kind: str | None, width: int) -> list[NodeType]:
    """Return the types of the nodes that seeds of a type consist of."""
    if kind is None:
        return [HOMOGENEOUS_NODE] * width
    return [kind] if width == 1 else [*etype_str_to_tuple(kind)[::2]]


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
    nodes, edges = graph.num_nodes, graph.num_edges
    found: list[NodeType | EdgeType] = [t for t, n in nodes.items() if n == 0] if isinstance(nodes, dict) else []
    return found + ([etype_str_to_tuple(t) for t, n in edges.items() if n == 0] if isinstance(edges, dict) else [])
