"""The runtime of a loader on a GPU: memory, streams, gathers, learned sizes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import BufferPool, Checks, RowRequest, gather
from manyhop.loading.adapter import Adapter, Assembler, Columns, Placed, SeedSource
from manyhop.loading.gpu.decide import decide_memory, reads_all
from manyhop.loading.gpu.memory import GPUMemory
from manyhop.loading.gpu.samples import BACKLOG, BACKLOG_TOGETHER, MOST_ALONE, MOST_TOGETHER, TensorPool, group_size
from manyhop.loading.keys import current_batch, current_exchange
from manyhop.loading.options import EngineName
from manyhop.loading.pipeline import OnStream, RankBatch, Stats, Streams, tensors_in
from manyhop.loading.which_gpu import on_gpu, warn_if_shared
from manyhop.memory.places import Place
from manyhop.memory.stores.places import exchanged_on_gpus
from manyhop.ranks import world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.sampling.engines import CollectiveEngine, collective_backend
from manyhop.system.arrays import Version

Gather: TypeAlias = Callable[[list[RowRequest]], list[Any]]

_NO_TENSORS = frozenset({int, float, str, bool, type(None)})
_STRIDED = torch.strided
JOINED = 16  # batches per gather, as a rule
_JOINED_LAST = JOINED + JOINED // 2  # the most, if they complete a group
_NODES_PER_SEED_EDGE = 4  # its ends, and the ends of a negative edge
_JOINED_SHARE = 1 / 128  # largest share of the GPU's memory for their rows


class GPURuntime:
    """The runtime of a loader on a GPU. It references neither the loader nor its adapter.

    Without a ``mode``, placement is chosen by sizes and free memory. If batches have seeds of one part of the nodes
    (``by_part``), the host looks them up. ``name`` is the name of the loader's class.
    """

    def __init__(
        self,
        name: str,
        adapter: Adapter[Any, Any],
        device: torch.device,
        mode: Place | None,
        *,
        stats: Stats,
        pool: BufferPool,
        batch_size: int | None,
        by_part: bool,
        distributed: bool,
        rank_timeout: float | None,
        engine: EngineName | None,
        can_distribute: bool,
    ) -> None:
        self.device = device
        graph, named, timeout = adapter.seeds.graph, adapter.columns.named(), rank_timeout or DEFAULT_TIMEOUT
        if engine is not None and graph is None:
            raise InputError(
                f"Expected one of manyhop's samplers, unchanged, with engine={engine!r}, got another. Leave engine out."
            )
        decides = graph is not None or bool(named)  # else batches are only moved here
        together = distributed and decides
        if not together:  # ranks that decide together cannot share a GPU
            warn_if_shared(device)
        with on_gpu(device):  # shared GPU memory belongs to torch's current device
            exchanged = exchanged_on_gpus(named, timeout) if together and adapter.columns.complete else {}
            self.memory = decide_memory(
                named,
                graph,
                device,
                mode,
                together=together,
                timeout=timeout,
                kept_rows=adapter.columns.kept_rows,
                exchanged=exchanged,
                engine=engine,
                can_distribute=can_distribute,
            )
            if decides and (not together or world.current_rank() == 0):  # ranks have decided the same
                what = name, device, self.memory.placement
                logging.getLogger("manyhop").info("%s on %s:\n%s", *what)
            self.sampling: Any = None
            if graph is not None and self.memory.topology != "host":
                self.sampling = adapter.seeds.place(device, self.memory.topology)
        self.collective = self.sampling is not None and self.memory.topology == "distributed"
        """Whether all ranks sample together, in the threads that request batches."""
        self.group_size = 1 if self.sampling is None else self._group_size(batch_size, adapter.seeds)
        self.lookup = None if self.sampling is None or by_part else adapter.seeds.lookup(device)
        self.checks = Checks()
        self.marks = TensorPool(device, partial(torch.zeros, dtype=torch.bool))
        """Marks of the seeds of batches, all ``False``."""
        self._pool = pool
        self._reads_all = adapter.columns.complete and reads_all(named, device, self.memory.placement)
        self._intercept: Gather | None = None
        self.streams = Streams(device, stats, backlog=BACKLOG_TOGETHER if self.collective else BACKLOG)
        self._batch_bytes, self._joined_bytes = 0, int(_JOINED_SHARE * _total_memory(device))
        self._lock = threading.Lock()
        self.placed: Placed | None = None
        """The tensors that the latest rows were gathered from."""
        self._sources: Sources | None = None
        self._known: frozenset[int] = frozenset()
        if adapter.columns.complete:
            self.columns(adapter.columns)

    def _group_size(self, batch_size: int | None, seeds: SeedSource[Any]) -> int:
        """Return the number of batches that are sampled together, equal on all ranks."""
        if not self.collective:
            return group_size(batch_size, MOST_ALONE)
        with on_gpu(self.device):
            engine = seeds.engine(self.sampling)
        nodes = 1 if seeds.of_nodes else _NODES_PER_SEED_EDGE
        request_size = cast(CollectiveEngine, engine).request_size
        return group_size(batch_size, (MOST_TOGETHER, request_size // nodes))

    def columns(self, columns: Columns) -> Any:
        """Return the current tensors that rows are gathered from, where the GPU reads them."""
        placed, sources = self.placed, self._sources
        if placed is not None and sources is not None and columns.fits(placed) and sources.is_current():
            return placed
        with self._lock:
            self.streams.synchronize()  # reads of the former tensors are complete
            sources = Sources(self.memory)
            placed = columns.place(sources, self.device)
            self.streams.synchronize()  # copies are complete
            # Threads use the former tensors until all new ones are set; ids are valid while their objects live.
            self._known = placed.shared_objects()
            self.placed, self._sources = placed, sources
            return placed

    def versions(self) -> list[tuple[Tensor, int]]:
        """Return the tensors that rows are read or copied from, with their versions."""
        assert self.placed is not None
        assert self._sources is not None
        own = [value for value in self.placed.sources if type(value) is Tensor]
        return [(value, value._version) for value in own if not value.is_inference()] + self._sources.versions()

    def receive(self, made: OnStream[Any], tensors_of: Callable[[Any], list[Tensor]]) -> Any:
        """Return a batch to the caller, ready on the caller's stream; ``tensors_of`` returns the tensors of a batch."""
        if self.checks:
            self.checks.ask()
        return self.streams.receive(made, tensors_of, self.group_size)

    def tensors_of(self, adapter: Adapter[Any, Any], batches: Sequence[Any]) -> list[Tensor]:
        """Return the tensors of batches, one per storage, without the user's."""
        found: dict[int, Tensor] = {}
        known = self._known
        for batch in batches:
            for values in adapter.assembler.values(batch):
                for value in values:
                    kind = type(value)
                    if kind is Tensor and value.layout is _STRIDED:
                        if id(value) not in known:
                            found[value.untyped_storage().data_ptr()] = value
                    elif kind not in _NO_TENSORS and not (kind is list and _NO_TENSORS.issuperset(map(type, value))):
                        found.update((id(tensor), tensor) for tensor in tensors_in(value, known))
        return list(found.values())

    def gather(self, requests: list[RowRequest], threads: int | None = None) -> list[Any]:
        """Gather the rows of all tensors of some batches to this GPU; ``threads`` read host memory."""
        if self._intercept is not None:
            return self._intercept(requests)
        if threads is None:  # like torch's operators: all cores in the caller, one in a worker thread
            threads = 1 if self._reads_all else torch.get_num_threads()
        checks = None if current_batch() is None else self.checks  # a batch outside of epochs has no later check
        return gather(requests, pool=self._pool, threads=threads, exchange=current_exchange(), checks=checks)

    @contextmanager
    def intercepting_gathers(self, handler: Gather) -> Iterator[None]:
        """Call ``handler`` instead of gathering rows during the context."""
        self._intercept = handler
        try:
            yield
        finally:
            self._intercept = None

    def is_timed(self, rank_batch: RankBatch | None) -> bool:
        """Return whether to time the work for a batch: one batch represents its group."""
        return rank_batch is not None and rank_batch.round % self.group_size == 0

    def start_gather(self) -> Any:
        """Record the start of a gather for the batch that this thread is making."""
        return self.streams.mark() if self.is_timed(current_batch()) else None

    def end_gather(self, start: Any, batches: int) -> None:
        """Record the end of a gather that covered ``batches`` batches."""
        rank_batch = None if start is None else current_batch()
        if rank_batch is not None:
            times = max(1, self.group_size // batches)
            self.streams.took(times, "gather", rank_batch.batch, start, self.streams.mark())

    def needs_no_threads(self, assembler: Assembler[Any, Any], timeout: float) -> bool:
        """Return whether batches cost the host so little that threads, which compete with the caller, are slower.

        A ``timeout`` needs threads; 0: no limit.
        """
        return self.collective or (
            self.sampling is not None
            and self._reads_all
            and not self.memory.exchanges
            and not assembler.runs_user_code
            and not timeout
        )

    def drain(self) -> None:
        """Help the other ranks, if all sample together, until none has batches to sample. All ranks call it."""
        if self.collective:
            with on_gpu(self.device):
                collective_backend().drain(timeout=DEFAULT_TIMEOUT)

    def joined_at_once(self, left: int) -> int:
        """Return how many of the ``left`` batches of a group one gather covers, limited by the memory of their rows."""
        if self._batch_bytes == 0 or self._intercept is not None:
            return 1
        most = max(1, self._joined_bytes // self._batch_bytes)
        return left if left <= min(_JOINED_LAST, most) else min(JOINED, most)  # no small rest

    def learn_size(self, batch_bytes: int) -> None:
        """Update the largest size of the rows of a batch."""
        self._batch_bytes = max(batch_bytes, self._batch_bytes, 1)


class Sources:
    """Places attributes, holds their copies, and detects changes of the user's tensors."""

    def __init__(self, memory: GPUMemory) -> None:
        self._memory, self._cached = memory, memory.cached
        self._watched: list[Version] = []

    def __call__(self, name: str, value: Any) -> Any:
        """Return the source of an attribute's rows."""
        return self._memory.placed(name, value, self._watched.append)

    def versions(self) -> list[tuple[Tensor, int]]:
        """Return the copied tensors and their versions when they were copied."""
        return [version.of_tensor for version in self._watched if version.of_tensor is not None]

    def is_current(self) -> bool:
        """Return whether caches are the same, and no copied tensor has been changed in place."""
        return self._cached is self._memory.cached and all([version.is_current() for version in self._watched])


def _total_memory(device: torch.device) -> int:
    if device.type != "cuda":  # triton's interpreter
        return 1 << 36
    return int(torch.cuda.get_device_properties(device).total_memory)
