"""How a loader makes its batches on a GPU: sampled in groups, completed one by one on streams of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.features import Checks, RowRequest, gather
from manyhop.loading import Epoch, Item, current_turn
from manyhop.pipeline import Groups, OnStream, Streams, Turn
from manyhop.sampling import BatchKey
from manyhop_dgl._edge_prediction import as_tensors
from manyhop_dgl._edge_prediction_tensors import EdgeTensors
from manyhop_dgl._loader_gpu_memory import GPUMemory
from manyhop_dgl._loader_tensors import sampler_of_nodes
from manyhop_dgl._samplers_arguments import read_exclude, read_seeds
from manyhop_dgl._samplers_plan import CPU, Plan
from manyhop_dgl._samplers_tensors import BlockTensors
from manyhop_dgl._storages import Filled

_SEEDS_PER_GROUP = 16384  # more are hardly faster
_MOST_PER_GROUP = 32
_REHEARSALS = 3
_BACKLOG = 3  # batches in the caller's stream: enough to never let it run dry

Batch = tuple[Turn, Filled]


class OnGPU:
    """The part of a loader that knows its GPU.

    Args:
        loader: complete but for this; its sampler is one of manyhop's.
        device: the GPU.
    """

    def __init__(self, loader: Any, device: torch.device) -> None:
        self.device = device
        self._graph, self._sampler = loader.graph, sampler_of_nodes(loader.graph_sampler)
        self._edges = None if self._sampler is loader.graph_sampler else loader.graph_sampler
        self._plan: Plan | None = None
        self.checks = Checks()
        self.streams = Streams(device, loader._stats, backlog=_BACKLOG)
        self.memory = GPUMemory(self._graph, loader.graph_sampler, device, self.streams, use_uva=loader.use_uva)
        self.group_size: int = max(1, min(_MOST_PER_GROUP, _SEEDS_PER_GROUP // loader.batch_size))

    def prepare(self, loader: Any) -> None:
        """What the first batch would have to wait for: kernels are compiled, memory is taken, rows are kept."""
        plan = loader._plan()
        batches = range(min(len(plan), self.group_size))
        if not batches:
            return
        seeds = [loader.dataset.at(torch.from_numpy(plan.indices(0, batch))) for batch in batches]
        keys = [BatchKey(0, 0, batch) for batch in batches]
        last = len(plan) % self.group_size  # which may be too few for what is ready for a whole group
        with self.streams.here():
            for _ in range(_REHEARSALS):  # sizes are learned by the first
                groups = [self.begin(seeds, keys) for _ in range(2 * max(1, loader.num_workers))]
                for group in groups:
                    tensors = [group.take(i) for i in batches]
            if 0 < last < len(batches):
                self.begin(seeds[:last], keys[:last]).take(0)
            self.memory.keep_hot(loader.gpu_cache, tensors, loader._prefetcher)
            loader._prefetcher.fill(tensors[0], self.gather)
        self.streams.synchronize()
        self.streams.forget_times()

    def finds_seeds(self, loader: Any, adapter: Any) -> bool:
        """Whether the GPU looks up seeds: not yet."""
        return False

    def needs_no_threads(self, loader: Any, adapter: Any) -> bool:
        """Whether a batch costs the host so little that threads, which take turns with the caller, are slower."""
        return (
            self._edges is None
            and self._plan is not None
            and self._plan.device == self.device
            and self.memory.reads_all
            and loader.worker_init_fn.func is None
            and not loader.timeout
        )

    def plan(self, topology: Any) -> Plan:
        """What samples a topology; on the CPU where it does not fit anywhere else."""
        arguments, where = self._sampler.arguments(), self.memory.topology
        # LABOR with importance sampling goes round by round, which is for the CPU.
        on_cpu = where == "host" or getattr(arguments, "importance_sampling", 0) != 0
        plan: Plan = self._sampler._plans.of(topology, arguments, CPU if on_cpu else self.device, where)
        if plan is not self._plan:
            self.streams.synchronize()  # its tables are there
            self._plan = plan
        return plan

    def begin(self, seeds: Sequence[Any], keys: Sequence[BatchKey]) -> Begun:
        """Begin to sample several batches."""
        topology = self._sampler.arguments().topology(self._graph)
        batches = [self._batch(topology, *one) for one in zip(seeds, keys, strict=True)]
        return Begun(self, self.plan(topology), batches)

    def _batch(self, topology: Any, seeds: Any, key: BatchKey) -> ToSample:
        if self._edges is None:
            return ToSample(read_seeds(seeds, topology)[1], key, None, lambda tensors: tensors)
        edges, pairs, nodes, exclude = self._edges.around(self._graph, seeds, key, None)
        dress = partial(as_tensors, self._graph, edges, pairs, device=self.device)
        return ToSample(read_seeds(nodes, topology)[1], key, read_exclude(exclude, topology), dress)

    def gather(self, requests: list[RowRequest]) -> list[Any]:
        """Rows by ids, of all data of a batch; wherever they are, they come to the GPU."""
        turn = current_turn()
        timed = turn is not None and self.is_timed(turn)
        start = self.streams.mark() if timed else None
        placed = [self.memory.placed(request) for request in requests]
        rows = gather(placed, threads=torch.get_num_threads(), checks=self.checks)
        if start is not None and turn is not None:
            self.streams.took(self.group_size, "gather", turn.batch, start, self.streams.mark())
        return rows

    def gather_again(self, requests: list[RowRequest]) -> list[Any]:
        """The same in the caller, for its stream."""
        return gather([self.memory.placed(request) for request in requests], threads=torch.get_num_threads())

    def is_timed(self, turn: Turn) -> bool:
        """Whether the work for a batch is measured: one batch of a group is, and stands for the others."""
        return turn.round % self.group_size == 0

    def receive(self, made: OnStream[Batch]) -> Filled:
        """A batch, in the caller and for the caller's stream."""
        self.checks.ask()
        return self.streams.receive(made, _tensors, self.group_size)[1]


class ToSample(NamedTuple):
    """A batch that is to be sampled."""

    seeds: Any
    key: BatchKey
    exclude: Any
    dress: Callable[[BlockTensors], Any]
    """What the batch is made of its sample by."""


class Begun:
    """A group of batches whose sampling is under way; used by one thread."""

    def __init__(self, gpu: OnGPU, plan: Plan, batches: Sequence[ToSample]) -> None:
        self._gpu, self._plan, self._batches = gpu, plan, batches
        start = gpu.streams.mark()
        self._finish = self._begin(batches)
        gpu.streams.took(1, "sample", batches[0].key.batch, start, gpu.streams.mark())
        self._made: list[Any] | None = None

    def _begin(self, batches: Sequence[ToSample]) -> Callable[[], list[BlockTensors]]:
        if self._plan.device.type == "cpu":
            return lambda: [self._plan.sample(*one[:3]).to(self._gpu.device) for one in batches]
        return self._plan.begin([one[:3] for one in batches]).finish

    def take(self, i: int) -> Any:
        """Batch ``i`` of the group."""
        if self._made is None:
            self._made = self._all()
        tensors, self._made[i] = self._made[i], None
        return self._batches[i].dress(self._begin(self._batches[i : i + 1])()[0] if tensors is None else tensors)

    def _all(self) -> list[Any]:
        streams = self._gpu.streams
        start = streams.mark()
        try:
            made = self._finish()
        except Exception:
            if len(self._batches) == 1:
                raise
            return [None] * len(self._batches)  # one of them is at fault: each is made by itself
        streams.took(1, "sample", self._batches[0].key.batch, start, streams.mark())
        return [*made]


def steps_on_gpu(loader: Any, epoch: Epoch, gpu: OnGPU) -> tuple[Groups[Item, Any], Callable[[int, Any], Any]]:
    """What a thread does for a group of batches and for each of them, and what the caller does."""
    streams, in_thread = gpu.streams, loader.use_prefetch_thread is not False

    def begin(batches: Sequence[tuple[int, Item]]) -> list[Callable[[], Any]]:
        with streams.here():
            seeds = [loader.dataset.at(epoch.to_index(index)) for _, (_, index) in batches]
            keys = [BatchKey(epoch.seed, epoch.number, batch) for batch, _ in batches]
            begun = gpu.begin(seeds, keys)
        return [partial(complete, begun, i, *one) for i, one in enumerate(batches)]

    def complete(begun: Begun, i: int, batch: int, item: Item) -> OnStream[Any]:
        turn = item[0]
        with streams.here(), epoch.making(batch, turn, 1):
            tensors = begun.take(i)
            loader._count(tensors)
            value: Any = tensors
            if in_thread:
                value, nbytes = loader._prefetcher.fill(tensors, gpu.gather)
                loader._stats.count(gathered_bytes=nbytes)
            made: OnStream[Any] = streams.hand_over((turn, value), timed=gpu.is_timed(turn))
        return made

    def finish(batch: int, made: OnStream[Any]) -> Any:
        turn = made.value[0]
        if not in_thread:
            with streams.here(), epoch.making(batch, turn, 1):
                filled, nbytes = loader._prefetcher.fill(streams.adopt(made)[1], gpu.gather)
                loader._stats.count(gathered_bytes=nbytes)
                made = streams.hand_over((turn, filled), timed=made.timed)
        filled = gpu.receive(made)
        value, nbytes = loader._prefetcher.finish(filled, gpu.gather_again)
        loader._stats.count(gathered_bytes=nbytes)
        return loader._handed_out(value)

    return Groups(begin, gpu.group_size), finish


def _tensors(batch: Batch) -> list[Tensor]:
    """All tensors of a batch."""
    parts = batch[1].batch
    tensors = parts.tensors
    found = [*tensors.node.values(), *parts.rows()]
    for block in tensors.blocks:
        for by_type in (block.columns, block.sources, block.ids, block.weights or {}):
            found += by_type.values()
    if isinstance(parts.batch, EdgeTensors):
        found += parts.batch.ids.values()
        for ends in (parts.batch.ends, parts.batch.negative_ends or {}):
            found += [ids for pair in ends.values() for ids in pair]
    return found
