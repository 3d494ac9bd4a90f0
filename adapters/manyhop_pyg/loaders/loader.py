"""What all loaders of PyG's kinds share: how a batch is sampled, joined with its features and labelled."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torch_geometric.loader.utils import infer_filter_per_worker
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

from manyhop import cuda
from manyhop.arguments import callables, flag, positions
from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.loading import EpochLoader, check_options, current_turn, next_key
from manyhop.loading.adapter import Adapter
from manyhop.pipeline import Lockstep, Turn, Uneven
from manyhop.placement import GPUMode
from manyhop.sampling import BatchKey
from manyhop_pyg.batch.assemble import label_data, label_types
from manyhop_pyg.batch.join import join
from manyhop_pyg.batch.plan import DataPlan
from manyhop_pyg.loaders.batches import Batches, can_pin
from manyhop_pyg.loaders.check import check_torch_arguments
from manyhop_pyg.loaders.columns import columns_of
from manyhop_pyg.loaders.cores import CoreControl
from manyhop_pyg.loaders.device import check_device, find_device
from manyhop_pyg.loaders.facts import LoaderFacts
from manyhop_pyg.loaders.lockstep import check_sharded, make_lockstep, sharded_store
from manyhop_pyg.loaders.padding import Pad, Padding, check_pad, find_padding
from manyhop_pyg.loaders.seeds import Seeds, columns_of_nodes, input_of
from manyhop_pyg.samplers.host import prepare

if TYPE_CHECKING:
    from manyhop_pyg.samplers.on_gpu import Finish, GPUSampling


class ThreadedLoader(CoreControl, EpochLoader, DataLoader[Any]):
    """A torch ``DataLoader`` whose batches are made by threads of this process, in keyed order.

    ``num_workers=N`` is N threads that make batches ahead; 0 makes them in the caller. Neither the order of the batches
    nor what is in them depends on N. With ``shuffle=True`` the order is a function of ``(seed, epoch)``; a ``sampler``
    or ``batch_sampler`` of the user is honoured as it is. Epochs advance at each ``iter(loader)``.

    torch's arguments for worker processes: ``persistent_workers`` keeps the threads between epochs, ``worker_init_fn``
    is called once in each thread (``torch.utils.data.get_worker_info()`` stays ``None``), ``prefetch_factor`` is the
    number of batches ahead per thread (2), ``timeout`` limits the wait for a batch, ``pin_memory`` pins batches where
    there is an accelerator, ``multiprocessing_context`` has no effect as no process is started, and ``in_order=False``
    neither as batches always come in order.

    Where a script runs as several ranks, each of them has by default a loader of its own, as in PyG: over the seeds
    that it passes, with draws of its own, without communication. With ``distributed=True`` all ranks pass the same
    seeds and make the loader together, which compares them; rank ``r`` of ``W`` then gets batches ``r``, ``r + W``, ...
    of the one-process run, all ranks the same number of them, and a state may be loaded by another number of ranks.
    """

    data: Any
    transform: Any
    transform_sampler_output: Any
    filter_per_worker: bool
    custom_cls: Any
    input_data: Any
    worker_init_fn: Any
    _store_size: tuple[int | None, int | None]
    _pins_batches = False

    def _set_up(
        self,
        num_items: int,
        kwargs: dict[str, Any],
        *,
        seed: int | None,
        distributed: bool,
        uneven: Uneven | None,
        rank_timeout: float | None,
        device: Any,
        placement: GPUMode | None,
        pad: Pad | None,
        filter_per_worker: bool | None,
    ) -> None:
        """Be a DataLoader over ``range(num_items)``. The last step of a loader's construction."""
        check_torch_arguments(kwargs)
        check_device(device, placement)
        check_pad(pad, self._sampler()[0], self.data)
        self.device, self.placement, self.pad = device, placement, pad
        callables(transform=self.transform, transform_sampler_output=self.transform_sampler_output)
        self._infers_filter = filter_per_worker is None
        self.filter_per_worker = (
            bool(infer_filter_per_worker(self.data))
            if filter_per_worker is None
            else flag("filter_per_worker", filter_per_worker)
        )
        check_options(distributed, uneven, rank_timeout, kwargs)
        check_sharded(self.data, distributed=distributed)
        self.distributed = distributed
        self.uneven = (uneven or "pad") if distributed else None
        self.rank_timeout = (60.0 if rank_timeout is None else float(rank_timeout)) if distributed else None
        shuffle = bool(kwargs.get("shuffle"))
        own_order = kwargs.get("sampler") is None and kwargs.get("batch_sampler") is None
        if num_items == 0:
            kwargs["shuffle"] = False  # torch's random sampler refuses to shuffle nothing
        # A range is no torch Dataset, but all that a DataLoader asks of one.
        DataLoader.__init__(self, range(num_items), collate_fn=self.collate_fn, **kwargs)  # type: ignore[arg-type]
        del self.__dict__["collate_fn"]  # it is a method; the attribute would be a reference cycle
        self._set_up_epochs(num_items, seed, shuffle=shuffle, own_order=own_order)
        self._plan_of_data: DataPlan | None = None
        self._gpu = None
        self._bounds: Mapping[NodeType | EdgeType, int] = {}
        self._knows_device = False
        self._padding: Padding | None = None
        self._find_gpu()
        self._find_padding()
        if self._ranks is not None:
            self._ranks.prepare(self)

    def _find_gpu(self) -> None:
        """Get ready for a GPU, if the batches are to be made on one; for the CPU, if they certainly are not."""
        wanted = check_device(self.device, self.placement)
        found = find_device(wanted, self.data)
        if found is None:
            if wanted is not None or not cuda.in_reach():
                self._prepare_for_cpu()
            return
        from manyhop.loading.gpu import warm_up
        from manyhop.loading.gpu.runtime import GPURuntime

        if self._infers_filter:
            self.filter_per_worker = True
        self._stats.on_gpu = True
        adapter = self._adapter()
        if adapter.seeds.graph is not None and self.transform_sampler_output is None:
            self._bounds = self._sampler()[0].topology.bounds
        self._gpu = GPURuntime(self, adapter, found, self.placement)
        if self._gpu.sampling is None:
            self._prepare_for_cpu()
        warm_up.prepare(self, adapter, self._gpu)

    def _prepare_for_cpu(self) -> None:
        """What the first batch would have to wait for, where the CPU samples: kernels are compiled, tables are made."""
        prepare(self._sampler()[0])

    def _find_padding(self) -> None:
        """Get ready to pad batches, if that is asked for."""
        if self.pad is not None and self._num_items > 0:
            find_padding(self)

    # Iteration

    def __iter__(self) -> Any:
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        if self._gpu is None and not self._knows_device:
            self._find_gpu()
            if self._gpu is None:
                if self.placement is not None:
                    raise InputError(
                        f"Expected a GPU in use for placement={self.placement!r}, found none at the first batch. Pass "
                        "device='cuda', or leave placement out."
                    )
                self._prepare_for_cpu()
        self._knows_device = True
        self._pins_batches = self._gpu is None and self._pins()
        return self._begin_epoch(self._index_sampler)

    def _adapter(self) -> Adapter[Any, Any]:
        return Adapter(Seeds(self), columns_of(self), Batches(self, pins=self._pins_batches), LoaderFacts(self))

    def _sizes_are_known(self) -> bool:
        return self.pad is None or self._padding is not None

    def _exchanges(self) -> bool:
        return sharded_store(self.data) is not None or super()._exchanges()

    def _make_lockstep(self, title: str, timeout: float) -> Lockstep | None:
        store = sharded_store(self.data)
        if store is not None:
            return make_lockstep(self, store, title, timeout)
        return super()._make_lockstep(title, timeout)

    def __len__(self) -> int:
        """Batches of an epoch that this rank gets."""
        return super().__len__() if self._ranks is None else len(self._deal(0))

    def _length(self) -> int | None:
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    def _pins(self) -> bool:
        if not self.pin_memory:
            return False
        if not can_pin():
            warnings.warn("pin_memory=True, but no accelerator is found: memory is not pinned.", stacklevel=4)
            return False
        return True

    # One batch

    def _sample(self, index: Any) -> Any:
        """Call the sampler with a ``NodeSamplerInput`` or ``EdgeSamplerInput``."""
        raise NotImplementedError

    def _sampler(self) -> tuple[Any, str]:
        """The sampler, and the method of it that is called."""
        raise NotImplementedError

    def _begin_on_gpu(self, sampling: GPUSampling, inputs: Sequence[Any], keys: Sequence[BatchKey]) -> Finish:
        """Begin to sample around the inputs of several batches."""
        raise NotImplementedError

    def _sample_on_gpu(self, index: Any) -> Any:
        """What the sampler gives for one batch, on the GPU; ``None`` where it has to be asked itself."""
        if self._gpu is None or self._gpu.sampling is None:
            return None
        return self._begin_on_gpu(self._gpu.sampling, [index], [next_key()])()[0]

    def _edge_permutation(self) -> Any:
        return self._sampler()[0].edge_permutation

    def _label(self, batch: Any, out: Any) -> dict[str, Any]:
        """Set the attributes that only batches of nodes, or only those of links, have. Returns those of the seeds."""
        raise NotImplementedError

    def collate_fn(self, index: Any) -> Any:
        """Sample around the inputs at positions ``index``; joins features, too, if ``filter_per_worker``."""
        start = time.perf_counter()
        out = self._sample(self._inputs(index))
        if (turn := current_turn()) is not None:
            self._stats.record(turn.batch, "sample", start, time.perf_counter())
            self._count(out)
        return self.filter_fn(out) if self.filter_per_worker else out

    def _inputs(self, index: Any) -> Any:
        """The inputs at positions ``index``, as samplers take them."""
        given, own = self.input_data, self._own_order and isinstance(index, torch.Tensor)
        if own and type(given) is NodeSamplerInput and current_turn() is not None:
            return input_of(NodeSamplerInput, columns_of_nodes(given, index))
        return given[index if own else positions(index, self._num_items)]

    def _count(self, *outs: Any) -> None:
        self._stats.count(
            seeds=sum([out.metadata[0].numel() for out in outs]),
            nodes=sum([_total(out.node) for out in outs]),
            edges=sum([_total(out.row) for out in outs]),
        )

    def _has_own_collate(self) -> bool:
        """Whether ``collate_fn`` is not the one above."""
        return getattr(self.collate_fn, "__func__", None) is not ThreadedLoader.collate_fn

    def filter_fn(self, out: Any) -> Any:
        """Join a sample with the features: the batch as ``Data`` or ``HeteroData``, transformed."""
        times = [time.perf_counter()]
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        data, out, nbytes = join(self, out, times)
        turn = current_turn()
        self._dress(data, out, turn)
        if self.transform is not None:
            data = self.transform(data)
        if turn is not None:
            end = time.perf_counter()
            if self._gpu is None:
                self._stats.record(turn.batch, "assemble", times[0], times[1])
                self._stats.record(turn.batch, "gather", times[1], times[2])
                self._stats.record(turn.batch, "assemble", times[2], end)
            else:  # which has times of its own for gathering
                self._stats.record(turn.batch, "assemble", times[0], end)
            self._stats.count(gathered_bytes=nbytes)
        return data

    def _dress(self, data: Any, out: Any, turn: Turn | None, marks: torch.Tensor | None = None) -> None:
        """Set what else is known of a batch that is joined with features.

        ``marks [num_inputs] bool``: memory of the batch's own, all ``False``, for what is to be marked.
        """
        if isinstance(out, SamplerOutput):
            label_data(data, out)
        else:
            label_types(data, out)
        seeds = self._label(data, out)
        if self.distributed:
            ids = out.metadata[0]
            marks = torch.zeros(ids.numel(), dtype=torch.bool, device=ids.device) if marks is None else marks
            seeds["is_padding"] = marks.fill_(True) if turn is not None and turn.is_padding else marks
        if self._padding is not None:
            self._padding.label(data, out, seeds)

    def _has_own_filter(self) -> bool:
        """Whether ``filter_fn`` is not the one above."""
        return getattr(self.filter_fn, "__func__", None) is not ThreadedLoader.filter_fn

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_plan_of_data": None, "_knows_device": False}


def _total(values: Any) -> int:
    """Entries of a tensor, or of all tensors in a dictionary."""
    return sum(v.numel() for v in values.values()) if isinstance(values, dict) else values.numel()
