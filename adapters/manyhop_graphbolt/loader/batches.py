"""Makes minibatches of items, samples and rows, and times the stages that do it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.features import BufferPool, RowRequest, gather
from manyhop.loading import BatchContext, current_batch, current_exchange
from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.pipeline import RankBatch, Stats, Streams, tensors_in
from manyhop.loading.pipeline import Stage as StageName
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged
from manyhop_graphbolt.features.feature import Gather
from manyhop_graphbolt.items.minibatch import MiniBatch, num_seeds
from manyhop_graphbolt.loader.chain import FeatureColumns, Sampled, Source, key_of_batch, to_gpu
from manyhop_graphbolt.loader.padding import Padding
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.sampling import SubgraphSampler, layers_of, put_layers
from manyhop_graphbolt.stages.stage import (
    FUNCTIONS,
    CopyTo,
    NegativeSampler,
    Stage,
    Step,
    is_of_this_package,
    is_ours,
    step,
)
from manyhop_graphbolt.types import Pipe, by_type


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
                run = partial(_fetch, stage, gather)
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


def _fetch(stage: FeatureFetcher, gather: Gather, item: MiniBatch) -> MiniBatch:
    stage.fetch([item], gather)
    return item


def _stage_name(stage: Pipe) -> StageName:
    if isinstance(stage, FeatureFetcher):
        return "gather"
    if isinstance(stage, SubgraphSampler | NegativeSampler) or (is_ours(stage) and not isinstance(stage, CopyTo)):
        return "sample"
    return "assemble"


def contents_of(item: object) -> dict[str, int]:
    """Return nodes, edges and bytes of features of a minibatch; nothing for other items."""
    if not isinstance(item, MiniBatch):
        return {}
    found = {"gathered_bytes": feature_bytes(item)}
    if (padded := item.padding) is not None:
        nodes, edges = (sum(map(sum, some.values())) for some in (padded.counts.nodes, padded.counts.edges))
        return found | {"nodes": nodes, "edges": edges, "padded": 1, "fit": int(padded.grown == 0)}
    layers = [getattr(layer, "sampled_csc", None) for layer in item.sampled_subgraphs or ()]  # or a user's own kind
    edges = sum([csc.indices.numel() for layer in layers for csc in by_type(layer).values()])
    return found | {"nodes": sum([ids.numel() for ids in by_type(item.input_nodes).values()]), "edges": edges}


def feature_bytes(item: object) -> int:
    """Return the bytes of the features of a minibatch; 0 for other items."""
    features = (item.node_features, *(item.edge_features or ())) if isinstance(item, MiniBatch) else ()
    return sum([getattr(rows, "nbytes", 0) for some in features for rows in by_type(some).values()])


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
        item = self._source.item(positions)
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
