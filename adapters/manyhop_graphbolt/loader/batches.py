"""Makes minibatches of items, samples and rows, also of fixed sizes, and times the stages that do it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import BufferPool, RowRequest, gather
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading import BatchContext, current_batch, current_exchange
from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.padding import Pad, check_pad_option, lengthened, mask_of
from manyhop.loading.pipeline import Counts, Padded, Padder, RankBatch, Stats, Streams, pad_sizes, tensors_in
from manyhop.loading.pipeline import Stage as StageName
from manyhop.sampling import BatchKey, SampledSubgraph
from manyhop.system.ranges import ranged
from manyhop_graphbolt.features.feature import Gather
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.topology import Topology
from manyhop_graphbolt.items.minibatch import MiniBatch, contents_of, feature_bytes, num_seeds
from manyhop_graphbolt.loader.chain import Chain, FeatureColumns, Sampled, Sampling, Source, to_gpu
from manyhop_graphbolt.stages.links import NegativeSampler, SeedEdgesExcluder, edges_to_exclude
from manyhop_graphbolt.stages.sampling import SubgraphSampler, begin_nodes, layers_of, put_layers
from manyhop_graphbolt.stages.stage import (
    FUNCTIONS,
    CopyTo,
    FeatureFetcher,
    Stage,
    Step,
    is_of_this_package,
    is_ours,
    key_of_batch,
    step,
)
from manyhop_graphbolt.types import (
    Pipe,
    SampledSubgraphImpl,
    as_given,
    by_type,
    ends_of,
    etype_str_to_tuple,
    etype_tuple_to_str,
)

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

    def __init__(self, chain: Chain, samples: Sequence[Sampled], batch_size: int, device: torch.device | None) -> None:
        sampling = chain.sampling
        assert sampling is not None
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
        nodes, _ = begin_nodes(minibatch)
        topology, engine, request = self._sampling.stage.request(nodes)
        self.answer([minibatch], topology, [engine.sample(request)])
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
    edges = edges_to_exclude(minibatch, excluder.include_reverse_edges, excluder.reverse_etypes_mapping, sampled)
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


class TimedStages:
    """Stages of a chain, whose times are recorded in the statistics.

    Copies to a device and functions of the user count as assembling. On a GPU, sampling and gathering are timed by the
    GPU, everything else by the host.
    """

    def __init__(
        self,
        stages: Sequence[Pipe],
        gather: Gather,
        stats: Stats,
        streams: Streams | None = None,
        *,
        on_gpu: bool = False,
        replaced: tuple[Pipe, Step] | None = None,
    ) -> None:
        self._stats = stats
        self._steps: list[tuple[StageName, Step, Streams | None]] = []
        for stage in stages:
            name = _stage_name(stage)
            run: Step = stage.step if isinstance(stage, Stage) else partial(step, stage)
            if replaced is not None and stage is replaced[0]:
                run = replaced[1]
            elif isinstance(stage, FeatureFetcher) and is_of_this_package(stage):
                run = partial(stage.fetch_one, gather_rows=gather)
            run = ranged(name)(run) if name == "sample" else run
            self._steps.append((name, run, streams if on_gpu and name != "assemble" else None))
            on_gpu = on_gpu or to_gpu(stage)

    def __call__(self, item: object, times: int = 1) -> object:
        """Apply all stages to an item of the current batch, whose times on a GPU count ``times`` times."""
        batch = key_of_batch().batch
        for name, run, streams in self._steps:
            if streams is None:
                start = perf_counter()
                item = run(item)
                self._stats.record(batch, name, start, perf_counter())
                continue
            begun = streams.mark() if times else None
            item = run(item)
            if begun is not None:
                streams.took(times, name, batch, begun, streams.mark())
        return item


def _stage_name(stage: Pipe) -> StageName:
    if isinstance(stage, FeatureFetcher):
        return "gather"
    if isinstance(stage, SubgraphSampler | NegativeSampler) or (is_ours(stage) and not isinstance(stage, CopyTo)):
        return "sample"
    return "assemble"


class Keyed(NamedTuple):
    """A minibatch that functions of the user complete in the caller."""

    key: BatchKey
    item: object


class Batches:
    """The ``Assembler`` of a loader.

    Functions of the user after the last stage of this package run in its threads; without any, in the caller, with
    the batch's key.
    """

    in_thread = True

    def __init__(
        self,
        source: Source,
        columns: FeatureColumns,
        stats: Stats,
        pool: BufferPool,
        padding: Padding | None,
        *,
        threads: int,
        hands_out: bool,
    ) -> None:
        self._source, self._columns, self._stats = source, columns, stats
        self._pool, self._padding, self._threads = pool, padding, threads
        self._chain, self._gpu = chain, gpu = source.chain, source.gpu
        grouped = chain.grouped if gpu is not None and gpu.sampling is not None else None
        self._run_stages = TimedStages(
            chain.stages if grouped is None else grouped.after,
            self._gather,
            stats,
            None if gpu is None else gpu.streams,
            on_gpu=grouped is not None,
            replaced=None if padding is None else padding.replaced,
        )
        self._functions = TimedStages(chain.functions, self._gather, stats)
        self.samples_alone = grouped is None
        self.gathers_groups = grouped is not None and grouped.joins  # no function of the user runs before the rest
        self.hands_out = bool(chain.functions) and hands_out
        self._functions_in_threads = bool(chain.functions) and not self.hands_out
        self.runs_user_code = self._functions_in_threads or not all(map(is_ours, chain.stages))
        self.transform = self._run_functions if self._functions_in_threads else None

    def _run_functions(self, item: object, key: BatchKey | None = None) -> object:
        with BatchContext(key or key_of_batch(), current_batch(), FUNCTIONS):
            return self._functions(item)

    def collate(self, positions: Tensor) -> object:
        """Make one minibatch, stage by stage."""
        if not self.samples_alone:  # again, for an error
            return self.assemble(self._source.sample(positions))
        rank_batch, key, start = current_batch(), key_of_batch(), perf_counter()
        item = self._chain.sampler.dressed(self._chain.sampler.item_set[positions], key)
        self._stats.record(key.batch, "assemble", start, perf_counter())
        seeds = num_seeds(item)
        item = self._run_stages(item)
        if rank_batch is not None:
            rank_batch.contents.update(contents_of(item), seeds=seeds)
        return self._done(key, item)

    def assemble(self, sample: Sampled) -> object:
        """Make a minibatch of its sample."""
        rank_batch, gpu = current_batch(), self._gpu
        assert gpu is not None
        start = perf_counter()
        item: object = self._answered([sample], [rank_batch])[0]
        self._stats.record(sample.key.batch, "assemble", start, perf_counter())
        with BatchContext(sample.key, rank_batch, sample.calls):
            item = self._run_stages(item, gpu.group_size if gpu.is_timed(rank_batch) else 0)
        if rank_batch is not None:
            rank_batch.contents["gathered_bytes"] = feature_bytes(item)
        return self._done(sample.key, item)

    def make_now(self, item: MiniBatch) -> object:
        """Make a minibatch of given seeds, all stages, in the caller."""
        item.key = key = key_of_batch()
        if self.samples_alone:
            made = self._done(key, self._run_stages(item, 0))
        else:
            assert self._gpu is not None
            made = self.assemble(self._source.begin(self._gpu.sampling, [item], [key])()[0])
        return self.hand_out(made) if isinstance(made, Keyed) else made

    def _done(self, key: BatchKey, item: object) -> object:
        _settle(item)
        if self.hands_out:
            return Keyed(key, item)
        return self._run_functions(item, key) if self._functions_in_threads else item

    def assemble_group(
        self, samples: Sequence[Sampled], rank_batches: Sequence[RankBatch] | None
    ) -> tuple[list[object], int]:
        """Make minibatches of multiple samples, by one gather."""
        gpu, grouped = self._gpu, self._chain.grouped
        assert gpu is not None
        assert grouped is not None
        items: list[Any] = list(self._answered(samples, rank_batches))
        nbytes = 0
        start = gpu.start_gather()
        for stage in grouped.after:
            if isinstance(stage, FeatureFetcher):
                nbytes += stage.fetch(items, self._gather)
            elif self.gathers_groups:
                items = [step(stage, item) for item in items]
        gpu.end_gather(start, len(samples))
        for item in items:
            _settle(item)
        if not self.hands_out:
            return items, nbytes
        return [Keyed(sample.key, item) for sample, item in zip(samples, items, strict=True)], nbytes

    def _answered(self, samples: Sequence[Sampled], rank_batches: Sequence[RankBatch | None] | None) -> list[MiniBatch]:
        """Return minibatches with their layers. The samples are unchanged: they may be needed again."""
        items = [copy.copy(one.item) for one in samples]
        topology = samples[0].topology  # one launch samples one topology
        if self._padding is None:
            by_kind = [topology.by_type(one.sample) for one in samples]
            put_layers(items, layers_of(by_kind, with_ids=topology.has_original_edge_ids))
            return items
        self._padding.answer(items, topology, [one.sample for one in samples])
        for rank_batch, item in zip(rank_batches or (), items, strict=False):
            if rank_batch is not None:
                rank_batch.contents.update(padded=1, fit=int(item.padding is not None and item.padding.grown == 0))
        return items

    def _gather(self, requests: list[RowRequest]) -> list[object]:
        gpu = self._gpu
        if gpu is None:
            return gather(requests, pool=self._pool, threads=self._threads, exchange=current_exchange())
        gpu.columns(self._columns).redirect(requests)
        return gpu.gather(requests, self._threads)

    def contents(self, sample: Sampled) -> dict[str, int]:
        """Return how many seeds, nodes and edges a sample has."""
        nodes, edges = (sum([ids.numel() for ids in some.values()]) for some in (sample.sample.node, sample.sample.row))
        return {"seeds": sample.num_seeds, "nodes": nodes, "edges": edges}

    def values(self, batch: object) -> Iterable[list[Tensor]]:
        """Return all tensors of a minibatch."""
        return [list(tensors_in(batch.item if isinstance(batch, Keyed) else batch))]

    def empty(self, device: torch.device) -> Sampled:
        """Return a sample without nodes and edges."""
        assert self._chain.grouped is not None
        topology, _ = self._chain.grouped.stage.current()
        sample, none = empty_sample(topology.graph, device), torch.empty(0, 2, dtype=torch.int64, device=device)
        item = MiniBatch(seeds={} if len(topology.offsets) > 1 else none)
        return Sampled(BatchKey(0, 0, 0), item, topology, 1, 0, sample)

    def hand_out(self, batch: Keyed) -> object:
        """Apply functions of the user to a minibatch, in the caller."""
        return self._run_functions(batch.item, batch.key)


def _settle(item: object) -> None:
    """Forget the padding, once all features are gathered."""
    if isinstance(item, MiniBatch):
        vars(item).pop("padding", None)
