"""Batches of fixed sizes of the samples of a launch, made together: padded, gathered and taken apart by type.

What belongs to one batch alone is an object of PyG's and its tensors; nothing else is made for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.typing import TensorFrame

from manyhop.aggregation import Hops, mark_sorted
from manyhop.features import RowRequest
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading.adapter import Joined
from manyhop.loading.padding import lengthened
from manyhop.pipeline import Turn
from manyhop.sampling import SampledSubgraph
from manyhop_pyg.batch.assemble_stores import blank_data
from manyhop_pyg.batch.edge_index import order_of
from manyhop_pyg.batch.joining import Joining
from manyhop_pyg.batch.plan import DataPlan, StorePlan
from manyhop_pyg.loaders.columns import PlacedStore
from manyhop_pyg.typing import Attributes, Batch, Metadata, Sample

if TYPE_CHECKING:
    from manyhop.pipeline.gpu import PaddedTogether
    from manyhop.sampling.gpu.launch.results import Results

_GATHERED = 4  # batches whose rows are asked for together, and share memory
_REMOVED = {"batch", "seed_time"}  # attributes of the user's that batches do not have


class LaunchedGroup:
    """The samples of a launch around seed nodes of one type.

    Args:
        samples: not weighted.
        convert: the engine's samples -> PyG's.
        metadata: of each.
        node_type: of the seeds.
    """

    def __init__(
        self,
        samples: Results,
        convert: Callable[[SampledSubgraph], Sample],
        metadata: list[Metadata],
        node_type: NodeType,
    ) -> None:
        self.samples, self.metadata, self.node_type = samples, metadata, node_type
        self._convert = convert
        self._outs: list[Sample] | None = None

    def handles(self) -> list[LaunchedSample]:
        """Return what stands for each sample."""
        return [LaunchedSample(self, i) for i in range(len(self.metadata))]

    def outs(self) -> list[Sample]:
        """Return the samples in PyG's terms."""
        if self._outs is None:
            self._outs = [self._convert(sample) for sample in self.samples.cut()]
            for out, about in zip(self._outs, self.metadata, strict=True):
                out.metadata = about
        return self._outs


class LaunchedSample(NamedTuple):
    """One sample of a launch, before there are tensors of it."""

    group: LaunchedGroup
    number: int


def outs_of(samples: Sequence[Any]) -> list[Sample]:
    """Return samples in PyG's terms."""
    return [s.group.outs()[s.number] if type(s) is LaunchedSample else s for s in samples]


def counts_of(samples: Sequence[LaunchedSample]) -> tuple[int, int, int]:
    """Return how many seeds, nodes and edges samples of one launch have."""
    group, numbers = samples[0].group, [s.number for s in samples]
    seeds = sum([group.metadata[i][0].numel() for i in numbers])
    return seeds, int(group.samples.nodes[numbers].sum()), int(group.samples.edges[numbers].sum())


def join_launched(
    joining: Joining,
    samples: Sequence[LaunchedSample],
    turns: Sequence[Turn],
    num_first: Callable[[Turn, int], int] | None,
) -> Joined[Batch] | None:
    """Return the batches of samples that follow each other in a launch; ``None``: they have to be made one by one.

    Args:
        joining: what they are joined with, on a GPU and with padding.
        samples: one or more.
        turns: which batches these are.
        num_first: turn, seeds -> how many of these are no repetitions; ``None``: ranks do not share batches.
    """
    gpu, padding, stores, (group, first) = joining.gpu, joining.padding, _stores_of(joining), samples[0]
    assert gpu is not None
    assert padding is not None
    num, size = len(samples), padding.batch_size
    metadata = group.metadata[first : first + num]
    if stores is None or any([own is not group or i != first + k for k, (own, i) in enumerate(samples)]):
        return None  # as after a change of rows, when the first one is sampled again
    if max([about[0].numel() for about in metadata]) > size:
        return None
    padded = padding.pad_launched(group.samples, first, num, gpu.device)
    if padded is None or {*padded.node, *padded.edge_index} != stores.slots.keys():
        return None
    rows = _gathered(joining, stores.columns, padded)
    if rows is None:
        return None
    fields = _Fields(stores.slots, padded)
    _add_graph(fields, stores, padded, is_sorted=order_of(joining.sampler) == "col")
    for column, own in zip(stores.columns, rows, strict=True):
        fields.add(column.kind, column.key, [one for part in own for one in fields.parts(column.kind, part)])
    _add_ids(fields, stores, padded)
    seeds = group.node_type
    memory = [*padded.memory, *[part for own in rows for part in own]]
    input_ids = [lengthened(about[0], size, 0) for about in metadata]
    memory += input_ids
    fields.add(seeds, "input_id", input_ids)
    fields.add(seeds, "batch_size", repeat(size))
    if num_first is not None:
        marks = torch.zeros(num * size, dtype=torch.bool, device=gpu.device)
        memory.append(marks)
        fields.add(seeds, "is_padding", _repetitions(marks, metadata, turns, num_first))
    for t, mask in padded.node_mask.items():
        fields.add(t, "node_mask", fields.parts(t, mask))
    for e, mask in padded.edge_mask.items():
        fields.add(e, "edge_mask", fields.parts(e, mask))
    sizes = [size, fields.lengths[seeds] - size]
    fields.add(seeds, "seed_mask", padded.node_mask[seeds].unsafe_split_with_sizes(sizes * num)[::2])
    joining.stats.count(padded=num, fit=num)
    by_address = {value.untyped_storage().data_ptr(): value for value in memory}
    nbytes = sum([part.nbytes for own in rows for part in own])
    return Joined(fields.batches(stores.begin), nbytes, list(by_address.values()))


class _Fields:
    """The attributes of several batches: of each its value in every batch.

    Args:
        slots: which attributes those of each type are.
        padded: the samples of the batches.
    """

    def __init__(self, slots: dict[NodeType | EdgeType, int], padded: PaddedTogether) -> None:
        self.num, self._slots = padded.num, slots
        sizes: list[tuple[NodeType | EdgeType, Sequence[int]]] = [*padded.sizes.nodes.items()]
        self.lengths = {kind: sum(own) for kind, own in [*sizes, *padded.sizes.edges.items()]}
        """Nodes or edges of each type in a batch."""
        self._names: list[list[str]] = [[] for _ in range(1 + max(slots.values()))]
        self._values: list[list[Iterable[object]]] = [[] for _ in self._names]

    def add(self, kind: NodeType | EdgeType, name: str, values: Iterable[object]) -> None:
        """Add an attribute of a type."""
        self._names[self._slots[kind]].append(name)
        self._values[self._slots[kind]].append(values)

    def parts(self, kind: NodeType | EdgeType, values: Tensor) -> Sequence[Tensor]:
        """Return what each batch has of a tensor with a row per node or edge of several.

        These are no views of one tensor: a change of one does not count as a change of all.
        """
        n = self.lengths[kind]
        return values.unsafe_split_with_sizes([n] * (values.size(0) // n if n else self.num))

    def batches(self, begin: Callable[[], tuple[Batch, Sequence[Attributes]]]) -> list[Batch]:
        """Return batches that ``begin`` makes, with these attributes."""
        rows = [zip(*values, strict=False) for values in self._values]
        batches = []
        for _ in range(self.num):
            batch, mappings = begin()
            for mapping, names, row in zip(mappings, self._names, rows, strict=True):
                mapping.update(zip(names, next(row), strict=True))
            batches.append(batch)
        return batches


def _add_graph(fields: _Fields, stores: _Stores, padded: PaddedTogether, *, is_sorted: bool) -> None:
    """Add edges and numbers of nodes."""
    nodes, edges = padded.sizes.nodes, padded.sizes.edges
    for e in stores.edges:
        parts = padded.edge_index[e].unsafe_split_with_sizes([2] * padded.num)
        if is_sorted:
            hops = Hops(nodes[e[0]], nodes[e[2]], edges[e])
            for edge_index in parts:
                mark_sorted(edge_index, hops)
        fields.add(e, "edge_index", parts)
    for t in stores.counted:
        fields.add(t, "num_nodes", repeat(fields.lengths[t]))


def _add_ids(fields: _Fields, stores: _Stores, padded: PaddedTogether) -> None:
    """Add what PyG's samplers give besides edges."""
    for t, node in padded.node.items():
        if "n_id" not in stores.taken[stores.slots[t]]:
            fields.add(t, "n_id", fields.parts(t, node))
    for e, edge_id in padded.edge_id.items():
        if "e_id" not in stores.taken[stores.slots[e]]:
            fields.add(e, "e_id", fields.parts(e, edge_id))
    for t, tree in (padded.tree or {}).items():
        fields.add(t, "batch", fields.parts(t, tree))
    for t, sizes in padded.sizes.nodes.items():
        fields.add(t, "num_sampled_nodes", [list(sizes) for _ in range(padded.num)])
    for e, sizes in padded.sizes.edges.items():
        fields.add(e, "num_sampled_edges", [list(sizes) for _ in range(padded.num)])


def _gathered(joining: Joining, columns: Sequence[_Column], padded: PaddedTogether) -> list[list[Tensor]] | None:
    """Return the rows of each column, of a few batches at a time, those of padding zeros; ``None``: they are no plain
    tensors."""
    gpu = joining.gpu
    assert gpu is not None
    starts = range(0, padded.num, _GATHERED)
    counts = [min(_GATHERED, padded.num - start) for start in starts]
    parts: dict[NodeType | EdgeType, Sequence[Tensor]] = {}
    for kind in {column.kind for column in columns}:
        ids = padded.node[kind] if isinstance(kind, str) else padded.edge_id[kind]
        parts[kind] = ids.unsafe_split_with_sizes([ids.numel() // padded.num * k for k in counts])
    start = gpu.start_gather()
    found = gpu.gather(
        [
            RowRequest(column.source, part, 0, column.title, joining.bounds.get(column.kind))
            for column in columns
            for part in parts[column.kind]
        ],
        threads=joining.copy_threads,
    )
    gpu.end_gather(start, padded.num)
    if not all([_is_plain(rows) for rows in found]):
        return None
    rows = [found[i : i + len(counts)] for i in range(0, len(found), len(counts))]
    padded.clear(
        [
            (column.kind, first, part)
            for column, own in zip(columns, rows, strict=True)
            for first, part in zip(starts, own, strict=True)
        ]
    )
    return rows


def _is_plain(rows: object) -> bool:
    """Whether rows can be cleared by their address, and taken apart."""
    return type(rows) is Tensor and rows.layout is torch.strided and rows.is_contiguous() and not rows.requires_grad


def _repetitions(
    marks: Tensor, metadata: Sequence[Metadata], turns: Sequence[Turn], num_first: Callable[[Turn, int], int]
) -> Sequence[Tensor]:
    """Return which seeds of each batch are padding or repetitions; ``marks``: memory for it, all ``False``."""
    size = marks.numel() // len(turns)
    parts = marks.unsafe_split_with_sizes([size] * len(turns))
    for part, about, turn in zip(parts, metadata, turns, strict=True):
        first = num_first(turn, about[0].numel())
        if first < size:
            part[first:] = True
    return parts


class _Column(NamedTuple):
    """A tensor that batches have rows of."""

    slot: int
    key: str
    source: object
    kind: NodeType | EdgeType
    title: str


class _Stores(NamedTuple):
    """What batches consist of."""

    begin: Callable[[], tuple[Batch, Sequence[Attributes]]]
    """Returns a batch that is still to be filled, and the attributes of each of its stores: of each *slot*."""
    slots: dict[NodeType | EdgeType, int]
    """The slot of each type."""
    taken: list[Collection[str]]
    """The names of the user's attributes in each slot."""
    counted: list[NodeType]
    """Types that have ``num_nodes``."""
    edges: list[EdgeType]
    """Types that have ``edge_index``."""
    columns: list[_Column]


def _stores_of(joining: Joining) -> _Stores | None:
    """Return what batches consist of; ``None`` where that is more than tensors with a row per node or edge."""
    placed = joining.placed
    if isinstance(placed, PlacedStore):
        return _stores_of_store(joining, placed)
    if not isinstance(placed, DataPlan) or placed.edge_index_types:
        return None
    if isinstance(placed.data, Data):
        of_all = placed.edges[HOMOGENEOUS_EDGE]
        kinds: list[tuple[StorePlan, NodeType | None, EdgeType | None]] = [(of_all, HOMOGENEOUS_NODE, HOMOGENEOUS_EDGE)]
    else:
        kinds = [(plan, t, None) for t, plan in placed.nodes.items()]
        kinds += [(plan, None, e) for e, plan in placed.edges.items()]
    if not all([_is_simple(plan) for plan, _, _ in kinds]):
        return None
    stores = _Stores(partial(_begun, placed), {}, [], [], [], [])
    for slot, (plan, t, e) in enumerate(kinds):
        stores.taken.append(plan.template.keys())
        for kind, columns in ((t, plan.of_nodes), (e, plan.of_edges)):
            if kind is not None:
                stores.slots[kind] = slot
                stores.columns.extend([_Column(slot, key, value, kind, key) for key, value, _ in columns])
        if t is not None and plan.num_nodes:
            stores.counted.append(t)
        if e is not None and plan.edges:
            stores.edges.append(e)
    return stores


def _is_simple(plan: StorePlan) -> bool:
    return (
        not plan.embeddings
        and all([key == "edge_index" for key, _ in plan.edges])
        and all([dim == 0 and not isinstance(value, TensorFrame) for _, value, dim in (*plan.of_nodes, *plan.of_edges)])
        and _REMOVED.isdisjoint(plan.template)
    )


def _begun(plan: DataPlan) -> tuple[Batch, Sequence[Attributes]]:
    batch = plan.begin()
    if isinstance(batch, Data):
        return batch, (batch._store._mapping,)
    stores = [*batch._node_store_dict.values(), *batch._edge_store_dict.values()]
    return batch, [store._mapping for store in stores]


def _stores_of_store(joining: Joining, placed: PlacedStore) -> _Stores | None:
    """Return what batches of a pair of stores without types consist of."""
    if joining.custom_cls is not None or any([column.group is not None for column in placed.columns]):
        return None
    columns = [
        _Column(
            0,
            column.name,
            source,
            HOMOGENEOUS_EDGE if is_of_edges else HOMOGENEOUS_NODE,
            column.title,
        )
        for column, source, is_of_edges in placed.without_types(joining.store_size)
    ]
    slots: dict[NodeType | EdgeType, int] = {HOMOGENEOUS_NODE: 0, HOMOGENEOUS_EDGE: 0}
    taken: list[Collection[str]] = [[column.key for column in columns]]
    return _Stores(_blank_data, slots, taken, [HOMOGENEOUS_NODE], [HOMOGENEOUS_EDGE], columns)


def _blank_data() -> tuple[Batch, Sequence[Attributes]]:
    batch, into = blank_data()
    return batch, (into,)
