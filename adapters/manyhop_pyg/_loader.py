"""What all loaders share: order, threads, resume and statistics instead of torch's worker processes."""

from __future__ import annotations

import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import infer_filter_per_worker
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.errors import InputError
from manyhop.features import BufferPool
from manyhop.pipeline import BatchPlan, LoaderState, Stats, StatsReport, WorkerPool, save_timeline
from manyhop.sampling import BatchKey
from manyhop_pyg._assemble import Rows, begin_data, begin_hetero_data, label_data, label_types
from manyhop_pyg._assemble_remote import join_hetero_store, join_store
from manyhop_pyg._iterator import EpochIterator, Progress, Threads, given, planned
from manyhop_pyg._keys import current_batch, making


class ThreadedLoader(DataLoader[Any]):
    """A torch ``DataLoader`` whose batches are made by threads of this process, in keyed order.

    ``num_workers=N`` is N threads that make batches ahead; 0 makes them in the caller. Neither the order of the batches
    nor what is in them depends on N. With ``shuffle=True`` the order is a function of ``(seed, epoch)``; a ``sampler``
    or ``batch_sampler`` of the user is honoured as it is. Epochs advance at each ``iter(loader)``.

    torch's arguments for worker processes: ``persistent_workers`` keeps the threads between epochs, ``worker_init_fn``
    is called once in each thread (``torch.utils.data.get_worker_info()`` stays ``None``), ``prefetch_factor`` is the
    number of batches ahead per thread (2), ``timeout`` limits the wait for a batch, ``pin_memory`` pins batches where
    there is an accelerator, ``multiprocessing_context`` has no effect as no process is started, and ``in_order=False``
    neither as batches always come in order.
    """

    data: Any
    transform: Any
    transform_sampler_output: Any
    filter_per_worker: bool
    custom_cls: Any
    input_data: Any
    worker_init_fn: Any
    loader_cores: list[Any]
    _old_worker_init_fn: Callable[[int], None]
    _store_size: tuple[int | None, int | None]

    def _set_up(self, num_items: int, seed: int | None, kwargs: dict[str, Any]) -> None:
        """Be a DataLoader over ``range(num_items)``. The last step of a loader's construction."""
        _check_arguments(self, kwargs)
        shuffle = bool(kwargs.get("shuffle"))
        self._own_order = kwargs.get("sampler") is None and kwargs.get("batch_sampler") is None
        if num_items == 0:
            kwargs["shuffle"] = False  # torch's random sampler refuses to shuffle nothing
        self._num_items = num_items
        # A range is no torch Dataset, but all that a DataLoader asks of one.
        DataLoader.__init__(self, range(num_items), collate_fn=self.collate_fn, **kwargs)  # type: ignore[arg-type]
        del self.__dict__["collate_fn"]  # it is a method; the attribute would be a reference cycle
        if self.num_workers == 0 and self.timeout:
            raise InputError(f"Expected timeout=0 with num_workers=0, got {self.timeout}: only threads can be late.")
        if self.prefetch_factor == 0:
            raise InputError("Expected prefetch_factor of at least 1, got 0: a thread makes at least one batch ahead.")
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator))
        try:
            self.seed = operator.index(seed)
        except TypeError:
            raise InputError(f"Expected seed to be an integer, got {seed!r}.") from None
        self._shuffle = shuffle
        self._next_epoch = 0
        self._progress = Progress()
        self._pool: WorkerPool | None = None
        self._pool_init: Any = None
        self._copy_threads: int | None = None
        self._stats = Stats(self.num_workers)
        self._buffers = BufferPool()

    # Iteration

    def __iter__(self) -> Any:
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        progress = self._progress
        if progress.begun:
            progress = self._progress = Progress(epoch=self._next_epoch)
        progress.begun = True
        self._next_epoch = progress.epoch + 1
        key = BatchKey(self.seed, progress.epoch, 0)
        stateful = self._stateful_sampler()
        if self._own_order:
            items, to_index = planned(self._plan(), progress.epoch, progress.batch)
        elif stateful is not None:
            items, to_index = given(self._index_sampler, 0)
            if progress.sampler is None:
                progress.sampler = stateful.state_dict()
            else:
                stateful.load_state_dict(progress.sampler)
        else:
            items, to_index = given(self._index_sampler, progress.batch)
        pins = self._pins()
        in_thread = self.filter_per_worker

        def make(batch: int, item: Any) -> Any:
            with making(key._replace(batch=batch)):
                value = self.collate_fn(to_index(item))
            return _pinned(value) if pins and in_thread else value

        def finish(batch: int, value: Any) -> Any:
            with making(key._replace(batch=batch), first_call=1):
                value = self.filter_fn(value)
            return _pinned(value) if pins else value

        return EpochIterator(
            progress,
            items,
            make,
            None if in_thread else finish,
            self._threads(),
            self._stats,
            None if stateful is None else stateful.state_dict,
            self._length(),
        )

    def _plan(self) -> BatchPlan:
        assert self.batch_size is not None
        return BatchPlan(self._num_items, self.batch_size, self._shuffle, self.drop_last, self.seed)

    def _length(self) -> int | None:
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    def _stateful_sampler(self) -> Any:
        """The user's sampler, if it can save where it is."""
        if self._own_order:
            return None
        for sampler in (self.batch_sampler, self.sampler):
            if callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None)):
                return sampler
        return None

    def _threads(self) -> Threads:
        pool = None
        if self.persistent_workers and self.num_workers > 0:
            if self._pool is None or self._pool_init is not self.worker_init_fn:
                if self._pool is not None:
                    self._pool.close()
                self._pool_init = self.worker_init_fn
                self._pool = WorkerPool(self.num_workers, self.worker_init_fn)
            pool = self._pool
        return Threads(
            num_workers=self.num_workers,
            prefetch=self.prefetch_factor or 2,
            timeout=self.timeout,
            worker_init=self.worker_init_fn if pool is None and self.num_workers > 0 else None,
            pool=pool,
        )

    def _pins(self) -> bool:
        if not self.pin_memory:
            return False
        if not torch.accelerator.is_available():
            warnings.warn("pin_memory=True, but no accelerator is found: memory is not pinned.", stacklevel=4)
            return False
        return True

    def check_worker_number_rationality(self) -> None:
        """Threads are cheap: there is nothing to warn about."""

    # One batch

    def _sample(self, index: Any) -> Any:
        """Call the sampler with a ``NodeSamplerInput`` or ``EdgeSamplerInput``."""
        raise NotImplementedError

    def _edge_permutation(self) -> Any:
        raise NotImplementedError

    def _label(self, batch: Any, out: Any) -> None:
        """Set the attributes that only batches of nodes, or only those of links, have."""
        raise NotImplementedError

    def collate_fn(self, index: Any) -> Any:
        """Sample around the inputs at positions ``index``; joins features, too, if ``filter_per_worker``."""
        start = time.perf_counter()
        try:
            inputs = self.input_data[index]
        except IndexError:
            raise InputError(
                f"Expected positions of inputs in [0, {self._num_items}), got up to {max(map(int, index))}. "
                "A sampler has to draw from the loader's inputs (input_nodes, edge_label_index), not from all nodes."
            ) from None
        out = self._sample(inputs)
        batch = current_batch()
        if batch is not None:
            self._stats.record(batch, "sample", start, time.perf_counter())
            self._stats.count(seeds=inputs.input_id.numel(), nodes=_total(out.node), edges=_total(out.row))
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join a sample with the features: the batch as ``Data`` or ``HeteroData``, transformed."""
        times = [time.perf_counter()]
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        data, nbytes = self._join(out, times)
        if isinstance(out, SamplerOutput):
            label_data(data, out)
        else:
            label_types(data, out)
        self._label(data, out)
        if self.transform is not None:
            data = self.transform(data)
        batch = current_batch()
        if batch is not None:
            self._stats.record(batch, "assemble", times[0], times[1])
            self._stats.record(batch, "gather", times[1], times[2])
            self._stats.record(batch, "assemble", times[2], time.perf_counter())
            self._stats.count(gathered_bytes=nbytes)
        return data

    def _join(self, out: Any, times: list[float]) -> tuple[Any, int]:
        """The batch without labels, and the bytes of its features; appends when gathering began and ended."""
        perm = self._edge_permutation()
        if isinstance(out, SamplerOutput | HeteroSamplerOutput) and isinstance(self.data, Data | HeteroData):
            rows = Rows()
            if isinstance(out, SamplerOutput):
                batch = begin_data(self.data, out, perm, rows)
            else:
                batch = begin_hetero_data(self.data, out, perm, rows)
            times.append(time.perf_counter())
            # As many threads as torch's operators have here: all cores in the caller, one in a thread of the loader.
            nbytes = rows.fetch(self._buffers, self._copy_threads or torch.get_num_threads())
        elif isinstance(out, SamplerOutput):
            times.append(time.perf_counter())
            batch, nbytes = join_store(self.data[0], out, perm, self._store_size, self.custom_cls)
        elif isinstance(out, HeteroSamplerOutput):
            times.append(time.perf_counter())
            batch, nbytes = join_hetero_store(self.data[0], self.data[1], out, perm, self.custom_cls)
        else:
            raise TypeError(f"'{type(self).__name__}' found invalid type: '{type(out)}'")
        times.append(time.perf_counter())
        return batch, nbytes

    # State and figures

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, from 0; before the first one, the epoch to come."""
        return self._progress.epoch

    def _state(self) -> LoaderState:
        p = self._progress
        stateful = self._stateful_sampler()
        sampler = None if stateful is None else p.sampler if p.sampler is not None else stateful.state_dict()
        return LoaderState(
            seed=self.seed,
            epoch=p.epoch + p.done,
            batch=0 if p.done else p.batch,
            num_items=self._num_items,
            batch_size=self.batch_size,
            shuffle=self._shuffle,
            drop_last=self.drop_last,
            sampler=sampler,
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration stands, counted in batches received: those made ahead do not count."""
        return self._state().to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict()`` was called: the next ``iter(loader)`` hands out the rest of that epoch.

        A sampler of the user that has no ``state_dict`` of its own is iterated anew, and its first batches are dropped:
        it must give the same order again (``set_epoch``, ``torch.manual_seed``).

        Raises:
            StateError: the state is of a loader with other seeds, batches or order.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check(self._state(), self._length())
        self.seed = loaded.seed
        self._progress = Progress(epoch=loaded.epoch, batch=loaded.batch, sampler=loaded.sampler)

    def stats(self) -> StatsReport:
        """Speed, where the time goes, and what to do about it; ``print`` shows a table."""
        return self._stats.report()

    def timeline(self, path: str | PathLike[str]) -> None:
        """Save a picture of the last batches: ``.svg``, ``.png`` or ``.json`` (for ui.perfetto.dev)."""
        save_timeline(self._stats, path)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_pool"] = state["_pool_init"] = None
        progress = self._progress  # a copy begins where the next iteration of the original would
        state["_progress"] = Progress(epoch=self._next_epoch) if progress.begun else progress
        return state

    # PyG's context managers

    def _aff_init_fn(self, worker_id: int) -> None:
        """Bind the calling thread to its cores (``enable_cpu_affinity``)."""
        cores = self.loader_cores[worker_id]
        os.sched_setaffinity(0, cores if isinstance(cores, list) else [cores])
        self._old_worker_init_fn(worker_id)

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: Any = None) -> Iterator[None]:
        """Bind the threads to CPU cores: one core, or a list of cores, for each; default: the first cores."""
        if not hasattr(os, "sched_setaffinity"):
            raise InputError("Threads cannot be bound to cores on this system: leave enable_cpu_affinity out.")
        with super().enable_cpu_affinity(loader_cores):  # type: ignore[misc]  # a mixin of PyG has it
            yield

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:
        """Let each thread of the loader gather features with several threads: by default all cores, shared evenly."""
        if self.num_workers == 0:
            raise InputError("Expected num_workers of at least 1 for 'enable_multithreading', got 0.")
        cores = torch.get_num_threads()
        wanted = max(1, cores // self.num_workers) if worker_threads is None else worker_threads
        if not 1 <= wanted <= cores:
            raise InputError(f"Expected 'worker_threads' from 1 to {cores} (torch.get_num_threads()), got {wanted}.")
        before, self._copy_threads = self._copy_threads, wanted
        try:
            yield
        finally:
            self._copy_threads = before


def infer_placement(data: Any, filter_per_worker: bool | None) -> bool:
    """Where features are joined: in the loader's threads, but for data on a GPU."""
    return bool(infer_filter_per_worker(data)) if filter_per_worker is None else filter_per_worker


def _check_arguments(loader: object, kwargs: dict[str, Any]) -> None:
    """Take out what Lightning hands back, and refuse what would be ignored."""
    dataset = kwargs.pop("dataset", None)
    if not isinstance(dataset, range | None):
        raise InputError(
            f"Expected no dataset, got {type(dataset).__name__}: the inputs are the dataset (input_nodes or "
            "edge_label_index)."
        )
    collate_fn = kwargs.pop("collate_fn", None)
    if collate_fn is not None and getattr(collate_fn, "__name__", None) != "collate_fn":
        raise InputError("Expected no collate_fn: a batch is sampled, not collated. Pass `transform` to change it.")
    if kwargs.get("batch_size", 1) is None:
        raise InputError(
            "Expected batch_size to be an integer, got None: seeds are sampled in batches. batch_size=1 samples one "
            "by one, a batch_sampler decides for itself."
        )


def _pinned(batch: Any) -> Any:
    return pin_memory(batch)  # type: ignore[no-untyped-call]  # of torch


def _total(values: Any) -> int:
    """Entries of a tensor, or of all tensors in a dictionary."""
    return sum(v.numel() for v in values.values()) if isinstance(values, dict) else values.numel()
