"""Loaders of seed edges: ``LinkLoader`` with any sampler, and ``LinkNeighborLoader``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, Unpack

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.sampler import BaseSampler, NegativeSampling, SamplerOutput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.typing import InputEdges

from manyhop.arguments import flags, real
from manyhop.errors import InputError
from manyhop.graph import EdgeType
from manyhop_pyg.batch.assemble import put
from manyhop_pyg.loaders.check import check_features, check_link_sampler, check_sampler
from manyhop_pyg.loaders.inputs import EdgeValues, edge_input, pairs_input
from manyhop_pyg.loaders.loader import ThreadedLoader
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.loaders.options import LoaderOptions, extends, sampler_of_arguments
from manyhop_pyg.samplers.exclude import ExcludeMode, ReverseIds, make_exclusion
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.seeds import TypedEdgeInput, parts_of
from manyhop_pyg.samplers.spec import GivenNegatives, as_negative_sampling, each_of, not_by_position
from manyhop_pyg.typing import Attributes, Batch, Metadata, PyGData, Sample, Transform

NegSampling: TypeAlias = NegativeSampling | str | Mapping[EdgeType, NegativeSampling | str] | None
"""A dict if negatives differ by seed edge type."""


@extends(ThreadedLoader, NodeLoader)
class LinkLoader(ThreadedLoader, torch_geometric.loader.LinkLoader):  # type: ignore[misc]  # PyG is untyped
    """Load mini-batches of seed edges and their sampled neighbourhoods, prefetched by threads: PyG's ``LinkLoader``.

    :class:`NodeLoader` explains the arguments that both have. With ``distributed=True``, ``is_padding`` has one entry
    per seed edge, and ``seed_parts`` counts by its source. With ``pad="auto"``, ``seed_mask`` has one entry per column
    of ``edge_label_index``, or with triplets per seed edge; the ends of padding are padding nodes. ``engine="cugraph"``
    supports neither ``exclude_seed_edges`` nor ``exclude_true_negatives``.

    Args:
        data: ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``.
        link_sampler: any PyG ``BaseSampler``.
        edge_label_index: ``[2, num_seeds]``. ``None``: all edges. Heterogeneous graphs: an edge type,
            ``(edge type, [2, num_seeds])``, or ``{edge type: [2, num_seeds] or None, ...}`` for seed edges of multiple
            types in each batch, shuffled together. Each type then has the attributes of its seed edges, also with
            triplets; ``edge_label``, ``edge_label_time`` and ``input_id`` are dicts.
        edge_label: ``[num_seeds, ...]`` labels. With binary negatives, labels that start at 0 are raised by 1, and
            negatives get 0. Without labels, positives are 1.0 and negatives 0.0.
        edge_label_time: ``[num_seeds]`` latest time of neighbours, or ``[num_seeds, 2]`` earliest and latest time.
        neg_sampling: ``"binary"``, ``"triplet"``, PyG's ``NegativeSampling``, or :class:`GivenNegatives` (with a
            :class:`NeighborSampler`). ``None``: no negatives. Seed edges of multiple types: one for all, or a dict by
            edge type, all binary or all triplets.
        neg_sampling_ratio: deprecated: binary negatives per positive edge.
        transform: called with each batch.
        transform_sampler_output: called with the sample, before features are joined.
        custom_cls: class of the batches if ``data`` is a pair of stores.
        input_id: ``[num_seeds]`` values of ``batch.input_id``. Default: positions of the seeds.
        exclude_true_negatives: never draw an edge of the graph as a negative. By default negatives may be true edges,
            as in PyG. Needs a :class:`NeighborSampler`.
        exclude_seed_edges: edges to exclude from the subgraph of a batch, so that a model does not see the edges that
            it predicts: ``"self"``, edges between the endpoints of the batch's seed edges; ``"reverse_id"``, also edges
            of the same type from destination to source; ``"reverse_types"``, also edges of the reverse type. Edges are
            found by their endpoints, including parallel edges. Needs a :class:`NeighborSampler`.
        reverse_eids: ``[num_edges]`` edge id -> id of its reverse, or a dict by edge type, for ``"reverse_id"``.
            Default: find reverses by their endpoints.
        reverse_etypes: edge type -> reverse type, for ``"reverse_types"``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        RankError: with ``distributed=True``, ranks pass different arguments, or a rank is late.
    """

    def __init__(
        self,
        data: PyGData,
        link_sampler: BaseSampler,
        edge_label_index: InputEdges | Mapping[EdgeType, Tensor | None] = None,
        edge_label: EdgeValues = None,
        edge_label_time: EdgeValues = None,
        neg_sampling: NegSampling = None,
        neg_sampling_ratio: float | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        custom_cls: type[Batch] | None = None,
        input_id: EdgeValues = None,
        *,
        exclude_true_negatives: bool = False,
        exclude_seed_edges: ExcludeMode | None = None,
        reverse_eids: ReverseIds | None = None,
        reverse_etypes: Mapping[EdgeType, EdgeType] | None = None,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        check_features(data, custom_cls)
        flags(exclude_true_negatives=exclude_true_negatives)
        if neg_sampling_ratio is not None and real("neg_sampling_ratio", neg_sampling_ratio, "negatives per edge") > 0:
            if neg_sampling is not None:
                raise InputError("Expected either neg_sampling or neg_sampling_ratio, got both. Leave the latter out.")
            neg_sampling = NegativeSampling("binary", neg_sampling_ratio)
        self.data = data
        self.link_sampler = check_sampler("link_sampler", link_sampler, "sample_from_edges")
        self.edge_label_index = edge_label_index
        self.edge_label = edge_label
        self.edge_label_time = edge_label_time
        self.neg_sampling = as_negative_sampling(neg_sampling)
        self.transform = transform
        self.transform_sampler_output = transform_sampler_output
        self.custom_cls = custom_cls
        self.input_id = input_id
        self.exclude_true_negatives = exclude_true_negatives
        self.input_data = edge_input(data, edge_label_index, edge_label, edge_label_time, input_id, self.neg_sampling)
        check_link_sampler(link_sampler, self.input_data, self.neg_sampling, exclude_true=exclude_true_negatives)
        self.exclude_seed_edges = exclude_seed_edges
        self.reverse_eids = reverse_eids
        self.reverse_etypes = reverse_etypes
        self._exclusion = make_exclusion(
            link_sampler, [*parts_of(self.input_data)], exclude_seed_edges, reverse_eids, reverse_etypes
        )
        engine = kwargs.get("engine")
        if engine is not None and (exclude_seed_edges is not None or exclude_true_negatives):
            raise InputError(
                f"Expected neither exclude_seed_edges nor exclude_true_negatives with engine={engine!r}, which cannot "
                "look edges up. Leave one of them out, or pass placement='sharded' instead of engine."
            )
        super().__init__(self.input_data.row.numel(), filter_per_worker, **kwargs)

    def batch(
        self,
        seeds: Tensor | Mapping[EdgeType, Tensor],
        *,
        edge_label: EdgeValues = None,
        edge_label_time: EdgeValues = None,
        key: tuple[int, int, int] | None = None,
    ) -> Batch:
        """Return the batch of these seed edges immediately, with negatives, features and transforms.

        See :meth:`NodeLoader.batch`.

        Args:
            seeds: ``[2, num_seeds]`` node pairs of the loader's seed edge type, which need not be edges; a dict by
                edge type if the loader has multiple types.
            edge_label: ``[num_seeds, ...]``, as in the loader.
            edge_label_time: ``[num_seeds]`` or ``[num_seeds, 2]``, as in the loader.
            key: ``(seed, epoch, batch)``, as in :meth:`NodeLoader.batch`.

        Raises:
            InputError: wrong seeds, labels, times or key, or rows that ranks exchange in step.
        """
        input_type = self.input_data.input_type
        typed = isinstance(self.input_data, TypedEdgeInput)
        if isinstance(seeds, Mapping) != typed or (typed and not set(seeds) <= set(input_type)):
            got = f"of {list(seeds)}" if isinstance(seeds, Mapping) else "without types"
            raise InputError(f"Expected seeds of the loader's type of seed edges, {input_type!r}, got seeds {got}.")
        if any(isinstance(one, GivenNegatives) and isinstance(one.dst, Tensor) for one in each_of(self.neg_sampling)):
            raise not_by_position()
        if typed:
            every = edge_input(self.data, seeds, edge_label, edge_label_time, None, self.neg_sampling)
            return self._batch_around(every, key)
        inputs = pairs_input(
            "seeds", input_type, seeds, (None, None), edge_label, edge_label_time, None, self.neg_sampling
        )
        inputs.input_id = torch.arange(inputs.row.numel())
        return self._batch_around(inputs, key)

    @property
    def _seed_sampler(self) -> BaseSampler:
        return self.link_sampler

    @property
    def _negatives(self) -> NegativeSampling | None:
        return self.neg_sampling

    @property
    def _exclude_true(self) -> bool:
        return self.exclude_true_negatives

    def _prepare_for_cpu(self) -> None:
        super()._prepare_for_cpu()
        if isinstance(self.link_sampler, NeighborSampler):
            exclude_true = self.exclude_true_negatives
            self.link_sampler.seed_edges.of(self.input_data, self.neg_sampling, exclude_true=exclude_true)
        if self._exclusion is not None:
            self._exclusion.prepare()

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        triplets = self.neg_sampling is not None and self.neg_sampling.is_triplet()
        metadata = self._metadata(out, 5 if triplets else 4, needs_ids=self.distributed)
        if isinstance(self.input_data, TypedEdgeInput):
            stores = [(about, batch[edge_type]._mapping) for edge_type, about in metadata[1].items()]
            return [_label_edges(about, into, into, into, triplets=triplets) for about, into in stores]
        if isinstance(out, SamplerOutput):
            src = dst = edges = batch._store
        else:
            edges = batch[self.input_data.input_type]
            src, dst = (batch[edges._key[0]], batch[edges._key[-1]]) if triplets else (edges, edges)
        return [_label_edges(metadata, src._mapping, dst._mapping, edges._mapping, triplets=triplets)]


def _label_edges(
    metadata: Metadata, src: Attributes, dst: Attributes, edges: Attributes, *, triplets: bool
) -> Attributes:
    """Set the attributes of seed edges on sources, destinations and edges; return those of edges."""
    if not triplets:
        input_id, index, label, time = metadata[:4]
        put(edges, input_id=input_id, edge_label_index=index, edge_label=label, edge_label_time=time)
        return edges
    input_id, src_index, dst_pos_index, dst_neg_index, seed_time = metadata[:5]
    # The base data may have attributes of the latter names, which would be wrong here.
    put(edges, input_id=input_id, edge_label_index=None, edge_label_time=None)
    put(src, src_index=src_index, seed_time=seed_time)
    put(dst, dst_pos_index=dst_pos_index, dst_neg_index=dst_neg_index, seed_time=seed_time)
    return edges


class LinkOptions(LoaderOptions, total=False):
    """Keywords of :class:`LinkLoader` that loaders pass on to it."""

    custom_cls: type[Batch] | None
    input_id: EdgeValues
    exclude_true_negatives: bool
    exclude_seed_edges: ExcludeMode | None
    reverse_eids: ReverseIds | None
    reverse_etypes: Mapping[EdgeType, EdgeType] | None


@extends(LinkLoader, NeighborSampler)
class LinkNeighborLoader(LinkLoader, torch_geometric.loader.LinkNeighborLoader):  # type: ignore[misc]  # PyG is untyped
    """Load mini-batches of seed edges and neighbours of their endpoints: PyG's ``LinkNeighborLoader``.

    It needs neither pyg-lib nor torch-sparse. A batch and its negatives depend only on ``(seed, epoch, batch)``. Its
    ``n_id`` begins with the sorted endpoints of the ``P`` seed edges and ``N`` negatives (if disjoint, with all
    sources, then all destinations). In addition to the attributes of :class:`NeighborLoader`, except ``batch_size``,
    batches have

    - without negatives or with binary ones: ``edge_label_index [2, P + N]`` (positions in ``n_id``),
      ``edge_label [P + N]``, and with times ``edge_label_time [P + N]`` or ``[P + N, 2]``;
    - with triplets: ``src_index [P]``, ``dst_pos_index [P]``, ``dst_neg_index [P]`` or ``[P, amount]``, and with times
      ``seed_time [P]`` or ``[P, 2]``.

    :class:`NeighborSampler` and :class:`LinkLoader` explain the other arguments.

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
        edge_label_index: InputEdges | Mapping[EdgeType, Tensor | None] = None,
        edge_label: EdgeValues = None,
        edge_label_time: EdgeValues = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegSampling = None,
        neg_sampling_ratio: float | None = None,
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
        **kwargs: Unpack[LinkOptions],
    ) -> None:
        if (edge_label_time is not None) != (time_attr is not None):
            raise InputError(
                "Received conflicting 'edge_label_time' and 'time_attr' arguments: 'edge_label_time' is "
                f"{'set' if edge_label_time is not None else 'not set'} while 'time_attr' is "
                f"{'set' if time_attr is not None else 'not set'}. Both are needed for temporal sampling."
            )
        sampler = sampler_of_arguments(self, locals())
        super().__init__(
            data=data,
            link_sampler=sampler,
            edge_label_index=edge_label_index,
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )
