"""Loaders of seed nodes: ``NodeLoader`` with any sampler, ``NeighborLoader`` and ``HGTLoader``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch_geometric.loader
from torch import Tensor
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.typing import InputNodes

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop_pyg.batch.assemble import put
from manyhop_pyg.loaders.check import check_features, check_sampler, check_seeds
from manyhop_pyg.loaders.inputs import given_nodes, seed_input
from manyhop_pyg.loaders.loader import ThreadedLoader
from manyhop_pyg.loaders.options import LoaderOptions, extends, sampler_of_arguments
from manyhop_pyg.samplers.hgt import NO_TIMES, HeteroInput, HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.typing import Attributes, Batch, PyGData, Sample, Transform


@extends(ThreadedLoader)
class NodeLoader(ThreadedLoader, torch_geometric.loader.NodeLoader):  # type: ignore[misc]  # PyG is untyped
    """Load mini-batches of seed nodes and their sampled neighbourhoods, prefetched by threads: PyG's ``NodeLoader``.

    Args:
        data: ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``. Features are read when a batch is created, so
            later changes of ``loader.data`` take effect (prefetched batches may still have the old state).
        node_sampler: any PyG ``BaseSampler``.
        input_nodes: ``[num_seeds]`` ids or a mask ``[num_nodes]``. ``None``: all nodes. Heterogeneous graphs:
            ``"type"``, ``("type", ids)``, or ``{"type": ids, ...}`` for seeds of multiple types in each batch, shuffled
            together (with manyhop's samplers). Each type then has ``batch_size`` and ``input_id``, the position among
            its seeds; disjoint trees are numbered across types.
        input_time: ``[num_seeds]`` time of each seed instead of its own, or ``[num_seeds, 2]`` earliest and latest time
            of its neighbours. A dict if seeds have multiple types.
        transform: called with each batch.
        transform_sampler_output: called with the sample, before features are joined.
        filter_per_worker: join features and call ``transform`` in the loader's threads (``True``), or in the caller's
            thread (``False``), for code that is not thread-safe or draws from torch's default generator. ``None``: in
            the threads, except for data on a GPU.
        custom_cls: class of the batches if ``data`` is a pair of stores.
        input_id: ``[num_seeds]`` values of ``batch.input_id``. Default: positions of the seeds, or nodes if
            ``input_nodes`` is a mask. A dict if seeds have multiple types.
        seed: seed of all random choices. Batches depend only on it, the epoch and the batch number. Default: each epoch
            draws one when it begins, from ``generator``, or from torch's default generator.
        distributed: share the batches of one run among its ranks. All ranks pass the same seeds and create the loader
            together, which compares them. Rank ``r`` of ``W`` gets batches ``r``, ``r + W``, ... of the one-process
            run; all ranks get the same number. Each batch then has ``is_padding [batch_size] bool``, true for repeated
            seeds. Default: each rank has its own loader, as in PyG, without communication.
        uneven: what to do if the number of batches is not divisible by the number of ranks: ``"pad"`` (default) repeats
            the first batches of the epoch, ``"drop"`` drops the last ones, ``"error"`` raises. With
            ``distributed=True``.
        rank_timeout: seconds that ranks wait for each other when the loader is created and when it exchanges rows
            (600). A rank without heartbeats is considered lost after at most 60 s. With ``distributed=True``.
        seed_parts: number of equal slices of the nodes. Each batch has seeds of one slice and, if possible, goes to a
            rank that holds this slice of the features. Pass the number of parts of ``manyhop convert --partition``.
            Needs manyhop's samplers and ``distributed=True``. Default: seeds of all slices.
        device: device that creates the batches, ``"cpu"`` or a GPU. ``None``: a GPU if the process uses one, otherwise
            the CPU.
        placement: memory that a GPU reads topology and features from: ``"auto"`` (default), ``"device"``, ``"pinned"``,
            ``"host"``, ``"sharded"`` or ``"distributed"``. ``loader.placement`` shows the decision and its reason.
        engine: ``"cugraph"``: pylibcugraph samples a topology that is spread over the GPUs of all ranks, with its own
            random numbers. All ranks create the loader together and take batches in step. Default: manyhop's engine or,
            with ``placement="auto"`` and ``distributed=True``, cuGraph if nothing else can hold the topology.
        pad: ``"auto"``: pad batches to fixed sizes for CUDA graphs and ``torch.compile``. Needs
            :class:`NeighborSampler`. Each hop is padded: rows with zeros, ids with 0, and edges between padding nodes.
            Batches then have ``node_mask [num_nodes] bool``, ``edge_mask [num_edges] bool`` and ``seed_mask
            [batch_size] bool``, false for padding. A batch that does not fit uses one of a few larger sizes
            (``stats().pad_fit_rate``).
        **kwargs: arguments of torch's ``DataLoader``, applied to threads: ``num_workers`` (threads that prefetch;
            batches do not depend on it), ``prefetch_factor`` (batches per thread, 2), ``persistent_workers`` (keep the
            threads between epochs), ``worker_init_fn`` (called once per thread), ``timeout`` (seconds to wait for a
            batch), ``pin_memory`` (if an accelerator is available), ``sampler`` and ``batch_sampler``.
            ``multiprocessing_context`` and ``in_order`` have no effect: no process is started, and batches always
            arrive in order.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        FeatureError: ``x`` without one row per node; labels, masks, ``edge_attr`` or ``edge_weight`` with one row too
            many or too few; an attribute with the name of a mask of ``pad``.
        RankError: with ``distributed=True``, ranks pass different arguments, or a rank is late.
    """

    def __init__(
        self,
        data: PyGData,
        node_sampler: BaseSampler,
        input_nodes: InputNodes | Mapping[NodeType, Tensor | None] = None,
        input_time: Tensor | Mapping[NodeType, Tensor] | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        custom_cls: type[Batch] | None = None,
        input_id: Tensor | Mapping[NodeType, Tensor] | None = None,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        check_features(data, custom_cls)
        self.data = data
        self.node_sampler = check_sampler("node_sampler", node_sampler, "sample_from_nodes")
        self.input_nodes = input_nodes
        self.input_time = input_time
        self.transform = transform
        self.transform_sampler_output = transform_sampler_output
        self.custom_cls = custom_cls
        self.input_id = input_id
        self.input_data = self._seed_input()
        check_seeds(node_sampler, self.input_data)
        super().__init__(self.input_data.node.numel(), filter_per_worker, **kwargs)

    def batch(
        self,
        seeds: Tensor | Sequence[int] | Mapping[NodeType, Tensor],
        *,
        input_time: Tensor | Mapping[NodeType, Tensor] | None = None,
        key: tuple[int, int, int] | None = None,
    ) -> Batch:
        """Return the batch of these seeds immediately, with features and transforms, for serving and debugging.

        It does not advance the epoch and is thread-safe. ``input_id`` is 0, 1, ...

        Args:
            seeds: ``[num_seeds]`` node ids of the loader's seed type, also of other nodes than its input nodes; a dict
                by node type if the loader has multiple types.
            input_time: ``[num_seeds]`` or ``[num_seeds, 2]``, as in the loader; a dict if ``seeds`` is one.
            key: ``(seed, epoch, batch)`` of the sample. Default: the loader's ``seed`` or 0, and batch 0 of epoch 0.

        Raises:
            InputError: wrong seeds, times or key, or rows that ranks exchange in step.
        """
        self._settle_device()
        device = None if self._gpu is None or self._gpu.sampling is None else self._gpu.device
        return self._batch_around(given_nodes(seeds, input_time, self.input_data.input_type, device), key)

    def _seed_input(self) -> NodeSamplerInput:
        """Return the seeds of all batches."""
        return seed_input(self.data, self.input_nodes, self.input_time, self.input_id)

    @property
    def _seed_sampler(self) -> BaseSampler:
        return self.node_sampler

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        input_id, seed_time, *sizes = self._metadata(out, 2, needs_ids=True)
        if not sizes:
            store = batch._store if isinstance(out, SamplerOutput) else batch[self.input_data.input_type]
            return [_label_seeds(store._mapping, input_id, seed_time)]
        ids = input_id.split(list(sizes[0].values()))
        times = [None] * len(ids) if seed_time is None else seed_time.split(list(sizes[0].values()))
        return [_label_seeds(batch[t]._mapping, *both) for t, *both in zip(sizes[0], ids, times, strict=True)]


def _label_seeds(into: Attributes, input_id: Tensor, seed_time: Tensor | None) -> Attributes:
    put(into, input_id=input_id, seed_time=seed_time, batch_size=input_id.numel())
    return into


class NodeOptions(LoaderOptions, total=False):
    """Keywords of :class:`NodeLoader` that loaders pass on to it."""

    custom_cls: type[Batch] | None
    input_id: Tensor | Mapping[NodeType, Tensor] | None


@extends(NodeLoader, NeighborSampler)
class NeighborLoader(NodeLoader, torch_geometric.loader.NeighborLoader):  # type: ignore[misc]
    """Load mini-batches of seed nodes and their neighbours, hop by hop: PyG's ``NeighborLoader``.

    It needs neither pyg-lib nor torch-sparse. A batch depends only on ``(seed, epoch, batch)``. It has the rows of all
    node and edge attributes, all other attributes unchanged, and

    - ``n_id [num_nodes]``: nodes, first the seeds (``batch_size`` rows, including duplicates), then hop by hop;
    - ``e_id [num_edges] int64`` and ``edge_index [2, num_edges]``: edges, hop by hop, as positions in ``n_id``;
    - ``num_sampled_nodes [num_hops + 1]``, ``num_sampled_edges [num_hops]``: lists of counts for ``trim_to_layer``
      (directional subgraphs only);
    - ``input_id [batch_size] int64``, ``batch_size``, with ``input_time`` the unchanged ``seed_time``, and if disjoint
      ``batch [num_nodes]``, the seed of each node.

    In heterogeneous graphs these are attributes of node and edge types, all of which exist. :class:`NeighborSampler`
    and :class:`NodeLoader` explain the other arguments.

    Args:
        neighbor_sampler: sampler to use instead of one built from the arguments, which then have no effect, as in PyG.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: a topology, times or weights that are wrong.
    """

    def __init__(
        self,
        data: PyGData,
        num_neighbors: NumNeighbors | list[int] | dict[EdgeType, list[int]],
        input_nodes: InputNodes | Mapping[NodeType, Tensor | None] = None,
        input_time: Tensor | Mapping[NodeType, Tensor] | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        time_window: float | None = None,
        **kwargs: Unpack[NodeOptions],
    ) -> None:
        if input_time is not None and time_attr is None:
            raise InputError(
                "Received conflicting 'input_time' and 'time_attr' arguments: 'input_time' is set while 'time_attr' is "
                "not set. Name the attribute that holds the times of nodes or edges."
            )
        sampler = sampler_of_arguments(self, locals())
        super().__init__(
            data=data,
            node_sampler=sampler,
            input_nodes=input_nodes,
            input_time=input_time,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )


@extends(NodeLoader, HGTSampler, but=("input_time", "custom_cls", "engine"))
class HGTLoader(NodeLoader, torch_geometric.loader.HGTLoader):  # type: ignore[misc]  # PyG is untyped
    """Load mini-batches sampled by :class:`HGTSampler`: PyG's ``HGTLoader``, without torch-sparse.

    :class:`HGTSampler` and :class:`NodeLoader` explain the arguments.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    def __init__(
        self,
        data: HeteroInput,
        num_samples: list[int] | dict[NodeType, list[int]],
        input_nodes: NodeType | tuple[NodeType, Tensor | None] | Mapping[NodeType, Tensor | None],
        is_sorted: bool = False,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        *,
        max_neighbors: int | None = 50,
        **kwargs: Unpack[NodeOptions],
    ) -> None:
        given: dict[str, Any] = dict(kwargs)
        if given.get("input_time") is not None:
            raise InputError(NO_TIMES)
        self.num_samples = num_samples
        self.is_sorted = is_sorted
        self.max_neighbors = max_neighbors
        super().__init__(
            data=data,
            node_sampler=HGTSampler(data, num_samples, is_sorted=is_sorted, max_neighbors=max_neighbors),
            input_nodes=input_nodes,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )
