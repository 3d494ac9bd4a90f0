"""``pad="auto"``: blocks of fixed sizes, so that a training step is captured in a CUDA graph, or compiled, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.loading.padding import (
    empty_types,
    lengthened,
    mask_of,
)
from manyhop.loading.pipeline import Counts, PaddedRows, Padder, PadSizes, clear_rows, pad_sizes
from manyhop_dgl.samplers.blocks import each_of
from manyhop_dgl.samplers.plan import Pad as PadSamples
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors, Sample
from manyhop_dgl.typing import GraphLike, Pairs

_MARGIN: Final = 0.1


class Padding:
    """How the batches of one loader are padded. Safe to call from multiple threads.

    Args:
        graph: the sampled graph.
        samples: some batches of the loader.
        of_one_type: whether all seeds have one type.
        batch_size: of the loader.
        device: the GPU of the batches; ``None``: the CPU.
    """

    def __init__(
        self,
        graph: Graph,
        samples: Sequence[BlockTensors | EdgeTensors],
        of_one_type: bool,
        batch_size: int,
        device: torch.device | None,
    ) -> None:
        of_nodes = isinstance(samples[0], BlockTensors)
        tensors = [one.sample if isinstance(one, EdgeTensors) else one for one in samples]
        num_seeds: dict[NodeType, int] | None = None
        if of_nodes and of_one_type:
            kind = next(t for t, n in tensors[0].num_seeds.items() if n)
            num_seeds = {t: batch_size if t == kind else 0 for t in tensors[0].num_seeds}
        self.sizes = pad_sizes([one.counts for one in tensors], seeds=num_seeds, empty=empty_types(graph))
        self.pad: PadSamples = Padder(self.sizes, num_trees=batch_size, device=device)
        margin = 0.0 if of_one_type else _MARGIN
        edges = [one for one in samples if isinstance(one, EdgeTensors)]
        self._positives = _sizes_of_pairs([one.ends for one in edges], margin)
        self._negatives = _sizes_of_pairs([one.negative_ends or {} for one in edges], margin)

    def pad_seed_edges(self, batch: EdgeTensors) -> EdgeTensors:
        """Return a batch whose sample is padded with as many seed edges, and negatives, as others of its size have."""
        spare = {t: n - 1 for t, n in batch.sample.num_seeds.items()}  # the last output node of a type is padding
        ends, masks, sizes = _lengthened_pairs(batch.ends, self._positives, spare)
        batch = replace(
            batch,
            ends=ends,
            ids={t: lengthened(ids, sizes[t], 0) for t, ids in batch.ids.items()},
            masks=masks,
            num_edges={t: ids.numel() for t, ids in batch.ids.items()},
        )
        if batch.negative_ends is None:
            return batch
        negative_ends, negative_masks, _ = _lengthened_pairs(batch.negative_ends, self._negatives, spare)
        return replace(batch, negative_ends=negative_ends, negative_masks=negative_masks)


def clear_padding(batches: Sequence[Sample], graph: GraphLike) -> None:
    """Let the rows of padding be zeros in padded batches of a graph."""
    rows: list[PaddedRows] = []
    of_seeds: list[Tensor] = []
    types, edge_types = graph.ntypes, graph.canonical_etypes
    for batch in batches:
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        padded = tensors.padding
        assert padded is not None
        own = dict(zip(edge_types, padded.sizes.edges, strict=True))  # as the sampler has them
        rows += [PaddedRows(value, padded, t) for _, t, value in each_of(tensors.node_features, types)]
        rows += [PaddedRows(value, padded, t, block=0) for _, t, value in each_of(tensors.output_features, types)]
        for hop, of_edges in enumerate(reversed(tensors.edge_features)):
            rows += [PaddedRows(value, padded, own[t], block=hop) for _, t, value in each_of(of_edges, edge_types)]
        if isinstance(batch, EdgeTensors) and batch.num_edges is not None:
            of_seeds += [value[batch.num_edges[t] :] for _, t, value in each_of(batch.edge_features, edge_types)]
    if rows:
        clear_rows(rows)
    if of_seeds:
        torch._foreach_zero_(of_seeds)


def _sizes_of_pairs(batches: Sequence[Mapping[EdgeType, Pairs]], margin: float) -> PadSizes:
    """Return how many seed edges, or negatives, of each type fixed sizes hold."""
    most = {t: max(ends[t][0].numel() for ends in batches) for t in (batches[0] if batches else {})}
    edges = {t: (int(n * (1 + margin)) + (margin > 0 and n > 0),) for t, n in most.items()}
    return PadSizes(nodes={}, edges=edges)


def _lengthened_pairs(
    ends: Mapping[EdgeType, Pairs], sizes: PadSizes, spare: Mapping[NodeType, int]
) -> tuple[dict[EdgeType, Pairs], dict[EdgeType, Tensor], dict[EdgeType, int]]:
    """Pad pairs to fixed numbers by pairs of padding nodes; return also the masks and the original numbers."""
    counts = Counts(nodes={}, edges={t: (src.numel(),) for t, (src, _) in ends.items()})
    fitting = sizes.grown(sizes.times_to_fit(counts)).edges
    pairs, masks, numbers = dict[EdgeType, Pairs](), dict[EdgeType, Tensor](), dict[EdgeType, int]()
    for t, (src, dst) in ends.items():
        n = src.numel()
        numbers[t] = size = fitting[t][0] if min(spare[t[0]], spare[t[2]]) >= 0 else n
        pairs[t] = lengthened(src, size, spare[t[0]]), lengthened(dst, size, spare[t[2]])
        masks[t] = mask_of(n, size, src.device)
    return pairs, masks, numbers
