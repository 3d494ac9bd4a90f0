"""The loader: runs a chain of pipes ahead of the training step, in threads."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterDataPipe

from manyhop.arguments import flags, integer
from manyhop.errors import InputError
from manyhop.features import PinnedPool, ShardedRows
from manyhop.loading import EpochLoader, Progress, check_names
from manyhop.loading.adapter import Adapter
from manyhop.loading.iterator import EpochIterator
from manyhop.loading.padding import Pad
from manyhop.loading.pipeline import BatchPlan, RankSchedule, Stats
from manyhop.memory.places import Place
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop_dgl.samplers.arguments import draw
from manyhop_graphbolt.items.minibatch import MiniBatch, minibatcher_default
from manyhop_graphbolt.items.sampler import DistributedItemSampler
from manyhop_graphbolt.loader.batches import Batches, Padding, check_pad
from manyhop_graphbolt.loader.chain import (
    Chain,
    ChainFacts,
    FeatureColumns,
    Sampled,
    Source,
    check_exchanged,
    check_placed,
    given_minibatch,
    gpu_of,
    to_gpu,
)
from manyhop_graphbolt.stages.stage import check_hints
from manyhop_graphbolt.types import Nodes, Pipe

_HINTS = ("overlap_graph_fetch", "max_uva_threads", "num_gpu_cached_edges", "gpu_cache_threshold")
_finding_gpu = threading.Lock()


class DataLoader(EpochLoader, TorchDataLoader[object]):
    """Iterates over a chain of pipes, whose stages are run ahead of the caller, in threads of this process.

    ``num_workers=N`` is N threads that work on multiple minibatches at once. 0 is one thread, which runs the stages up
    to the last one of this package (sampling, fetching, copying). Your functions after it run in the caller, as in
    GraphBolt. Order and content of the minibatches do not depend on ``num_workers``. On a GPU each thread
    has a stream, so that sampling, fetching and copying of different minibatches overlap, and all that with the
    training step; without stages on the CPU, the caller enqueues the GPU's work in advance, without threads.

    With a :class:`DistributedItemSampler` all ranks create the loader together, with equal graphs, items and stages. If
    one of them fails or stops in an epoch, the others raise an error that names it.

    Each iteration is the next epoch. An exception in a stage is raised unchanged, with a note that names the batch.

    Args:
        datapipe: the last pipe of the chain.
        num_workers: number of threads.
        persistent_workers: keep the threads between epochs.
        overlap_feature_fetch: ``False``, without threads (``num_workers=0``): everything runs in the caller, when it
            asks.
        placement: where topology and features reside if minibatches are moved to a GPU before they are sampled:
            ``"device"``, ``"pinned"``, ``"sharded"``, ``"distributed"`` or ``"auto"``, see PyG's loaders;
            ``None``: ``"pinned"`` for a graph in pinned memory, otherwise ``"auto"``: by sizes and free memory.
            ``logging.getLogger("manyhop")`` explains the choice.
        pad: ``"auto"``: pad the minibatches to fixed sizes, for CUDA graphs and ``torch.compile``; needs a chain with
            one stage that samples. Nodes and edges are filled up layer by layer, their features with zeros and their
            ids with 0; padding edges join padding nodes only. ``minibatch.node_mask`` and ``seed_mask``, and
            ``row_mask`` and ``edge_mask`` of each layer, ``bool``, mark real rows and edges; blocks have
            ``"node_mask"`` and ``"edge_mask"``. Seed nodes and labels have as many rows as the last layer has columns.
            A minibatch that does not fit gets larger sizes, out of few (``stats().pad_fit_rate``).
        hints: ``overlap_graph_fetch``, ``max_uva_threads``, ``num_gpu_cached_edges`` and ``gpu_cache_threshold`` of
            GraphBolt are validated and have no effect.

    Raises:
        InputError: an argument does not make sense; rows that ranks exchange, in a chain that cannot keep them in step.
        CapacityError: topology or features do not fit into the memory of ``placement``.
        RankError: ranks that share the minibatches differ, or are late.
    """

    _shared_by = "the items to a DistributedItemSampler"

    def __init__(
        self,
        datapipe: Pipe,
        num_workers: int = 0,
        persistent_workers: bool = True,
        overlap_feature_fetch: bool = True,
        *,
        placement: Place | None = None,
        pad: Pad | None = None,
        **hints: object,
    ) -> None:
        if {"dataset", "sampler"} <= hints.keys():
            raise InputError(
                "Expected a Trainer that uses GraphBolt's loader unchanged, got one that creates it again with another "
                "sampler, as Lightning does in predict() and for overfit_batches. Use validate() or test() and collect "
                "results in the step, or limit_train_batches."
            )
        if not isinstance(datapipe, IterDataPipe):
            raise InputError(
                f"Expected a pipe, such as ItemSampler(...).sample_neighbor(...), got a {type(datapipe).__name__}."
            )
        integer("num_workers", num_workers, 0)
        flags(persistent_workers=persistent_workers, overlap_feature_fetch=overlap_feature_fetch)
        check_names(type(self), hints.keys() - set(_HINTS))
        check_hints(_HINTS, **hints)
        self._chain = chain = Chain(datapipe)
        check_pad(pad, chain)
        check_placed(chain, placement)
        sampler, plan = chain.sampler, chain.sampler.plan
        self._ahead = int(num_workers) or int(overlap_feature_fetch and bool(chain.stages))
        """The number of threads that run the stages in advance; 0: the caller runs them."""
        super().__init__(
            datapipe,
            batch_size=sampler.batch_size,
            drop_last=plan.drop_last,
            num_workers=self._ahead,
            persistent_workers=persistent_workers and self._ahead > 0,
        )
        self.datapipe, self.num_workers, self._mode = datapipe, int(num_workers), placement
        self.pad = pad
        self.distributed = isinstance(sampler, DistributedItemSampler)
        self.uneven, self.rank_timeout = None, DEFAULT_TIMEOUT if self.distributed else None
        check_exchanged(chain, distributed=self.distributed, runs_ahead=self._ahead > 0)
        self._columns = FeatureColumns(chain.fetchers if chain.grouped is not None else [])
        self._padding, self._gpu = None, None
        self._set_up_epochs(plan.num_items, sampler.seed, shuffle=plan.shuffle, own_order=True)
        sampler.seed, self._progress.epoch = self.seed, sampler.next_epoch
        self._find_gpu()
        self._find_padding()
        if self.distributed:
            self._schedule(0)  # again, since GPUs may exchange rows: raises for uneven batches
        self._prepare_ranks()

    def _num_threads(self) -> int:
        return self._ahead

    def _fanouts(self) -> object:
        fanouts = () if self._chain.sampling is None else self._chain.sampling.stage.fanouts
        return [f.item() if f.numel() == 1 else f.tolist() for f in fanouts] or None

    # Order: that of the item sampler, which counts epochs.

    def __len__(self) -> int:
        """Return the number of minibatches of an epoch."""
        return len(self._chain.sampler)

    def _plan(self, seed: int = 0) -> BatchPlan:
        assert self.batch_size is not None
        return replace(self._chain.sampler.plan, seed=seed, batch_size=self.batch_size)

    def _schedule(self, first: int) -> RankSchedule:
        schedule = self._chain.sampler.deal(first)
        left = schedule.num_batches - first
        if schedule.uneven == "keep" and left % schedule.world_size and self._exchanges():
            raise InputError(
                f"Expected minibatches that {schedule.world_size} ranks can share evenly, as they exchange rows for "
                f"each, got {left}. Pass drop_uneven_inputs=True to the DistributedItemSampler, or another batch_size."
            )
        return schedule

    def _over_nodes(self) -> bool:
        return any(isinstance(rows, ShardedRows) for rows in self._sources())

    def _draw_seed(self) -> int:
        return draw()

    def _key_of_epoch(self, progress: Progress, *, replays: bool) -> tuple[int, int]:
        if self.seed is None and progress.seed is None:
            progress.seed = draw()
        return (self.seed or 0, progress.epoch) if progress.seed is None else (progress.seed, 0)

    # Iteration

    def __iter__(self) -> EpochIterator:  # type: ignore[override]
        check_exchanged(self._chain, distributed=self.distributed, runs_ahead=self._ahead > 0)  # as features are now
        self._find_gpu()
        sampler = self._chain.sampler
        self._next_epoch = sampler.next_epoch
        if not self._progress.begun:
            self._progress.epoch = self._next_epoch
        iterator = self._begin_epoch(None)
        sampler.next_epoch = self._next_epoch
        return iterator

    def _adapter(self) -> Adapter[object, object]:
        facts = ChainFacts(self._chain, self._columns, self.pad)
        return Adapter(Source(self._chain, self._gpu), self._columns, self._batches(self._stats), facts)

    def _batches(self, stats: Stats) -> Batches:
        source, threads = Source(self._chain, self._gpu), 1 if self.num_workers > 0 else torch.get_num_threads()
        parts = (source, self._columns, stats, self._buffers, self._padding)
        return Batches(*parts, threads=threads, hands_out=self.num_workers == 0)

    def _sources(self) -> list[object]:
        return list(FeatureColumns(self._chain.fetchers).tables().values())

    def _find_gpu(self) -> None:
        """Prepare the GPU that minibatches are sampled on, or moved to, in advance."""
        device = gpu_of(self._chain) if self._ahead > 0 else None
        if device is None or (self._gpu is not None and self._gpu.device == device):
            return
        chain, placement = self._chain, self._mode
        if any(map(to_gpu, chain.stages)):
            self._buffers = PinnedPool()
        if chain.grouped is not None and placement is None and chain.grouped.stage.graph.is_pinned():
            placement = "pinned-cuda"
        self._gpu = None
        self._start_gpu(device, placement)
        self._stats.on_gpu = self._stats.on_gpu or self._gpu.sampling is not None
        if chain.grouped is None or self._gpu.sampling is None:
            return
        plain = chain.sampler.minibatcher is minibatcher_default and chain.grouped.is_of_this_package
        if plain and self._columns.complete:  # otherwise code of the user would run without a request
            with suppress(InputError):  # which is raised again for the minibatch at fault
                self._warm_up_gpu()

    def _make_padding(self, samples: list[Sampled], device: torch.device | None) -> Padding:
        return Padding(self._chain, samples, self.batch_size or 1, device)

    # One minibatch

    def batch(self, seeds: Nodes | MiniBatch, *, key: tuple[int, int, int] | None = None) -> Any:
        """Return the minibatch of these seeds now: for serving and debugging.

        It does not advance the epoch. It is thread-safe if your functions are.

        Args:
            seeds: nodes or pairs of nodes, as the item set has them, in a tensor or in tensors by type; any, not only
                those of the item set. A :class:`MiniBatch` can have labels, times and other values for the stages.
            key: ``(seed, epoch, batch)``: determines the sample, together with the seeds, such as the ``key`` of a
                minibatch; default: the seed of the item sampler, or 0 if it has none, and batch 0 of epoch 0.

        Returns:
            The result of the last stage or function.

        Raises:
            InputError: seeds or a key that do not make sense, or rows that ranks exchange in step.
        """
        item = given_minibatch(self._chain, seeds)
        with _finding_gpu:
            self._find_gpu()
        return self._make_alone(key, partial(self._batches(Stats()).make_now, item))  # no figure of epochs

    # Restart

    def _state(self) -> dict[str, Any]:
        if not self._progress.begun:  # other loaders may have the same item sampler
            self._progress.epoch = self._chain.sampler.next_epoch
        return super()._state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict()`` was called: the next ``iter(loader)`` returns the rest of that epoch.

        Raises:
            StateError: the state is damaged, or of a chain with another graph, other stages, items, batches or order.
            RankError: other ranks, which must load the state as well, load a different one, or are late.
        """
        super().load_state_dict(state)
        sampler = self._chain.sampler
        sampler.seed, sampler.next_epoch = self.seed, self._progress.epoch
