"""DGL's ``DataLoader``: batches of blocks or subgraphs with their data, prefetched by threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import dgl.dataloading
import torch
from dgl.dataloading import BlockSampler

import manyhop
from manyhop.arguments import flags
from manyhop.errors import InputError
from manyhop.loading import EngineName, EpochLoader, check_engine, check_names, check_rank_options
from manyhop.loading.adapter import Adapter
from manyhop.loading.iterator import EpochIterator
from manyhop.loading.padding import Pad
from manyhop.memory.places import Place
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.sampling.engines import suits_cugraph
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.graph.topology import forget_changed
from manyhop_dgl.loader.batches import Batches, Prefetcher, TensorPrefetcher
from manyhop_dgl.loader.columns import FrameColumns
from manyhop_dgl.loader.cores import CoreControl, WorkerInit
from manyhop_dgl.loader.options import (
    check_batches,
    check_device,
    check_graph,
    check_options,
    check_pad,
    check_places,
    check_tensors,
    check_torch_arguments,
    find_device,
    samples_tensors,
    with_graph,
)
from manyhop_dgl.loader.padding import Padding
from manyhop_dgl.loader.ranks import LoaderFacts, check_sharded, over_nodes
from manyhop_dgl.loader.source import GivenBatches, Seeds, Source, as_seeds, nodes_of_seeds
from manyhop_dgl.samplers.arguments import check_sampler, draw
from manyhop_dgl.samplers.edges import sampler_of_nodes
from manyhop_dgl.samplers.features import Prefetched
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors

_finding_gpu = threading.Lock()


class Collate:
    """The ``collate_fn`` that torch requires."""

    def __call__(self, batch: object) -> object:
        return batch


class DataLoader(CoreControl, EpochLoader, dgl.dataloading.DataLoader):  # type: ignore[misc]  # DGL is untyped
    """DGL's ``DataLoader``: mini-batches of blocks or subgraphs, by any DGL sampler, prefetched by threads.

    Batches are the results of ``graph_sampler.sample(graph, indices)`` (for neighbour samplers ``input_nodes,
    output_nodes, blocks``; for edge prediction ``input_nodes, pair_graph, neg_pair_graph, blocks``), with the data that
    the sampler prefetches in it, all of them gathered by one call. They are those that ``graph`` has when the batch is
    returned: ``graph.ndata`` and ``graph.edata`` may be replaced, removed or written to between batches.

    ``num_workers=N`` is N threads of this process that prefetch batches; 0 creates them in the caller. With manyhop's
    samplers, neither the order nor the content of the batches depends on N. Your own sampler is called
    by multiple threads at once, so it must not change itself while it samples. Its draws from a generator of the
    process (``dgl.seed``, ``torch.manual_seed``) depend on the order of the threads. Epochs advance at each
    ``iter(loader)``.

    With ``use_ddp=True`` all ranks create the loader together with equal indices, which are compared. Rank ``r`` of
    ``W`` then gets batches ``r``, ``r + W``, ... of the one-process run. All ranks get an equal number of batches, as
    with DGL: ``drop_last`` omits an incomplete last round. Without it, batches from the beginning of the epoch
    complete the round.

    Args:
        graph: a ``DGLGraph`` or a :class:`Graph`.
        indices: ``[num_seeds]`` ids; ``{type: ids}``; or a dataset whose items are the indices of a batch each.
        graph_sampler: any sampler with ``sample(graph, indices)``.
        device: device of the batches; ``None``: the graph's device. With manyhop's samplers a GPU samples and gathers,
            multiple batches at once, and in advance: threads are used only for work on the host.
        use_ddp: let the ranks of a run share the batches.
        ddp_seed: the seed with ``use_ddp=True``, unless you pass ``seed``; otherwise without effect, as in DGL.
        batch_size: seeds per batch.
        drop_last: leave out a last batch that is not full.
        shuffle: use a new order in each epoch, a function of ``(seed, epoch)``. A dataset's ``shuffle()`` is called.
        use_prefetch_thread: ``True``: a thread gathers data in advance, also with ``num_workers=0`` (which creates
            whole batches in one thread); ``False``: the caller's thread; ``None``: the batch's thread.
        use_alternate_streams: no effect on a CPU, as in DGL; on a GPU always on.
        pin_prefetcher: for a GPU only, always on.
        use_uva: for a GPU only: edges and data remain in pinned host memory. Without it, they are copied to the
            GPU once, as far as they fit.
        gpu_cache: for a GPU only: ``{"node": {name: rows}, "edge": {name: rows}}``, how many rows of data in pinned
            memory the GPU caches: the rows that batches request most often. Default: as its memory allows.
        placement: for a GPU only: where edges and data reside, ``"device"``, ``"pinned"``, ``"host"``,
            ``"sharded"``, ``"distributed"`` or ``"auto"``, see PyG's loaders; ``None``: by ``use_uva``, otherwise as
            sizes and free memory suggest. Not together with ``use_uva=True``.
        engine: ``"cugraph"``: the edges are spread over the GPUs of all ranks, and pylibcugraph samples them, as for
            PyG's loaders. Needs manyhop's samplers of neighbours, which exclude no edges.
        output: ``"blocks"``, or ``"tensors"``: each batch is a :class:`BlockTensors`, made without DGL's objects, or an
            :class:`EdgeTensors` around seed edges; only with manyhop's samplers. Prefetched data are in its
            ``node_features``, ``output_features`` (``prefetch_labels``) and ``edge_features``.
        pad: ``"auto"``: pad the batches to fixed sizes, for CUDA graphs and ``torch.compile``; needs manyhop's
            samplers. Nodes and edges are filled up hop by hop, their rows with zeros and their ids with 0; padding
            edges join padding nodes only. Blocks have ``srcdata["node_mask"]``, ``dstdata["node_mask"]`` and
            ``edata["edge_mask"]``, ``bool``, of real nodes and edges; graphs of seed edges and negatives have them in
            ``ndata`` and ``edata``. Output nodes are also padded. A batch that does not fit gets larger sizes, out of
            few (``stats().pad_fit_rate``).
        seed: names all random choices of manyhop's samplers and the order; the batches are a function of it. Default:
            ``ddp_seed`` with ``use_ddp=True``, otherwise each epoch draws one when it begins: from ``generator``,
            by ``dgl.seed``, or from torch's default generator.
        rank_timeout: only with ``use_ddp=True``: seconds that ranks wait for each other, to create the loader and
            to exchange rows (600). A rank without a heartbeat is considered lost after at most 60.
        seed_parts: only with ``use_ddp=True``: number of equal slices of the nodes. Each batch has seeds of one slice
            (seed edges: by their sources), and is assigned to a rank with this slice of the data, if possible.
            Pass the number of parts of ``manyhop convert --partition``. Needs manyhop's samplers. Default: seeds of all
            slices.
        **kwargs: of torch's ``DataLoader``, as they apply to threads: ``num_workers``, ``persistent_workers`` (keeps
            the threads between epochs), ``worker_init_fn`` (called once in each thread), ``prefetch_factor`` (batches
            ahead per thread, 2), ``timeout`` (limits the wait for a batch), ``generator``; ``multiprocessing_context``
            and ``in_order`` have no effect: no process is started, and batches are always in order.

    Raises:
        InputError: arguments that do not make sense.
        RankError: with ``use_ddp=True``, if ranks pass different arguments, or are late.
    """

    _shared_by = "use_ddp=True"

    def __init__(
        self,
        graph: Graph | dgl.DGLGraph,
        indices: Any,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        batch_size: int | None = 1,
        drop_last: bool = False,
        shuffle: bool = False,
        use_prefetch_thread: bool | None = None,
        use_alternate_streams: bool | None = None,
        pin_prefetcher: bool | None = None,
        use_uva: bool = False,
        gpu_cache: Mapping[str, Mapping[str, int]] | None = None,
        *,
        placement: Place | None = None,
        engine: EngineName | None = None,
        output: Literal["blocks", "tensors"] = "blocks",
        pad: Pad | None = None,
        seed: int | None = None,
        rank_timeout: float | None = None,
        seed_parts: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_names(type(self), kwargs)
        check_sampler(graph_sampler)
        check_torch_arguments(kwargs, Collate)
        flags(use_ddp=use_ddp, use_uva=use_uva, drop_last=drop_last, shuffle=shuffle)
        streams = {"use_alternate_streams": use_alternate_streams, "pin_prefetcher": pin_prefetcher}
        check_options(
            use_ddp=use_ddp,
            ddp_seed=ddp_seed,
            seed=seed,
            output=output,
            use_prefetch_thread=use_prefetch_thread,
            **streams,
        )
        check_rank_options("use_ddp", use_ddp, rank_timeout=rank_timeout, seed_parts=seed_parts)
        seeds = as_seeds(indices)
        check_batches(seeds, batch_size, shuffle=shuffle, drop_last=drop_last, use_ddp=use_ddp)
        if output == "tensors":
            check_tensors(graph_sampler, "output", output)
        check_pad(pad, graph_sampler, seeds)
        check_graph(graph, graph_sampler, seeds, output=output)
        check_sharded(graph, use_ddp=use_ddp)
        forget_changed(graph)
        # Lightning creates a loader again from attributes with the names of the arguments.
        self.graph = graph
        self.indices = indices
        self.graph_sampler = graph_sampler
        self.rank_timeout, self.seed_parts = None, seed_parts
        if use_ddp:
            self.rank_timeout = DEFAULT_TIMEOUT if rank_timeout is None else float(rank_timeout)
            manyhop.init(timeout=self.rank_timeout)  # sets the GPU of each rank
        self.device = find_device(graph, device, use_uva)
        check_places(graph, seeds, self.device, kwargs.get("num_workers", 0))
        seeds = with_graph(seeds, graph)
        check_device(self.device, use_uva, gpu_cache, placement, **streams)
        check_engine(engine, self.device, kwargs)
        self._mode, self.engine = "pinned-cuda" if use_uva else placement, engine
        self.__dict__["placement"] = placement  # for Lightning; the property returns the decided placement
        self.output, self.pad = output, pad
        self.ddp_seed, self.shuffle = ddp_seed, shuffle
        self.use_prefetch_thread, self.use_alternate_streams = use_prefetch_thread, use_alternate_streams
        self.pin_prefetcher, self.use_uva, self.gpu_cache = pin_prefetcher, use_uva, gpu_cache
        self.distributed = use_ddp
        self.uneven = "drop" if drop_last else "pad"
        self.cpu_affinity_enabled = False
        if use_prefetch_thread and not kwargs.get("num_workers"):
            kwargs["num_workers"] = 1
        worker_init_fn = kwargs.pop("worker_init_fn", None)
        worker_init_fn = worker_init_fn if isinstance(worker_init_fn, WorkerInit) else WorkerInit(worker_init_fn)
        own_order = isinstance(seeds, Seeds)
        torch.utils.data.DataLoader.__init__(
            self,
            seeds,
            batch_size=None if batch_size is None or not own_order else int(batch_size),
            drop_last=drop_last,
            collate_fn=Collate(),
            worker_init_fn=worker_init_fn,
            **kwargs,
        )
        self._prefetched = Prefetched(graph, graph_sampler, sampler_of_nodes(graph_sampler))
        self._prefetcher: Prefetcher | TensorPrefetcher = (
            TensorPrefetcher(graph, self._prefetched)
            if output == "tensors" or pad is not None or self._samples_on_gpu()
            else Prefetcher(graph)
        )
        num_seeds = seeds.num_seeds if isinstance(seeds, Seeds) else 0
        if self.num_workers > 0 and isinstance(graph, dgl.DGLGraph) and not isinstance(graph_sampler, EngineSampler):
            graph.create_formats_()  # which threads must not do at the same time
        self.use_ddp, self._padding, self._gpu = use_ddp, None, None
        seed = ddp_seed if use_ddp and seed is None else seed
        self._set_up_epochs(num_seeds, seed, shuffle=shuffle, own_order=own_order)
        self._find_gpu()
        self._find_padding()
        self._prepare_ranks()

    def _samples_on_gpu(self) -> bool:
        """Return whether a GPU samples: with manyhop's samplers, and if the loader cuts the seeds into batches."""
        sampler = self.graph_sampler
        return self.device.type == "cuda" and samples_tensors(sampler) and isinstance(self.dataset, Seeds)

    def _fanouts(self) -> object:
        sampler = self.graph_sampler
        return getattr(sampler, "fanouts", None) if isinstance(sampler, EngineSampler) else None

    def _find_gpu(self) -> None:
        if self.engine is not None and not self._samples_on_gpu():
            raise InputError(
                f"Expected one of manyhop's samplers and a tensor of indices with engine={self.engine!r}, got a "
                f"{type(self.graph_sampler).__name__} and a {type(self.indices).__name__}. Leave engine out."
            )
        if self._gpu is not None or not self._samples_on_gpu():
            return
        self._stats.on_gpu = True
        self._start_gpu(self.device, self._mode)
        self._warm_up_gpu()

    def _make_padding(self, samples: list[BlockTensors | EdgeTensors], device: torch.device | None) -> Padding:
        assert isinstance(self.dataset, Seeds)
        assert self.batch_size is not None
        graph = sampler_of_nodes(self.graph_sampler).arguments().topology(self.graph).graph
        return Padding(graph, samples, len(self.dataset.types) == 1, self.batch_size, device)

    def _can_distribute(self) -> bool:
        sampler = self.graph_sampler
        if not isinstance(sampler, EngineSampler) or self.worker_init_fn.func is not None:
            return False  # other samplers may exclude edges
        arguments = sampler.arguments()
        return suits_cugraph(arguments.spec(arguments.topology(self.graph)))

    # Iteration

    def __iter__(self) -> EpochIterator:
        self._find_gpu()  # which a copy of the loader does not have yet
        if isinstance(self.dataset, GivenBatches) and self.shuffle:
            self.dataset.dataset.shuffle()
        return self._begin_epoch(self.dataset)

    def __len__(self) -> int:
        """Batches of an epoch that this rank gets."""
        number = self._length()
        if number is None:
            raise TypeError(f"the number of batches is not known: a {type(self.indices).__name__} has no length")
        return number

    def _length(self) -> int | None:
        return len(self._schedule(0)) if isinstance(self.dataset, Seeds) else self.dataset.number()

    def _nodes_of_seeds(self) -> list[tuple[torch.Tensor, int]]:
        assert isinstance(self.dataset, Seeds)
        return nodes_of_seeds(self.dataset, self.graph, self.graph_sampler)

    def _draw_seed(self) -> int:
        return draw() if self.generator is None else super()._draw_seed()

    def _sources(self) -> list[object]:
        own = isinstance(sampler_of_nodes(self.graph_sampler), EngineSampler)
        return super()._sources() if own else []  # the sources of other samplers are unknown

    def _adapter(self) -> Adapter[Any, Any]:
        source = self._source()
        columns = FrameColumns(self._prefetched, self.gpu_cache)
        batches = Batches(self, source, columns, self._prefetcher, self._gpu, self._stats, self._buffers)
        return Adapter(source, columns, batches, LoaderFacts(self))

    def _source(self) -> Source:
        as_tensors = isinstance(self._prefetcher, TensorPrefetcher)
        return Source(self, self._gpu, self._padding, on_gpu=self._samples_on_gpu(), as_tensors=as_tensors)

    def _over_nodes(self) -> bool:
        return over_nodes(self.graph)

    # One batch

    def batch(self, indices: object, *, key: tuple[int, int, int] | None = None) -> Any:
        """Return the batch of these indices now, with its data: for serving and debugging.

        It is no part of an epoch. With manyhop's samplers, it may be called from multiple threads at once.

        Args:
            indices: ``[num_seeds]`` ids, or ``{type: ids}``, also other ids than the loader has.
            key: ``(seed, epoch, batch)``: determines the sample, together with the indices; default: the loader's
                ``seed``, or 0 if it has none, and batch 0 of epoch 0.

        Raises:
            InputError: indices or a key that do not make sense, or rows that ranks exchange in step.
        """
        seeds = with_graph(as_seeds(indices), self.graph)
        if not isinstance(seeds, Seeds):
            raise InputError(f"Expected indices as a tensor, or tensors by type, got a {type(indices).__name__}.")
        with _finding_gpu:
            self._find_gpu()
        return self._make_alone(key, partial(self._batch_around, seeds.indices))

    def _batch_around(self, indices: object) -> object:
        assembler, sample = self._adapter().assembler, self._source().sample_around(indices)
        sample = sample if self._gpu is None else sample.to(self.device)
        return assembler.hand_out(assembler.assemble(sample))

    def attach_data(self, name: str, data: object) -> None:
        """Raise InputError: only data of nodes and edges are prefetched."""
        raise InputError(
            f"Expected data of nodes or edges, got {name!r} for attach_data(). Set it in the graph's ndata or edata, "
            "or gather it in the training loop."
        )
