"""The loader: runs a chain of pipes ahead of the training step, in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterDataPipe

from manyhop.arguments import flags, integer
from manyhop.errors import InputError
from manyhop.features import BufferPool, Checks, PinnedPool
from manyhop.loading import Progress
from manyhop.loading.gpu.samples import BACKLOG
from manyhop.pipeline import (
    Groups,
    OnStream,
    Pipeline,
    Stats,
    StatsReport,
    Streams,
    Turn,
    WorkerPool,
    save_timeline,
    tensors_in,
)
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, make_key
from manyhop.system.mapped import check_mapped_files
from manyhop.world import current_rank
from manyhop_dgl.graphbolt.items.minibatch import MiniBatch
from manyhop_dgl.graphbolt.items.sampler import ItemSampler
from manyhop_dgl.graphbolt.loader.chain import Part, gpu_of, parts_of
from manyhop_dgl.graphbolt.loader.groups import Items, MakeItems, groups_of
from manyhop_dgl.graphbolt.loader.state import Position, cannot_resume, position_of
from manyhop_dgl.graphbolt.loader.stats import TimedStages, count_sampled, num_seeds
from manyhop_dgl.graphbolt.stages.features import FeatureFetcher
from manyhop_dgl.graphbolt.stages.hints import check_hints
from manyhop_dgl.graphbolt.stages.stage import REST, CopyTo
from manyhop_dgl.samplers.seeding import draw

_BATCHES_AHEAD = 2


class DataLoader(TorchDataLoader[Any]):
    """Iterates over a chain of pipes, whose stages are run ahead of the caller, in threads of this process.

    ``num_workers=N`` is N threads that work on several minibatches at once; 0 is one thread, which runs the stages up
    to the last one of this package (sampling, fetching, copying): functions of the user that come after it run in the
    caller, as in GraphBolt. Order and content of the minibatches do not depend on ``num_workers``. On a GPU each thread
    has a stream, so that sampling, fetching and copying of different minibatches overlap, and all that with the
    training step; where the GPU does everything, one thread is enough, whatever ``num_workers`` is.

    Each iteration is the next epoch. An exception in a stage is raised as it is, with a note that names the batch.

    Args:
        datapipe: the last pipe of the chain.
        num_workers: number of threads.
        persistent_workers: keep the threads between epochs.
        overlap_feature_fetch: ``False``, without threads (``num_workers=0``): everything runs in the caller, when it
            asks.
        overlap_graph_fetch: a hint; what GPUs read of the graph is overlapped in either case.
        max_uva_threads: a hint; manyhop decides how many threads of a GPU read host memory.
        num_gpu_cached_edges: a hint for GraphBolt's cache of edges on the GPU; manyhop has none.
        gpu_cache_threshold: see ``num_gpu_cached_edges``.

    Raises:
        InputError: an argument does not make sense.
    """

    def __init__(
        self,
        datapipe: Any,
        num_workers: int = 0,
        persistent_workers: bool = True,
        overlap_feature_fetch: bool = True,
        overlap_graph_fetch: bool = False,
        max_uva_threads: int = 6144,
        num_gpu_cached_edges: int = 0,
        gpu_cache_threshold: int = 1,
    ) -> None:
        if not isinstance(datapipe, IterDataPipe):
            raise InputError(
                f"Expected a pipe, such as ItemSampler(...).sample_neighbor(...), got a {type(datapipe).__name__}."
            )
        num_workers = integer("num_workers", num_workers, 0)
        flags(
            persistent_workers=persistent_workers,
            overlap_feature_fetch=overlap_feature_fetch,
            overlap_graph_fetch=overlap_graph_fetch,
        )
        check_hints(
            max_uva_threads=max_uva_threads,
            num_gpu_cached_edges=num_gpu_cached_edges,
            gpu_cache_threshold=gpu_cache_threshold,
        )
        super().__init__(datapipe, batch_size=None)
        self.datapipe = datapipe
        self.num_workers = num_workers
        self._keeps_threads = persistent_workers
        self._ahead = num_workers or int(bool(overlap_feature_fetch))
        self._parts = parts_of(datapipe)
        self._position = position_of(self._parts)
        self._pools: dict[tuple[int, bool], WorkerPool] = {}
        self._buffers = BufferPool()
        self._stats = Stats(self._ahead)
        self._gpu: _GPU | None = None
        self._epoch = 0

    def __len__(self) -> int:
        """Number of minibatches of an epoch, where the chain knows it."""
        return len(self.datapipe)

    def __iter__(self) -> Any:
        check_mapped_files()
        epoch, self._epoch = self._epoch, self._epoch + 1
        self._find_gpu()
        self._find_buffers()
        pipeline = self._iterate(len(self._parts) - 1, epoch)
        return _Epoch(pipeline, self._gpu, None if self._position is None else self._position.progress)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration stands, counted in minibatches received: those made ahead do not count.

        Raises:
            InputError: the chain cannot be resumed.
        """
        return self._resumable().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict()`` was called: the next ``iter(loader)`` hands out the rest of that epoch.

        Raises:
            StateError: the state is damaged, or of a chain with another graph, other stages, items, batches or order.
            InputError: the chain cannot be resumed.
        """
        self._resumable().load_state_dict(state)

    def _resumable(self) -> Position:
        if self._position is None:
            raise cannot_resume(self._parts)
        return self._position

    def stats(self) -> StatsReport:
        """Speed, where the time goes, and what to do about it; ``print`` shows a table.

        Copies to a device and your functions count as assembling.
        """
        if self._gpu is not None:
            self._gpu.streams.take_times()
        return self._stats.report()

    def timeline(self, path: str | PathLike[str]) -> None:
        """Save a picture of the last batches: ``.svg``, ``.png`` or ``.json`` (for ui.perfetto.dev)."""
        if self._gpu is not None:
            self._gpu.streams.take_times()
        save_timeline(self._stats, path)

    def _find_gpu(self) -> None:
        device = gpu_of(self._parts)
        if device is not None and (self._gpu is None or self._gpu.streams.device != device):
            self._gpu = _GPU(Streams(device, self._stats, backlog=BACKLOG), Checks())
        if self._gpu is not None:
            self._gpu.streams.begin()

    def _find_buffers(self) -> None:
        """What fetchers write to: pinned memory where it is moved to a GPU afterwards, else memory that is recycled.
        A single thread ahead of the caller may copy with as many threads as the caller has."""
        to_gpu = False
        for part in reversed(self._parts):
            for stage in reversed(part.stages.ours):
                if isinstance(stage, CopyTo):
                    to_gpu = stage.device.type == "cuda"
                elif isinstance(stage, FeatureFetcher):
                    stage.pool = PinnedPool() if to_gpu else self._buffers
                    stage.threads = 1 if self.num_workers > 0 else torch.get_num_threads()
                    stage.checks = None if self._gpu is None else self._gpu.checks

    def _iterate(self, k: int, epoch: int) -> Pipeline[Any, Any]:
        """The items that the first ``k + 1`` parts give."""
        part = self._parts[k]
        if part.relay is not None:
            part.relay.made_ahead = self._iterate(k - 1, epoch)
        items = self._items(part, epoch)
        stages, first_call, gpu, stats = part.stages, k * 2 * REST, self._gpu, self._stats
        is_last = k == len(self._parts) - 1
        streams = None if gpu is None else gpu.streams
        in_threads = self.num_workers > 0
        threads = self._ahead if in_threads or stages.ours else 0
        ours = TimedStages(stages.ours, stats, streams if threads > 0 else None)  # the caller's stream is not ours
        rest = TimedStages(stages.rest, stats, None)

        def make_items(batches: Sequence[tuple[int, Any]], device: torch.device | None) -> Items:
            start = perf_counter()
            made = items.make([item for _, item in batches], device)
            stats.record(batches[0][0], "assemble", start, perf_counter())
            if k == 0:
                stats.count(seeds=sum([num_seeds(item) for _, item in made]))
            return made

        def make(number: int, batch: Any) -> Any:
            ((key, item),) = make_items([(number, batch)], None)
            item = ours.run(item, key, number, first_call=first_call)
            if is_last:
                count_sampled(stats, item)
            if in_threads:
                item = rest.run(item, key, number, first_call=first_call + REST)
            return key, item

        def make_on_gpu(number: int, batch: Any) -> Any:
            assert streams is not None
            with streams.here():
                return streams.hand_over(make(number, batch), timed=is_last)

        how: Any = make
        if gpu is not None and threads > 0:
            how = (
                groups_of(part, make_items, gpu.streams, first_call, rest if in_threads else None, is_last=is_last)
                or make_on_gpu
            )
            stats.on_gpu = stats.on_gpu or isinstance(how, Groups)
            if isinstance(how, Groups) and not stages.has_functions():
                threads = 1  # it tells the GPU what to do: others would only compete with it for Python
                for stage in stages.ours:
                    if isinstance(stage, FeatureFetcher):  # of features that the GPU cannot read
                        stage.threads = self.num_workers or torch.get_num_threads()

        def finish(number: int, made: Any) -> Any:
            if isinstance(made, OnStream):
                assert gpu is not None
                gpu.checks.ask()
                times = how.size if isinstance(how, Groups) else 1
                made = gpu.streams.receive(made, lambda value: tensors_in(value[1]), times)
            key, item = made
            return item if in_threads else rest.run(item, key, number, first_call=first_call + REST)

        return Pipeline(
            items.batches,
            how,
            num_workers=threads,
            prefetch=_BATCHES_AHEAD,
            epoch=items.epoch,
            batch_of=items.batch_of,
            pool=self._threads(threads, in_groups=isinstance(how, Groups)),
            finish=finish,
            before=None if gpu is None else gpu.streams.settle,
            stats=stats if is_last else None,
            name="manyhop-graphbolt",
        )

    def _items(self, part: Part, epoch: int) -> _Items:
        source = part.source
        # One that defines its own iteration is iterated.
        if isinstance(source, ItemSampler) and source.is_indexable and type(source).__iter__ is ItemSampler.__iter__:
            if self._position is None:
                number, turns = source.begin_epoch(), source.turns()
            else:
                number, turns = self._position.begin_epoch()

            def make(some: Sequence[Turn], device: torch.device | None) -> Items:
                numbers = [turn.batch for turn in some]
                # To move seed_nodes is the user's choice: copy_to leaves them where they are.
                device = None if "seed_nodes" in (source.item_set.names or ()) else device
                made = source.make_batches(number, numbers, device)
                return [(source.key(number, batch), item) for batch, item in zip(numbers, made, strict=True)]

            return _Items(turns, make, number, lambda i: turns[i].batch if i < len(turns) else i)
        return _Items(self._with_keys(iter(source)), lambda some, _: list(some), epoch, None)

    def _with_keys(self, items: Iterator[Any]) -> Iterator[tuple[BatchKey, Any]]:
        """Items that were made elsewhere, with their keys; those without get one by their position."""
        seed: int | None = None
        for i, item in enumerate(items):
            key = getattr(item, "key", None)
            if key is None:
                if seed is None:
                    seed = int(make_key(Use.RANK, draw(), current_rank()))
                key = BatchKey(seed, 0, i)
                if isinstance(item, MiniBatch):
                    item.key = key
            yield key, item

    def _threads(self, number: int, *, in_groups: bool) -> WorkerPool | None:
        if number == 0 or not self._keeps_threads:
            return None
        kind = number, in_groups
        if kind not in self._pools:
            self._pools[kind] = WorkerPool(number, name="manyhop-graphbolt", start_ahead=in_groups)
        return self._pools[kind]


@dataclass(frozen=True)
class _Items:
    """The items of an epoch."""

    batches: Iterable[Any]
    """What is taken in the caller for each item."""

    make: MakeItems
    """Makes items of it, in a thread."""

    epoch: int
    """Named in errors."""

    batch_of: Callable[[int], int] | None
    """The number in the epoch of the i-th item; ``None``: ``i``."""


@dataclass(frozen=True)
class _GPU:
    """What a loader has for its GPU."""

    streams: Streams
    checks: Checks


class _Epoch(Iterator[Any]):
    """The minibatches of one epoch."""

    def __init__(self, pipeline: Pipeline[Any, Any], gpu: _GPU | None, progress: Progress | None) -> None:
        self._pipeline, self._gpu, self._progress = pipeline, gpu, progress

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        try:
            minibatch = next(self._pipeline)
        except StopIteration:
            if self._progress is not None and self._pipeline.delivered == self._progress.rounds:
                self._progress.ended = True
            if self._gpu is not None:
                self._gpu.checks.ask(wait=True)
            raise
        if self._progress is not None:
            self._progress.received += 1
        return minibatch

    def close(self) -> None:
        """End it; threads that are not kept end with it."""
        self._pipeline.close()
