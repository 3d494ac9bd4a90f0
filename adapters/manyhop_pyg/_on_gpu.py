"""How a loader makes its batches on a GPU: begun in groups, completed one by one on streams of its own."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, TensorAttr

from manyhop import world
from manyhop.features import BufferPool, Checks, RowRequest, ShardedRows, gather
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType, NodeType
from manyhop.loading import current_turn
from manyhop.pipeline import BatchPlan, Streams, Turn, current_exchange
from manyhop.pipeline._streams import tensors_in
from manyhop.sampling import BatchKey
from manyhop_pyg._feature_store import FeatureStore, StoreColumn
from manyhop_pyg._gpu_cache import fill_cache
from manyhop_pyg._gpu_groups import Begun
from manyhop_pyg._gpu_inputs import inputs_on
from manyhop_pyg._gpu_memory import Sources, decide_memory, reads_all
from manyhop_pyg._gpu_ready import compiling_gathers, compiling_samplers
from manyhop_pyg._gpu_sampling import GPUSampling, samples_on_gpu
from manyhop_pyg._join import join_all
from manyhop_pyg._plan import DataPlan
from manyhop_pyg._upload import to_device

if TYPE_CHECKING:
    from manyhop.features import GPUExchange

Gather: TypeAlias = Callable[[list[RowRequest]], list[Any]]

_NO_TENSORS = frozenset({int, float, str, bool, type(None)})
_USUAL_ATTRIBUTES = frozenset({"_mapping", "_key", "_parent", "_cached_attr"})  # of one of PyG's stores
_SEEDS_PER_GROUP = 16384  # more are hardly faster
_MOST_PER_GROUP = 32
_GROUP_OF_UNKNOWN = 4
_REHEARSALS = 3
_STRIDED = torch.strided
_BACKLOG = 4  # batches in the caller's stream: enough to never let it run dry
_JOINED = 16  # batches whose rows are gathered at once ...
_JOINED_SHARE = 1 / 128  # ... as far as these take no more of the GPU's memory
_RESERVED_BYTES = 1 << 30  # of batches, before the first one


class OnGPU:
    """The part of a loader that knows its GPU.

    Args:
        loader: complete but for this.
        device: the GPU.
    """

    def __init__(self, loader: Any, device: torch.device) -> None:
        self.device = device
        sampler, method = loader._sampler()
        ours = samples_on_gpu(sampler, method)
        self.memory = decide_memory(
            loader.data,
            sampler.topology.graph if ours else None,
            device,
            loader.placement,
            together=loader.distributed,
            timeout=loader.rank_timeout or 60.0,
        )
        if not loader.distributed or world.current_rank() == 0:  # ranks that share batches have decided the same
            logging.getLogger("manyhop").info("%s on %s:\n%s", type(loader).__name__, device, self.memory.placement)
        self.sampling: GPUSampling | None = None
        if ours and self.memory.topology != "host":
            self.sampling = GPUSampling.of(sampler, device, self.memory.topology, loader.rank_timeout or 60.0)
        self.bounds: Mapping[NodeType | EdgeType, int] = {}
        if ours and loader.transform_sampler_output is None:
            topology = sampler.topology
            edges = {topology.user_edge_type[t]: csc.num_edges for t, csc in topology.graph.csc.items()}
            self.bounds = {
                **topology.graph.num_nodes,
                **(edges if topology.hetero else {HOMOGENEOUS_EDGE: edges.popitem()[1]}),
            }
        self.group_size = 1 if self.sampling is None else _group_size(loader.batch_size)
        self.inputs = None if self.sampling is None else inputs_on(device, loader.input_data, sampler)
        self.checks = Checks()
        self._pool: BufferPool = loader._buffers
        self._reads_all = reads_all(loader.data, device, self.memory.placement)
        self._ask: Gather | None = None
        self.streams = Streams(device, loader._stats, backlog=_BACKLOG)
        self._batch_bytes, self._joined_bytes = 0, int(_JOINED_SHARE * _total_memory(device))
        self._lock = threading.Lock()
        self._plan: tuple[DataPlan, Sources] | None = None
        self._known: frozenset[int] = frozenset()
        self._columns: tuple[list[StoreColumn], Sources, dict[int, Any]] | None = None
        if isinstance(loader.data, Data | HeteroData):
            self.plan(loader.data)

    def prepare(self, loader: Any) -> None:
        """What the first batch would have to wait for: kernels are compiled, memory is taken, caches are filled."""
        with self.streams.here():
            if not self.memory.exchanges:
                fill_cache(loader, self, None)
            if loader._own_order and loader._num_items > 0 and self.sampling is not None:
                with compiling_gathers(loader, self, _JOINED):
                    self._rehearse(loader)
        self.streams.synchronize()
        self.streams.forget_times()

    def _rehearse(self, loader: Any) -> None:
        """Make the first batches of epoch 0, and drop them."""
        plan: BatchPlan = loader._plan()
        batches = range(min(len(plan), self.group_size))
        if not batches:
            return
        inputs: Sequence[Any]
        if self.inputs is not None:
            with compiling_samplers(loader, self):
                inputs = self.inputs.of(plan, 0, batches)
        else:
            inputs = [loader._inputs(torch.from_numpy(plan.indices(0, batch))) for batch in batches]
        keys = [BatchKey(0, 0, batch) for batch in batches]
        ahead = 2 if self.needs_no_threads(loader) else 2 * max(1, loader.num_workers)
        for _ in range(_REHEARSALS):  # sizes are learned by the first
            groups = [self.begin(loader, inputs, keys) for _ in range(ahead)]
            for group in groups:
                group.take(0)
        last = len(plan) % self.group_size  # which may be too few for what is ready for a whole group
        if 0 < last < len(batches):
            self.begin(loader, inputs[:last], keys[:last]).take(0)
        if loader.pad is None or loader._padding is not None:  # else sizes are not known yet
            self.reserve(loader, [groups[0].take(k) for k in range(len(groups[0]))])

    def reserve(self, loader: Any, outs: Sequence[Any]) -> None:
        """Have kernels, and as much memory in torch's cache, as the batches need that are there at the same time.

        ``outs`` are samples of some batches. Within a stream of this loader.
        """
        if self.memory.exchanges:  # which take all ranks
            return
        batches, _, nbytes = join_all(loader, outs[:1], [])
        self.learn_size(nbytes)
        at_once = self.joined_at_once() if self.joins_groups(loader) else 1
        most = min(len(outs), _BACKLOG + 2 * at_once, max(2, _RESERVED_BYTES // max(nbytes, 1)))
        for i in range(1, most, at_once):
            batches += join_all(loader, outs[i : min(most, i + at_once)], [])[0]

    def plan(self, data: Data | HeteroData) -> DataPlan:
        """What to do with the attributes of the data as it is now."""
        current = self._plan
        if current is not None and current[0].fits(data) and current[1].is_current():
            return current[0]
        with self._lock:
            self.streams.synchronize()  # what is about to be dropped has been read, what is new is there
            sources = Sources(self.memory)
            plan = DataPlan(data, self.device, sources)
            self.streams.synchronize()
            # Others go on with what was before until all is there; ids are known as long as their objects live.
            self._known = plan.shared_objects()
            self._plan = plan, sources
            return plan

    def begin(
        self, loader: Any, inputs: Sequence[Any], keys: Sequence[BatchKey], turns: Sequence[Turn] | None = None
    ) -> Begun:
        """Begin to sample several batches; without ``turns``, they are not to be handed out."""
        return Begun(self, loader, inputs, keys, turns)

    def receive(self, made: Any) -> Any:
        """A batch, in the caller and for the caller's stream."""
        if self.checks:
            self.checks.ask()
        return self.streams.receive(made, self._tensors_of_one, self.group_size)

    def _tensors_of_one(self, batch: Any) -> list[Tensor]:
        return self.tensors_of([batch])

    def tensors_of(self, batches: Sequence[Any]) -> list[Tensor]:
        """The tensors of batches that are not the user's, one of each memory."""
        found: dict[int, Tensor] = {}
        known = self._known
        for batch in batches:
            for values in _attributes_of(batch):
                for value in values:
                    kind = type(value)
                    if kind is Tensor and value.layout is _STRIDED:
                        if id(value) not in known:
                            found[value.untyped_storage().data_ptr()] = value
                    elif kind not in _NO_TENSORS and not (kind is list and _NO_TENSORS.issuperset(map(type, value))):
                        found.update((id(tensor), tensor) for tensor in tensors_in(value, known))
        return list(found.values())

    def exchange(self, loader: Any, title: str, timeout: float) -> GPUExchange:
        """How ranks exchange rows for batches of this loader. All of them call it."""
        from manyhop.features import GPUExchange

        exchange = GPUExchange(title, timeout=timeout)
        fill_cache(loader, self, exchange)
        return exchange

    def gather(self, requests: list[RowRequest], threads: int | None = None) -> list[Any]:
        """Rows by ids, of all tensors of a batch; ``threads`` copy what the CPU reads."""
        if self._ask is not None:
            return self._ask(requests)
        if threads is None:  # as many as torch's operators have here: all cores in the caller, one in a thread of ours
            threads = 1 if self._reads_all else torch.get_num_threads()
        return gather(requests, pool=self._pool, threads=threads, exchange=current_exchange(), checks=self.checks)

    @contextmanager
    def asking(self, ask: Gather) -> Iterator[None]:
        """In the body, ``ask`` is called instead of gathering rows."""
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None

    def is_timed(self, turn: Turn | None) -> bool:
        """Whether the work for a batch is measured: one batch of a group is, and stands for the others."""
        return turn is not None and turn.round % self.group_size == 0

    def start_gather(self) -> Any:
        """Before rows are gathered for the batch that this thread is making."""
        return self.streams.mark() if self.is_timed(current_turn()) else None

    def end_gather(self, start: Any, batches: int) -> None:
        """Afterwards; the rows are those of so many batches, this one and the next ones."""
        turn = current_turn()
        if start is not None and turn is not None:
            times = max(1, self.group_size // batches)
            self.streams.took(times, "gather", turn.batch, start, self.streams.mark())

    def joins_groups(self, loader: Any) -> bool:
        """Whether rows of several batches may be gathered at once: all of them by code of ours, on this GPU."""
        own = isinstance(loader.data, Data | HeteroData) or type(loader.data[0]) is FeatureStore
        return own and loader.transform_sampler_output is None and not loader._has_own_filter()

    def finds_inputs(self, loader: Any) -> bool:
        """Whether this GPU looks up which seeds are in the batches of an epoch."""
        return self.inputs is not None and loader._own_order and not loader._has_own_collate()

    def needs_no_threads(self, loader: Any) -> bool:
        """Whether a batch costs the host so little that threads, which take turns with the caller, are slower."""
        return (
            self.sampling is not None
            and self._reads_all
            and not self.memory.exchanges
            and not (loader._has_own_collate() or loader._has_own_filter())
            and loader.transform is None
            and loader.transform_sampler_output is None
            and (loader.worker_init_fn is None and not loader.timeout)
        )

    def joined_at_once(self) -> int:
        """How many batches: rows that nobody needs yet must not take much memory."""
        if self._batch_bytes == 0 or self._ask is not None:
            return 1
        return max(1, min(_JOINED, self._joined_bytes // self._batch_bytes))

    def learn_size(self, batch_bytes: int) -> None:
        """The rows of a batch had so many bytes."""
        self._batch_bytes = max(batch_bytes, self._batch_bytes, 1)

    def take_over(self, out: Any, perm: Any) -> tuple[Any, Any]:
        """A sample that the CPU has made, on the GPU, and what its edges are permuted by; others are as they were."""
        node = out.node
        some = next(iter(node.values()), None) if isinstance(node, dict) else node
        if some is None or some.device == self.device:
            return out, perm
        return to_device(out, perm, self.device), None

    def rows_of(self, store: Any, wanted: list[TensorAttr]) -> list[Any]:
        """Rows of a feature store of another kind, which is asked by ids on the CPU, on the GPU."""
        asked = [copy.copy(attr) for attr in wanted]
        for attr in asked:
            attr.index = attr.index.cpu()
        rows = store.multi_get_tensor(asked)
        return [value.to(self.device) if isinstance(value, torch.Tensor) else value for value in rows]

    def fetch(self, store: FeatureStore, asked: list[tuple[StoreColumn, Tensor, Any, dict[str, Any]]]) -> int:
        """Put rows of a store of ours into batches; returns their bytes.

        Args:
            store: the store.
            asked: what is wanted, by which ids, of nodes or edges of which type, and for whom.
        """
        columns = store.columns()
        current = self._columns
        if current is None or columns is not current[0] or not current[1].is_current():
            with self._lock:
                self.streams.synchronize()  # copies that are about to be dropped have been read
                sources = Sources(self.memory)
                read = {id(column): sources(column.title, column.tensor) for column in columns}
                current = self._columns = columns, sources, read
        placed = current[2]
        here: list[RowRequest] = []
        spread: list[RowRequest] = []
        slots: list[tuple[dict[str, Any], str]] = []
        later: list[tuple[dict[str, Any], str]] = []
        on_cpu: dict[int, Tensor] = {}  # of each index, once: to fetch it takes a wait for the GPU
        for column, index, kind, into in asked:
            source = placed[id(column)]
            if isinstance(source, ShardedRows):
                if id(index) not in on_cpu:
                    on_cpu[id(index)] = index.cpu()
                spread.append(RowRequest(source, on_cpu[id(index)], name=column.title))
                later.append((into, column.name))
            else:
                here.append(RowRequest(source, index, 0, column.title, self.bounds.get(kind)))
                slots.append((into, column.name))
        rows = self.gather(here)
        if spread:
            rows += [value.to(self.device) for value in self.gather(spread)]
        nbytes = 0
        for (into, name), value in zip(slots + later, rows, strict=True):
            into[name] = value
            nbytes += getattr(value, "nbytes", 0)
        return nbytes


def _attributes_of(batch: Any) -> list[Collection[Any]]:
    """What tensors are in: the values of the attributes of a batch of PyG's, or the batch."""
    stores = [batch._store] if type(batch) is Data else batch.stores if type(batch) is HeteroData else None
    # Other attributes are such as the edges that were sampled, beside their reverses.
    if stores is None or not all(store.__dict__.keys() <= _USUAL_ATTRIBUTES for store in stores):
        return [[batch]]
    return [store._mapping.values() for store in stores]


def _total_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory."""
    if device.type != "cuda":  # kernels are interpreted
        return 1 << 36
    return int(torch.cuda.get_device_properties(device).total_memory)


def _group_size(batch_size: int | None) -> int:
    """Batches that are sampled by the same launches."""
    if batch_size is None:
        return _GROUP_OF_UNKNOWN
    return max(1, min(_MOST_PER_GROUP, _SEEDS_PER_GROUP // batch_size))
