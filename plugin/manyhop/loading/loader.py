"""The base class of all loaders: order, threads, resume and statistics instead of torch's worker processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop.features import BufferPool, Exchange, RowExchange
from manyhop.features.huge_pages import collapse
from manyhop.loading.figures import warm_up_caches
from manyhop.loading.iterator import (
    REPLAY,
    REPLAY_NEXT,
    Epoch,
    EpochIterator,
    Item,
    Progress,
    given,
    planned,
    steps_on_cpu,
)
from manyhop.loading.keys import BatchContext, batch_key, draw_seed
from manyhop.loading.options import EngineName
from manyhop.loading.padding import Pad, probe
from manyhop.loading.pipeline import (
    BatchPlan,
    Groups,
    ItemParts,
    RankBatch,
    RankSchedule,
    Stats,
    WorkerPool,
    parts_of,
)
from manyhop.loading.ranks import Ranks, join_ranks
from manyhop.loading.resume import Resumable
from manyhop.loading.trainers import PreparedLoader, SharedSampler
from manyhop.loading.which_gpu import on_gpu
from manyhop.memory.places import Place
from manyhop.ranks.world import current_rank, current_size
from manyhop.sampling import CONTRACT_VERSION, BatchKey
from manyhop.sampling.random import Use, make_key
from manyhop.system.mapped import check_mapped_files
from manyhop.system.units import counted


class EpochLoader(Resumable, PreparedLoader):
    """The part of a torch ``DataLoader`` that yields epochs of batches, made by threads, in keyed order.

    Requires the attributes that ``DataLoader.__init__`` sets before :meth:`_set_up_epochs` is called.
    """

    num_workers: int
    timeout: float
    prefetch_factor: int | None
    persistent_workers: bool
    generator: torch.Generator | None
    distributed: bool
    uneven: Any
    rank_timeout: float | None
    worker_init_fn: Any
    pad: Pad | None = None
    """The user's choice."""

    _padding: Any = None
    """The adapter's object that pads batches, once their sizes are known."""

    seed_parts: int | None = None
    """Number of parts of the nodes, if each batch has seeds of one part."""

    engine: EngineName | None = None
    """The user's choice of what samples on a GPU."""

    def _set_up_epochs(self, num_items: int, seed: int | None, *, shuffle: bool, own_order: bool) -> None:
        """Prepare the first epoch, except for a GPU. Ranks that share batches call it together.

        Args:
            num_items: number of seeds.
            seed: the user's seed; ``None``: each epoch draws one.
            shuffle: permute the seeds in each epoch.
            own_order: whether the loader cuts the seeds into batches, not a user's sampler.

        Raises:
            InputError: inconsistent numbers, or batches that ranks cannot share evenly.
            RankError: ranks pass different arguments, or not in time.
        """
        if self.num_workers == 0 and self.timeout:
            raise InputError(f"Expected timeout=0 with num_workers=0, got {self.timeout}: only threads can be late.")
        seed = None if seed is None else integer("seed", seed)
        self._num_items, self._shuffle, self._own_order = num_items, shuffle, own_order
        self._replay = REPLAY if own_order else REPLAY_NEXT  # code that makes a failed batch again, for its error
        self._parts = None if self.seed_parts is None else self._find_parts(self.seed_parts)
        self.seed = seed  # named like the argument: Lightning creates loaders from such attributes
        self._stats = Stats(self._num_threads())
        self._buffers = BufferPool()
        self._ranks: Ranks | None = None
        if self.distributed:
            assert self.rank_timeout is not None
            options = {"uneven": self.uneven, "timeout": self.rank_timeout}
            self._ranks, self.seed = join_ranks(type(self).__name__, self._facts, seed, self._draw_seed, **options)
            self._schedule(0)  # raises if the batches are uneven and must not be
        self._next_epoch = 0
        self._progress = Progress()
        self._fills_caches = True
        self._pool: WorkerPool | None = None
        self._pool_init: Any = None

    def __repr__(self) -> str:
        """Return seeds, fanouts, batches, threads and placement in a line."""
        if "_next_epoch" not in vars(self):  # its constructor has raised an error
            return object.__repr__(self)
        length, fanouts = self._length(), self._fanouts()
        parts = [counted(self._num_items, "seed")] if self._num_items else []
        parts += [f"fanouts {fanouts}"] if fanouts else []
        parts += [f"batch size {self.batch_size}"] if self.batch_size is not None else []
        parts += [counted(length, "batch")] if length is not None else []
        gpu = self._gpu
        where = counted(self._num_threads(), "thread") if gpu is None else gpu.memory.placement.summary()
        return f"{type(self).__name__}({', '.join([*parts, f'{self._device()}: {where}'])})"

    # Defined by each kind of loader.

    def _fanouts(self) -> Any:
        """Return the numbers of sampled neighbours; ``None``: the sampler has none."""
        return None

    def _settle_device(self) -> None:
        """Select the device that makes batches, if this was not possible before."""

    def _nodes_of_seeds(self) -> Iterable[tuple[torch.Tensor, int]]:
        """Return for each type of seeds the node of each seed, ``[n]``, and the number of nodes of that type."""
        raise NotImplementedError

    def _draw_seed(self) -> int:
        return draw_seed(self.generator)

    def _can_distribute(self) -> bool:
        """Return whether cuGraph may sample the batches."""
        return False

    def _facts(self, seed: int | None) -> dict[str, Any]:
        """Return the facts that must be equal on all ranks, in the order in which differences are reported."""
        facts = {"class": type(self).__name__, "version of the sampling contract": CONTRACT_VERSION, "seed": seed}
        facts |= {"batch_size": self.batch_size, "shuffle": self._shuffle, "drop_last": self.drop_last}
        return facts | self._own_facts()

    def _own_facts(self) -> dict[str, Any]:
        """Return the facts that must be equal on all ranks for loaders of this kind."""
        return self._adapter().facts.of_ranks()

    def _shape(self) -> dict[str, Any]:
        """Return the facts that a saved state is recognised by."""
        return self._adapter().facts.of_state()

    def _stages(self, epoch: Epoch) -> tuple[Callable[[int, Item], Any] | Groups[Item, Any], Any, dict[str, Any]]:
        """Return the stages of a thread, the caller's (``None``: not needed), and the arguments of :meth:`_threads`."""
        adapter, gpu = self._adapter(), self._gpu
        if gpu is None:
            return *steps_on_cpu(adapter, epoch), self._threads(self._num_threads())
        from manyhop.loading.gpu.steps import GPUStages

        stages, needs_none = GPUStages(adapter, epoch, gpu), gpu.needs_no_threads(adapter.assembler, self.timeout)
        return stages.groups(), stages.hand_out, self._threads(0 if needs_none else self._num_threads())

    def _start_gpu(self, device: torch.device, placement: Place | None) -> None:
        """Make batches on a GPU from now on. All ranks that share them call it."""
        from manyhop.loading.gpu.runtime import GPURuntime

        self._gpu = GPURuntime(
            type(self).__name__, self._adapter(), device, placement, stats=self._stats, pool=self._buffers,
            batch_size=self.batch_size, by_part=self._parts is not None, distributed=self.distributed,
            rank_timeout=self.rank_timeout, engine=self.engine,
            can_distribute=self.engine is not None or (not self.timeout and self._can_distribute()),
        )  # fmt: skip

    def _warm_up_gpu(self) -> None:
        """Do the work that the first batch on the GPU would wait for."""
        from manyhop.loading.gpu import warm_up

        adapter, gpu = self._adapter(), self._gpu
        num_threads = 0 if gpu.needs_no_threads(adapter.assembler, self.timeout) else self.num_workers
        known = self.pad is None or self._padding is not None
        warm_up.prepare(self._first_plan(), adapter, gpu, num_threads=num_threads, sizes_are_known=known)

    def _make_padding(self, samples: list[Any], device: torch.device | None) -> Any:
        """Return the object that pads batches, with sizes for these samples, on a GPU or the CPU (``None``)."""
        raise NotImplementedError

    def _find_padding(self) -> None:
        """Find the sizes of padded batches, if the user wants them."""
        if self.pad is None or self._num_items == 0:
            return
        if self.batch_size is None:
            raise InputError(
                "Expected a batch_size with pad='auto', got a batch_sampler: batches are padded to one size. Pass "
                "batch_size and shuffle, or a sampler."
            )
        plan, gpu = self._plan(), self._gpu
        plan = replace(plan, shuffle=plan.shuffle or not self._own_order, drop_last=False)
        with nullcontext() if gpu is None else gpu.streams.on_stream():
            samples = probe(plan, self._adapter().seeds, gpu)
            self._padding = self._make_padding(samples, None if gpu is None else gpu.device)
            if gpu is not None and gpu.sampling is not None:
                from manyhop.loading.gpu.warm_up import reserve

                reserve(self._adapter(), gpu, probe(plan, self._adapter().seeds, gpu))  # padded now

    def _first_plan(self) -> BatchPlan | None:
        """Return the plan with seed 0, to warm up; ``None``: a user's sampler cuts the batches."""
        return self._plan() if self._own_order else None

    def _over_nodes(self) -> bool:
        """Return whether rows are sharded over the host memory of multiple nodes."""
        return False

    def _exchanges(self) -> bool:
        """Return whether ranks exchange rows for each batch."""
        return self._over_nodes() or (self._gpu is not None and self._gpu.memory.exchanges)

    def _prepare_ranks(self) -> None:
        """Prepare iterations of the complete loader, if ranks share its batches. All of them call it."""
        if self._ranks is not None:
            self._ranks.prepare(self._make_exchange)
            self.__dict__["sampler"] = SharedSampler(self._num_items, self._ranks.world)  # torch forbids to set it

    def _make_exchange(self, title: str, timeout: float) -> RowExchange | None:
        """Return the exchange of a loader; ``None`` if all rows are on this node. All ranks call it."""
        if self._gpu is None or not self._gpu.memory.exchanges:
            if not self._over_nodes():
                return None
            return Exchange(title, timeout=timeout)
        from manyhop.loading.gpu.warm_up import make_exchange

        with on_gpu(self._gpu.device):
            return make_exchange(self._first_plan(), self._adapter(), self._gpu, title, timeout)

    def _fill_caches(self) -> None:
        """Cache the rows of files that the first batches read, unless another loader has done so."""
        self._fills_caches = False
        fresh = [(value, cache) for value, cache in self._file_caches() if cache.claim()]
        if not fresh or not self._own_order or self._exchanges():
            return
        stats, self._stats = self._stats, Stats()  # the user did not request the batches
        try:
            warm_up_caches(self._adapter(), self._plan(), [cache for _, cache in fresh])
        finally:
            self._stats = stats
        for value, cache in fresh:
            cache.renew(value)

    # Iteration

    def _begin_epoch(self, index_sampler: Any) -> EpochIterator:
        """Return an iterator over the next epoch, or the rest of one.

        Args:
            index_sampler: yields the items if a user's sampler cuts the batches.

        Raises:
            InputError: a mapped file has been truncated.
        """
        check_mapped_files()
        if self._fills_caches and self._gpu is None:
            collapse(self._sources())
            self._fill_caches()
        progress = self._progress
        if progress.begun:
            progress = self._progress = Progress(epoch=self._next_epoch)
        progress.begun = True
        self._next_epoch = progress.epoch + 1
        length = self._length()
        stateful = self._stateful_sampler()
        seed, number = self._key_of_epoch(progress, replays=not self._own_order and stateful is None)
        if self._own_order:
            schedule, plan = self._schedule(progress.batch), self._plan(seed)
            by_number = self._gpu is not None and self._gpu.lookup is not None
            items, to_index = planned(plan, number, schedule, by_number=by_number)
            rounds: int | None = len(schedule)
        else:
            skip, plan = progress.batch if stateful is None else 0, None
            schedule, items, to_index = given(index_sampler, skip, progress.batch)
            rounds = None if length is None else length - progress.batch
            if stateful is not None and progress.sampler is None:
                progress.sampler = stateful.state_dict()
            elif stateful is not None:
                stateful.load_state_dict(progress.sampler)
        exchanges, watched = None, None
        if self._ranks is not None:
            make_exchange = self._make_exchange if self._exchanges() else None
            exchanges, watched = self._ranks.begin(make_exchange, progress.epoch, len(schedule))
        if self._gpu is not None:
            self._gpu.streams.begin()
        self._count_cached_rows()
        self._stats.begin_epoch()
        make, finish, threads = self._stages(Epoch(seed, number, plan, to_index, exchanges))
        iterator = EpochIterator(
            progress, schedule, items, make, length=length, rounds=rounds, exchanges=exchanges, watched=watched,
            gpu=self._gpu, finish=finish, stats=self._stats, replay=self._replay,
            snapshot=None if stateful is None else stateful.state_dict, **threads,
        )  # fmt: skip
        if self._ranks is not None:
            self._ranks.begun(iterator)
        self._announce(iterator)
        return iterator

    def _make_alone(self, key: tuple[int, int, int] | None, make: Callable[[], Any]) -> Any:
        """Return one batch outside of any epoch. Thread-safe.

        Args:
            key: ``(seed, epoch, batch)``; ``None``: the loader's seed, or 0, and batch 0 of epoch 0.
            make: makes the batch, in the body of :class:`BatchContext`.

        Raises:
            InputError: an invalid key, or a batch that needs other ranks.
        """
        if self._gpu is not None and self._gpu.collective and current_size() > 1:
            raise InputError(
                "Expected a topology that this rank reads alone for a single batch, got one that cuGraph samples with "
                "all ranks in step. Iterate over the loader, or leave engine out."
            )
        if self._exchanges():
            raise InputError(
                "Expected rows that this rank reads alone for a single batch, got some that ranks exchange in step. "
                "Iterate over the loader, or use a different placement."
            )
        with BatchContext(BatchKey(self.seed or 0, 0, 0) if key is None else batch_key(key), None):
            return make()

    def replay(self, epoch: int, batch: int) -> Any:
        """Make a batch of an epoch again, outside of iterations. The note of an error names both numbers.

        Raises:
            InputError: no such batch, the epoch's seed is not known any more, a user's sampler cuts the batches, or the
                batch needs other ranks.
        """
        if self._replay != REPLAY:
            raise InputError(f"Expected a loader that cuts its own batches, got one over a sampler. Use {REPLAY_NEXT}.")
        latest, epoch, batch = self._progress, integer("epoch", epoch, 0), integer("batch", batch, 0)
        progress = Progress(epoch=epoch, seed=latest.seed if latest.epoch == epoch else None)
        if self.seed is None and progress.seed is None:
            raise InputError(f"Expected the latest epoch of a loader without a seed, got {epoch}. Pass seed= to it.")
        self._settle_device()
        seed, number = self._key_of_epoch(progress, replays=False)
        plan = self._plan(seed)
        item = RankBatch(batch, batch), torch.from_numpy(plan.indices(number, batch))
        again = Epoch(seed, number, plan, lambda index: index, None)
        stages: Any = self._stages(again) if self._gpu is None else steps_on_cpu(self._adapter(), again)
        make, finish = stages[:2]

        def whole() -> Any:
            made = make(batch, item)
            return made if finish is None else finish(batch, made)

        return self._make_alone((seed, number, batch), whole)

    def _key_of_epoch(self, progress: Progress, *, replays: bool) -> tuple[int, int]:
        """Return the seed and the epoch in the keys of this rank's batches.

        A drawn seed belongs to one epoch, with number 0: runs over one loader, each after ``torch.manual_seed``, are
        equal. Ranks that do not share batches have different seeds; rank 0 has that of a single process.

        Args:
            progress: progress of the epoch that begins; a drawn seed is stored in it.
            replays: the user's sampler starts again after a restart, so draws must be repeated before it.
        """
        if self.seed is not None and progress.seed is None:
            seed, number = self.seed, progress.epoch
        else:
            if progress.seed is None:
                progress.seed = self._draw_seed()
            elif replays:
                self._draw_seed()
            seed, number = progress.seed, 0
        rank = 0 if self.distributed else current_rank()
        return seed if rank == 0 else int(make_key(Use.RANK, seed, rank)), number

    def _plan(self, seed: int = 0) -> BatchPlan:
        """Return the plan of batches. Seed 0 is for warming up, before any epoch has a seed."""
        assert self.batch_size is not None
        return BatchPlan(self._num_items, self.batch_size, self._shuffle, self.drop_last, seed, self._parts)

    def _find_parts(self, num_parts: int) -> ItemParts:
        found = [parts_of(nodes.cpu().numpy(), count, num_parts) for nodes, count in self._nodes_of_seeds()]
        assert self.batch_size is not None
        return ItemParts(np.concatenate([np.zeros(0, np.int64), *found]), num_parts, self.batch_size)

    def _schedule(self, first: int) -> RankSchedule:
        """Return this rank's schedule for the rest of an epoch after ``first`` batches."""
        num_batches = len(self._plan())
        if self._ranks is None:
            return RankSchedule(num_batches=num_batches, first=first)
        world = self._ranks.world
        return RankSchedule(
            num_batches=num_batches, world_size=world.world_size, rank=world.rank, first=first,
            uneven=self._ranks.uneven, parts=self._parts,
        )  # fmt: skip

    def _num_threads(self) -> int:
        """Return the number of threads that make batches; 0: the caller makes them."""
        return self.num_workers

    def _threads(self, number: int) -> dict[str, Any]:
        """Return the pipeline's arguments for threads that make the next epoch's batches; 0: the caller makes them."""
        pool = None
        if self.persistent_workers and number > 0:
            ahead = self._gpu is not None
            if self._pool is None or self._pool_init is not self.worker_init_fn or self._pool.start_ahead != ahead:
                if self._pool is not None:
                    self._pool.close()
                self._pool_init = self.worker_init_fn
                self._pool = WorkerPool(number, self.worker_init_fn, start_ahead=ahead)
            pool = self._pool
        return {
            "num_workers": number,
            "prefetch": self.prefetch_factor or 2,
            "timeout": self.timeout if number > 0 else None,
            "worker_init": self.worker_init_fn if pool is None and number > 0 else None,
            "pool": pool,
        }

    def check_worker_number_rationality(self) -> None:
        """Do nothing: threads are cheap."""

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_pool"] = state["_pool_init"] = state["_gpu"] = None
        state["_ranks"] = copy.copy(self._ranks)
        progress = self._progress  # a copy begins where the next iteration of the original would
        state["_progress"] = Progress(epoch=self._next_epoch) if progress.begun else replace(progress)
        return state
