"""The base class of PyG's loaders: sampling, joining and labelling of a batch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import infer_filter_per_worker
from torch_geometric.sampler import BaseSampler, NegativeSampling, NodeSamplerInput

from manyhop.arguments import callables, cpu_cores, flag
from manyhop.errors import InputError
from manyhop.features import RowExchange
from manyhop.graph import grouped_on
from manyhop.loading import EngineName, check_engine, current_batch
from manyhop.loading.adapter import Adapter
from manyhop.loading.padding import Pad
from manyhop.loading.pipeline import Uneven
from manyhop.memory.places import Place
from manyhop.ranks import cuda
from manyhop.sampling.engines import suits_cugraph
from manyhop_pyg.batch.assemble import Joining, finish_trainable
from manyhop_pyg.batch.columns import DataColumns, DataPlan, PlacedStore, columns_of, has_embeddings
from manyhop_pyg.batch.join import finish_batches, join_one
from manyhop_pyg.batch.padding import Padding, check_pad
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.loaders.adapter import Batches, Seeds, contents_of
from manyhop_pyg.loaders.check import store_size
from manyhop_pyg.loaders.options import SeedLoader, TorchOptions, check_device, find_device
from manyhop_pyg.loaders.ranks import LoaderFacts, check_sharded, make_exchange, sharded_store, topology_of
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.requests import TypedNodeInput, prepare
from manyhop_pyg.samplers.seeds import TypedEdgeInput
from manyhop_pyg.samplers.spec import GivenNegatives, each_of
from manyhop_pyg.typing import (
    Attributes,
    Batch,
    Bounds,
    Inputs,
    Metadata,
    Positions,
    PyGData,
    Sample,
    StoreSize,
    Transform,
)

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime
    from manyhop_pyg.samplers.exclude import Exclusion

_settling = threading.Lock()


class ThreadedLoader(SeedLoader[Batch]):
    """A torch ``DataLoader`` whose batches are created by threads of this process, in keyed order.

    ``num_workers=N`` starts N threads that prefetch; 0 creates batches in the caller. Neither the order nor the
    contents of batches depend on N. With ``shuffle=True`` the order is a function of ``(seed, epoch)``. Each
    ``iter(loader)`` starts the next epoch. See :class:`manyhop_pyg.NodeLoader` for the arguments.
    """

    data: PyGData
    transform: Transform | None
    transform_sampler_output: Transform | None
    filter_per_worker: bool
    custom_cls: type[Batch] | None
    input_data: Inputs
    _exclusion: Exclusion | None = None
    _plan_on_cpu: DataPlan | None = None
    _bounds: Bounds
    _gpu: GPURuntime | None
    loader_cores: list[int | list[int]]
    _old_worker_init_fn: Callable[[int], None]
    _copy_threads: int | None = None
    _store_size: StoreSize
    _reads_inputs_on_host = False
    """Whether the host needs the inputs of a batch that a GPU samples."""

    def __init__(
        self,
        num_items: int,
        filter_per_worker: bool | None,
        *,
        seed: int | None = None,
        distributed: bool = False,
        uneven: Uneven | None = None,
        rank_timeout: float | None = None,
        seed_parts: int | None = None,
        device: torch.device | str | None = None,
        placement: Place | None = None,
        engine: EngineName | None = None,
        pad: Pad | None = None,
        **of_torch: Unpack[TorchOptions],
    ) -> None:
        """Set up a DataLoader over ``range(num_items)``, as the last step of a loader's constructor."""
        kwargs: dict[str, Any] = dict(of_torch)
        self._store_size = store_size(self.data, self._seed_sampler)
        wanted = check_device(device, placement)
        check_pad(pad, self._seed_sampler, self.data)
        self.device, self._mode, self.pad, self.engine = device, placement, pad, engine
        self.__dict__["placement"] = placement  # for Lightning; the property of this name is the decision
        callables(transform=self.transform, transform_sampler_output=self.transform_sampler_output)
        self._infers_filter = filter_per_worker is None
        self.filter_per_worker = (
            bool(infer_filter_per_worker(self.data))
            if filter_per_worker is None
            else flag("filter_per_worker", filter_per_worker)
        )
        check_sharded(self.data, distributed=distributed)
        check_engine(engine, wanted, kwargs)
        shuffle = self._set_up(num_items, kwargs, distributed, uneven, rank_timeout, seed_parts)
        self._bounds, self._gpu, self._knows_device = {}, None, False
        with grouped_on(self._seeds().graph, find_device(wanted, self.data) if distributed else None):
            self._set_up_epochs(num_items, seed, shuffle=shuffle, own_order=self._own_order)  # ranks compare the edges
            self._find_gpu()
        self._find_padding()
        self._prepare_ranks()

    @property
    def _negatives(self) -> NegativeSampling | None:
        return None

    @property
    def _exclude_true(self) -> bool:
        return False

    def _find_gpu(self) -> None:
        """Prepare the GPU that creates batches, or the CPU if no GPU can."""
        wanted = check_device(self.device, self._mode)
        found = find_device(wanted, self.data)
        self._stats.on_gpu = found is not None
        if found is None:
            check_engine(self.engine, torch.device("cpu"), {})
            if wanted is not None or not cuda.in_reach():
                self._prepare_for_cpu()
            return
        if self._infers_filter:
            self.filter_per_worker = True
        if self._seeds().graph is not None and self.transform_sampler_output is None:
            self._bounds = self._seed_sampler.topology.bounds
        self._start_gpu(found, self._mode)
        assert self._gpu is not None
        if self._gpu.sampling is None:
            self._prepare_for_cpu()
        self._warm_up_gpu()

    def _prepare_for_cpu(self) -> None:
        """Compile kernels and build tables that the first batch would wait for, if the CPU samples."""
        prepare(getattr(self._seed_sampler, "engine", None))

    def _make_padding(self, samples: list[Sample], device: torch.device | None) -> Padding:
        transform, gpu = self.transform_sampler_output, self._gpu
        if gpu is not None and gpu.sampling is not None and transform is not None:
            samples = [transform(out) for out in samples]
        assert self.batch_size is not None
        topology = self._seed_sampler.topology
        return Padding(topology, self.input_data, self.batch_size, samples, device, self._negatives)

    # Iteration

    def _settle_device(self) -> None:
        """Select the device that creates batches, at the first one."""
        if self._knows_device:
            return
        with _settling:
            if self._gpu is None and not self._knows_device:
                self._find_gpu()
                if self._gpu is not None and self._ranks is not None and super()._exchanges():
                    self._ranks.forget_exchange()
                if self._gpu is None:
                    wanted = {"placement": self._mode, "engine": self.engine}
                    for name in (name for name, value in wanted.items() if value is not None):
                        raise InputError(
                            f"Expected a GPU in use for {name}={wanted[name]!r}, found none at the first batch. Pass "
                            f"device='cuda', or leave {name} out."
                        )
                    self._prepare_for_cpu()
            self._knows_device = True

    def _fanouts(self) -> object:
        sampler = self._seed_sampler
        return getattr(sampler, "num_samples", getattr(getattr(sampler, "num_neighbors", None), "values", None))

    def _nodes_of_seeds(self) -> list[tuple[Tensor, int]]:
        given, sampler = self.input_data, self._seed_sampler
        topology = topology_of(sampler)
        if topology is None:
            raise InputError(
                f"Expected one of manyhop's samplers with seed_parts, got a {type(sampler).__name__}. Leave it out."
            )
        of_nodes = isinstance(given, NodeSamplerInput)
        types = given.input_type if hasattr(given, "sizes") else (given.input_type,)
        nodes = given.node if of_nodes else given.row  # of seed edges their sources
        names = [of if of_nodes or of is None else of[0] for of in types]
        parts = nodes.split(getattr(given, "sizes", [len(nodes)]))
        return [(ids, topology.graph.num_nodes[topology.node_type(of)]) for ids, of in zip(parts, names, strict=True)]

    def _adapter(self) -> Adapter[Sample, Batch]:
        seeds, data = self._seeds(), self.data
        own_collate, own_filter = self._replaces("collate_fn"), self._replaces("filter_fn")
        functions: list[object] = [self.transform, self.transform_sampler_output, self.worker_init_fn]
        functions += [n.dst for n in each_of(self._negatives) if isinstance(n, GivenNegatives) and callable(n.dst)]
        own_rows = isinstance(data, Data | HeteroData) or type(data[0]) is FeatureStore
        gathers_groups = own_rows and self.transform_sampler_output is None and not own_filter
        exchanges = self._gpu is not None and self._exchanges()
        batches = Batches(
            sampler=seeds.sampler,
            collate_fn=self.collate_fn,
            filter_fn=self.filter_fn,
            joining=self._joining,
            transform=self.transform,
            in_thread=self.filter_per_worker,
            gathers_groups=gathers_groups,
            samples_alone=own_collate,
            runs_user_code=own_collate or own_filter or any(function is not None for function in functions),
            pins=self._pins_batches,
            gathers_only=exchanges and self.transform is None and gathers_groups,
            trains=has_embeddings(data),
        )
        return Adapter(seeds, columns_of(data), batches, LoaderFacts(vars(self), seeds.sampler))

    def _exchanges(self) -> bool:
        return sharded_store(self.data) is not None or super()._exchanges()

    def _make_exchange(self, title: str, timeout: float) -> RowExchange | None:
        store = sharded_store(self.data)
        if store is not None and not super()._exchanges():
            return make_exchange(self._joining, self._seeds(), store, self._plan(), title, timeout)
        return super()._make_exchange(title, timeout)

    def _can_distribute(self) -> bool:
        if self._exclusion is not None or self._exclude_true or self.worker_init_fn is not None:
            return False
        return isinstance(self._seed_sampler, NeighborSampler) and suits_cugraph(self._seed_sampler.spec)

    # One batch

    @property
    def _seed_sampler(self) -> BaseSampler:
        """The sampler."""
        raise NotImplementedError

    def _seeds(self) -> Seeds:
        """Return the seeds and how to sample around them, as of now."""
        return Seeds(
            sampler=self._seed_sampler,
            given=self.input_data,
            num_items=self._num_items,
            own_order=self._own_order,
            on_host=self._reads_inputs_on_host or self._exclusion is not None,  # which looks up edge ids there
            gpu=self._gpu,
            transform=self.transform_sampler_output,
            neg_sampling=self._negatives,
            exclude_true=self._exclude_true,
            exclusion=self._exclusion,
        )

    def _joining(self) -> Joining:
        """Return the data, rows and options that samples are joined with, as of now."""
        return Joining(
            type(self).__name__,
            self.data,
            self.custom_cls,
            self._seed_sampler,
            self.transform_sampler_output,
            self._gpu,
            self._padding,
            self._placed(),
            self._bounds,
            self._store_size,
            self._copy_threads,
            self._buffers,
            self._stats,
            self._label,
            self.distributed,
        )

    def _placed(self) -> DataPlan | PlacedStore | None:
        """Return the source of rows for the current data; ``None``: only its store can read them."""
        columns = columns_of(self.data)
        if self._gpu is not None or not isinstance(columns, DataColumns):
            return self._gpu.columns(columns) if self._gpu is not None and columns.complete else None
        plan = self._plan_on_cpu
        if plan is None or not plan.fits(self.data):
            plan = self._plan_on_cpu = DataPlan(self.data, None, lambda name, value: value)
        return plan

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        """Set the attributes of seeds; return the mapping that holds ``input_id``, for each seed type."""
        raise NotImplementedError

    def _metadata(self, out: Sample, count: int, *, needs_ids: bool) -> Metadata:
        """Return a sample's ``metadata`` of at least ``count`` entries (3 if seeds have multiple types).

        Raises:
            InputError: a sampler or the user's function has set other ``metadata``.
        """
        found = out.metadata
        typed = isinstance(self.input_data, TypedNodeInput | TypedEdgeInput)
        if not isinstance(found, tuple | list) or len(found) < (3 if typed else count):
            raise InputError(
                f"Expected metadata of a sample for {type(self).__name__} as a tuple of {3 if typed else count} "
                f"entries, got {found!r}. Sample with the sampler of this loader."
            )
        if needs_ids and found[0] is None:
            raise InputError(
                "Expected a sample with an input_id for each seed, got None. Pass "
                "NodeSamplerInput(input_id=torch.arange(len(node)), node=node) to the sampler."
            )
        return tuple(found)

    def collate_fn(self, index: Positions) -> Sample | Batch:
        """Sample around the inputs at positions ``index``; also join features if ``filter_per_worker``."""
        start = time.perf_counter()
        seeds = self._seeds()
        out = seeds.around(seeds.at(index))
        if (rank_batch := current_batch()) is not None:
            self._stats.record(rank_batch.batch, "sample", start, time.perf_counter())
            rank_batch.contents.update(contents_of(out))
        return self.filter_fn(out) if self.filter_per_worker else out

    def _batch_around(self, inputs: Inputs, key: tuple[int, int, int] | None) -> Batch:
        """Return the batch of some inputs, outside of any epoch."""
        if self._replaces("collate_fn"):
            raise InputError(
                "Expected the loader's own collate_fn for a batch of given seeds, got a subclass that replaces it, and "
                "takes positions of seeds. Call loader(positions)."
            )
        self._settle_device()
        batch: Batch = self._make_alone(key, lambda: self.filter_fn(self._seeds().around(inputs)))
        return batch

    def _replaces(self, name: Literal["collate_fn", "filter_fn"]) -> bool:
        """Return whether the user has replaced this method."""
        return getattr(getattr(self, name), "__func__", None) is not getattr(ThreadedLoader, name)

    def filter_fn(self, out: Sample) -> Batch:
        """Join a sample with the features: the batch as ``Data`` or ``HeteroData``, transformed."""
        data, out, joining, rank_batch = join_one(self._joining(), out)
        start = time.perf_counter()
        finish_batches(joining, [data], [out], [rank_batch])
        if rank_batch is None and type(joining.placed) is DataPlan and joining.placed.embeddings:
            finish_trainable(data)
        if self.transform is not None:
            data = self.transform(data)
        if rank_batch is not None:
            self._stats.record(rank_batch.batch, "assemble", start, time.perf_counter())
        return data

    # Cores of threads

    def _aff_init_fn(self, worker_id: int) -> None:
        """Bind the calling thread to its cores (``enable_cpu_affinity``)."""
        cores = self.loader_cores[worker_id]
        os.sched_setaffinity(0, cores if isinstance(cores, list) else [cores])
        self._old_worker_init_fn(worker_id)

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: object = None) -> Iterator[None]:
        """Bind the threads to CPU cores: one core, or a list of cores, for each; default: the first cores.

        Raises:
            InputError: cores that are no lists of integers.
            ValueError: no workers, or not as many cores as workers.
        """
        if not hasattr(os, "sched_setaffinity"):
            raise InputError("Threads cannot be bound to cores on this system: leave enable_cpu_affinity out.")
        if loader_cores is not None:
            loader_cores = cpu_cores("loader_cores", loader_cores, nested=True)
        with super().enable_cpu_affinity(loader_cores):  # type: ignore[misc]  # a mixin of PyG has it
            yield

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:
        """Let each thread of the loader gather features with several threads: by default all cores, shared evenly.

        Raises:
            InputError: the loader has no threads, or each would get none or more than there are.
        """
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

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_plan_on_cpu": None, "_knows_device": False}
