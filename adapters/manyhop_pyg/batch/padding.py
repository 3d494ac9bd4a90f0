"""``pad="auto"``: batches of fixed sizes, so that a training step is captured in a CUDA graph, or compiled, once."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, NegativeSampling

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading.padding import Pad, check_names_of_masks, check_pad_option, empty_types, lengthened, mask_of
from manyhop.loading.pipeline import Counts, Padded, PaddedRows, Padder, clear_rows, pad_sizes
from manyhop.sampling import SampledSubgraph
from manyhop_pyg.batch.columns import Column as PlannedColumn
from manyhop_pyg.batch.columns import DataPlan, attributes_of
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.data.topologies import kind_of_rows
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler, to_sampler_output
from manyhop_pyg.samplers.spec import GivenNegatives, negatives_of
from manyhop_pyg.typing import Attributes, Batch, Inputs, Metadata, PyGData, Sample, Stores, StoreSize

Column: TypeAlias = tuple[NodeType | EdgeType, str, int]
"""A tensor of batches with a row per node or edge of a type (in the user's terms): its name, the dimension of rows."""
NAMES = ("node_mask", "edge_mask", "seed_mask")


def check_pad(pad: Pad | None, sampler: BaseSampler, data: PyGData) -> None:
    """Raise InputError where batches cannot be padded, FeatureError where data has attributes of the masks' names."""
    check_pad_option(pad)
    if pad is None:
        return
    if not isinstance(sampler, NeighborSampler | HGTSampler):
        raise InputError(
            "Expected a NeighborSampler or HGTSampler of manyhop_pyg with pad='auto', got a "
            f"{type(sampler).__name__}. Leave pad out, or use NeighborLoader, LinkNeighborLoader or HGTLoader."
        )
    if isinstance(sampler, NeighborSampler) and sampler.adds_reverses:
        raise InputError("Expected keep_orig_edges=False with pad='auto': the sampled edges would not be padded.")
    if isinstance(data, Data | HeteroData):
        taken = {name for store in data.stores for name in store.keys()}  # noqa: SIM118  # of PyG, no dictionary
    else:
        taken = {attr.attr_name for attr in data[0].get_all_tensor_attrs()}
    check_names_of_masks(NAMES, taken)


class _Marks(NamedTuple):
    """Masks of one padded batch, by the user's types."""

    padded: Padded
    edge_mask: dict[EdgeType, Tensor]
    seed_masks: list[Tensor]
    """``seed_mask`` of each seed type."""
    num_inputs: list[int]
    """Number of real seeds of each seed type."""


class Padding:
    """Pads the batches of one loader. Thread-safe."""

    def __init__(
        self,
        topology: Topology,
        inputs: Inputs,
        batch_size: int,
        outs: Sequence[Sample],
        device: torch.device | None,
        neg_sampling: NegativeSampling | None = None,
    ) -> None:
        self._topology = topology
        user = self._topology.user_edge_type if self._topology.hetero else {HOMOGENEOUS_EDGE: HOMOGENEOUS_EDGE}
        self._user, self._own = user, {name: t for t, name in user.items()}
        self.batch_size, self._input_type = batch_size, inputs.input_type
        samples = [_to_sample(out, self._topology) for out in outs]
        hops = samples[0].num_sampled_nodes is not None
        seeds = (
            {self._topology.node_type(self._input_type): self.batch_size}
            if _is_of_nodes(outs[0].metadata) and hops
            else None
        )
        self.sizes = pad_sizes([Counts.of(s) for s in samples], seeds=seeds, empty=empty_types(topology.graph))
        self._pad = Padder(self.sizes, num_trees=batch_size, device=device)
        self._num_labels = max(out.metadata[1].size(1) if _is_binary(out.metadata) else 0 for out in outs)
        self._neg_sampling = neg_sampling

    def pad(self, outs: Sequence[Sample]) -> list[Sample]:
        """Return padded samples in PyG's terms."""
        sizes = [out.metadata[0].numel() for out in outs]
        if max(sizes) > self.batch_size:
            raise InputError(
                f"Expected up to batch_size={self.batch_size} seeds with pad='auto', got {max(sizes)}. Make a loader "
                "with the larger batch_size."
            )
        samples = [_to_sample(out, self._topology) for out in outs]
        results = []
        for padded, out, num_inputs in zip(self._pad(samples), outs, sizes, strict=True):
            result, metadata = to_sampler_output(padded.sample, self._topology), out.metadata
            if len(metadata) == 3:  # seeds of multiple types
                pad = self._pad_edge_types if isinstance(metadata[1], dict) else self._pad_typed_seeds
                result.metadata, seed_masks = pad(metadata, padded)
                counts = list(metadata[2].values())
            else:
                result.metadata, seed_mask = self._pad_metadata(metadata, padded, self._input_type, self._num_labels)
                seed_masks, counts = [seed_mask], [num_inputs]
            edge_mask = {self._user[t]: mask for t, mask in padded.edge_mask.items()}
            result.padding = _Marks(padded, edge_mask, seed_masks, counts)
            results.append(result)
        return results

    def _pad_metadata(
        self, metadata: Metadata, padded: Padded, input_type: Any, num_labels: int
    ) -> tuple[Metadata, Tensor]:
        """Return the padded metadata of one seed type, and its ``seed_mask``.

        ``num_labels`` counts the seed edges and binary negatives of a full batch.
        """
        input_id, *others = metadata
        n, size, of_nodes = input_id.numel(), self.batch_size, _is_of_nodes(metadata)
        ends: list[Tensor] = []
        if _is_binary(metadata):  # one entry per seed edge and per negative
            index, *others = others
            n = index.size(1)
            size = max(num_labels, n)
            both = (lengthened(end, size, self._spare(padded, input_type, k)) for k, end in enumerate(index))
            ends = [torch.stack([*both]) if n < size else index]
        elif not of_nodes:
            spare = [self._spare(padded, input_type, int(k > 0)) for k in range(3)]
            ends = [lengthened(end, size, fill) for end, fill in zip(others[:3], spare, strict=True)]
            negatives = negatives_of(self._neg_sampling, input_type)
            if isinstance(negatives, GivenNegatives) and negatives.in_batch:
                missing = negatives.in_batch_amount(self.batch_size) - ends[2].size(1)
                if missing > 0:  # a smaller batch has fewer other seed edges
                    ends[2] = torch.cat([ends[2], ends[2].new_full((size, missing), spare[2])], dim=1)
            del others[:3]
        for i, value in enumerate(others):
            others[i] = None if value is None else lengthened(value, size, 0)
        if of_nodes and padded.sample.num_sampled_nodes is not None:
            seed_mask = padded.node_mask[self._topology.node_type(input_type)][:size]
        else:
            seed_mask = mask_of(n, size, input_id.device)
        return (lengthened(input_id, self.batch_size, 0), *ends, *others), seed_mask

    def _pad_typed_seeds(self, metadata: Metadata, padded: Padded) -> tuple[Metadata, list[Tensor]]:
        """Pad seeds of multiple types to ``batch_size`` each, or to the number of nodes of the type."""
        *columns, counts = metadata
        most = {t: padded.sizes.nodes[self._topology.node_type(t)][0] for t in counts}
        sizes = {t: min(self.batch_size, n) for t, n in most.items()}
        longer = [None if column is None else self._by_type(column, counts, sizes) for column in columns]
        masks = [mask_of(n, size, columns[0].device) for n, size in zip(counts.values(), sizes.values(), strict=True)]
        return (*longer, sizes), masks

    def _pad_edge_types(self, metadata: Metadata, padded: Padded) -> tuple[Metadata, list[Tensor]]:
        """Pad seed edges of multiple types to ``batch_size`` each, and their negatives."""
        _, about, counts = metadata
        both = {t: self._pad_metadata(of, padded, t, self._most_labels(t)) for t, of in about.items()}
        longer = {t: of for t, (of, _) in both.items()}
        ids = torch.cat([of[0] for of in longer.values()])
        return (ids, longer, dict.fromkeys(counts, self.batch_size)), [mask for _, mask in both.values()]

    def _most_labels(self, edge_type: EdgeType) -> int:
        """Return the number of seed edges and binary negatives of a batch with seed edges of this type only."""
        negatives = negatives_of(self._neg_sampling, edge_type)
        amount = negatives.amount if negatives is not None and negatives.is_binary() else 0
        return self.batch_size + math.ceil(self.batch_size * amount)

    @staticmethod
    def _by_type(column: Tensor, counts: dict[NodeType, int], sizes: dict[NodeType, int]) -> Tensor:
        """Return the entries of all types, each lengthened."""
        parts = column.split_with_sizes(list(counts.values()))
        return torch.cat([lengthened(part, size, 0) for part, size in zip(parts, sizes.values(), strict=True)])

    def _spare(self, padded: Padded, edge_type: EdgeType | None, end: int) -> int:
        """Return the position of a padding node for sources (``end=0``) or destinations (1) of seed edges."""
        t = self._topology.node_type(None if edge_type is None else edge_type[2 * end])
        blocks = padded.sample.num_sampled_nodes
        return max((padded.sample.node[t].numel() if blocks is None else blocks[t][0]) - 1, 0)

    def clear(
        self,
        batches: Sequence[Batch],
        outs: Sequence[Sample],
        source: DataPlan | Stores,
        size: StoreSize,
        *,
        permuted: bool,
    ) -> None:
        """Zero the rows of padding nodes and edges, and the ids of padding edges.

        ``permuted``: edge ids were looked up in a permutation, so that those of padding are not zero.
        """
        if isinstance(source, DataPlan):
            columns = _columns_of_data(source)
        else:
            columns = _columns_of_stores(source, None if self._topology.hetero else size)
        if permuted:
            columns += [(e, "e_id", 0) for e in self._own]
        rows: list[PaddedRows] = []
        padded = [out.padding.padded for out in outs]
        for kind, name, dim in columns:
            t = self._own.get(kind) if isinstance(kind, tuple) else kind
            if t is None or (t not in self.sizes.nodes and t not in self.sizes.edges):
                continue
            for batch, own in zip(batches, padded, strict=True):
                value = attributes_of(batch, kind).get(name)
                if isinstance(value, Tensor) and value.layout is torch.strided:
                    rows.append(PaddedRows(value, own, t, dim))
        clear_rows(rows)

    def masks(self, out: Sample) -> tuple[Tensor, Tensor]:
        """Return ``node_mask`` and ``edge_mask`` of a padded homogeneous sample."""
        marks: _Marks = out.padding
        return marks.padded.node_mask[HOMOGENEOUS_NODE], marks.edge_mask[HOMOGENEOUS_EDGE]

    def all_masks(self, out: Sample) -> list[Collection[Tensor]]:
        """Return all masks of a padded sample."""
        marks: _Marks = out.padding
        return [marks.padded.node_mask.values(), marks.edge_mask.values(), marks.seed_masks]

    def label(self, batch: Batch, out: Sample, seeds: Sequence[Attributes]) -> None:
        """Set the masks; ``seeds`` are the attributes that describe the seeds, of each of their types."""
        marks: _Marks = out.padding
        if isinstance(batch, Data):
            into = batch._store._mapping
            into["node_mask"], into["edge_mask"] = self.masks(out)
        else:
            for node_type, mask in marks.padded.node_mask.items():
                batch[node_type]._mapping["node_mask"] = mask
            for edge_type, mask in marks.edge_mask.items():
                batch[edge_type]._mapping["edge_mask"] = mask
        for attributes, seed_mask, n in zip(seeds, marks.seed_masks, marks.num_inputs, strict=True):
            attributes["seed_mask"] = seed_mask
            is_padding = attributes.get("is_padding")
            if isinstance(is_padding, Tensor) and n < is_padding.numel():
                is_padding[n:] = True


def _to_sample(out: Sample, topology: Topology) -> SampledSubgraph:
    """Convert PyG's sample to the engine's: the inverse of ``to_sampler_output``, except for dtypes."""
    row, col = (out.col, out.row) if topology.backward else (out.row, out.col)
    nodes, edges = out.num_sampled_nodes, out.num_sampled_edges
    if not topology.hetero:
        t, e = HOMOGENEOUS_NODE, HOMOGENEOUS_EDGE
        return SampledSubgraph(
            node={t: out.node},
            row={e: row},
            col={e: col},
            edge_id={e: out.edge},
            tree=None if out.batch is None else {t: out.batch},
            num_sampled_nodes=None if nodes is None else {t: nodes},
            num_sampled_edges=None if edges is None else {e: edges},
        )

    def own(values: Any) -> Any:
        return None if values is None else {t: values[name] for t, name in topology.user_edge_type.items()}

    return SampledSubgraph(
        node=out.node,
        row=own(row),
        col=own(col),
        edge_id=own(out.edge),
        tree=out.batch,
        num_sampled_nodes=nodes,
        num_sampled_edges=own(edges),
    )


def _columns_of_data(plan: DataPlan) -> list[Column]:
    found: list[tuple[NodeType | EdgeType, list[PlannedColumn]]] = [(t, of.of_nodes) for t, of in plan.nodes.items()]
    if isinstance(plan.data, Data):
        found = [(HOMOGENEOUS_NODE, of.of_nodes) for of in plan.edges.values()]
    found += [(t, of.of_edges) for t, of in plan.edges.items()]
    return [(kind, column.key, column.dim) for kind, columns in found for column in columns]


def _columns_of_stores(stores: Stores, size: StoreSize | None) -> list[Column]:
    features, _ = stores
    if type(features) is FeatureStore:
        held = [(column.group, column.name, len(column.tensor)) for column in features.columns()]
    else:
        attrs = features.get_all_tensor_attrs()
        held = [(attr.group_name, attr.attr_name, (features.get_tensor_size(attr) or [None])[0]) for attr in attrs]
    kinds = [kind_of_rows(group, name, length, size) for group, name, length in held]
    return [(kind, name, 0) for kind, (_, name, _) in zip(kinds, held, strict=True) if kind is not None]


def _is_of_nodes(metadata: Metadata) -> bool:
    return len(metadata) == 2


def _is_binary(metadata: Metadata) -> bool:
    """Return whether a sample has seed edges, without negatives or with binary ones."""
    return len(metadata) == 4
