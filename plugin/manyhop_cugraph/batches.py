"""Batches as cuGraph passes them: seeds of several batches in one call, and samples decoded from its result.

cuGraph returns edges with their ids in the graph, label by label and hop by hop. All batches are decoded at once, hop
by hop, by sorting: the contract defines the order of nodes and edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhop.sampling.contract import NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.launch.seeds import SeedGroup
from manyhop_cugraph.graph import Numbering


@dataclass(frozen=True)
class Seeds:
    """Seeds of multiple batches. A label separates samples in cuGraph: a batch or, if disjoint, the tree of a seed."""

    key: Tensor
    """``[num_seeds] int64``: ``label * num_vertices + vertex``, batch by batch, in the order of the requests."""
    unique: Tensor
    """``[num_unique] int64``: the unique keys in ascending order, which cuGraph receives."""
    batch_of_label: Tensor
    """``[num_labels] int64``."""
    first_label: Tensor
    """``[num_batches] int64``: the first label of each batch."""
    time: tuple[Tensor, Tensor] | None
    """``[num_unique] int64`` each: bounds of the edges' times, by unique key; disjoint only."""

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return self.first_label.numel()

    @property
    def num_labels(self) -> int:
        """Number of labels."""
        return self.batch_of_label.numel()

    @property
    def has_copies(self) -> bool:
        """Return whether a batch contains duplicate seeds; False if disjoint."""
        return self.key.numel() > self.unique.numel()

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        return [self.key, self.unique, self.batch_of_label, self.first_label, *(self.time or ())]

    def offsets(self, numbering: Numbering) -> Tensor:
        """Return ``[num_labels + 1] int64``: where each label begins in ``unique``."""
        labels = torch.arange(self.num_labels + 1, device=self.unique.device)
        return torch.searchsorted(self.unique, labels * numbering.num_vertices)


EARLIEST = -(1 << 62)
"""A time before all others, if there is no limit."""


def gather_seeds(
    requests: Sequence[NodeRequest], numbering: Numbering, device: torch.device, *, disjoint: bool
) -> Seeds:
    """Return the seeds of batches.

    Args:
        requests: the batches, checked; tensors on the CPU or on ``device``.
        numbering: of the graph.
        device: where the result is.
        disjoint: whether each seed has its own tree.
    """
    if isinstance(requests, SeedGroup):
        vertex, sizes = numbering.vertices(requests.node_type, requests.seeds.to(device)), list(requests.sizes)
    else:
        parts = [numbering.vertices(t, seeds) for request in requests for t, seeds in request.seeds.items()]
        vertex, sizes = _joined(parts, device), [sum(map(len, request.seeds.values())) for request in requests]
    batch = torch.repeat_interleave(torch.tensor(sizes, device=device), output_size=sum(sizes))
    if disjoint:  # a label per seed: no label has a seed twice
        label = torch.arange(sum(sizes), device=device)
        key = label * numbering.num_vertices + vertex
        ends = torch.tensor(sizes, device=device).cumsum(0)
        return Seeds(key, key, batch, ends - torch.tensor(sizes, device=device), _times(requests, device))
    key = batch * numbering.num_vertices + vertex
    every = torch.arange(len(sizes), device=device)
    return Seeds(key, torch.unique(key), every, every, None)


def join_seeds(parts: Sequence[Seeds], numbering: Numbering) -> Seeds:
    """Concatenate the seeds of multiple works. Either all have times, or none."""
    if len(parts) == 1:
        return parts[0]
    labels = list(itertools.accumulate((part.num_labels for part in parts), initial=0))
    batches = list(itertools.accumulate((part.num_batches for part in parts), initial=0))
    every = list(zip(parts, labels, batches, strict=False))
    times = [part.time for part in parts if part.time is not None]
    return Seeds(
        torch.cat([part.key + label * numbering.num_vertices for part, label, _ in every]),
        torch.cat([part.unique + label * numbering.num_vertices for part, label, _ in every]),
        torch.cat([part.batch_of_label + batch for part, _, batch in every]),
        torch.cat([part.first_label + label for part, label, _ in every]),
        (torch.cat([first for first, _ in times]), torch.cat([last for _, last in times])) if times else None,
    )


def _times(requests: Sequence[NodeRequest], device: torch.device) -> tuple[Tensor, Tensor] | None:
    if isinstance(requests, SeedGroup) or requests[0].time_max is None:
        return None
    latest = [times for request in requests for times in (request.time_max or {}).values()]
    earliest: list[Tensor] = []
    for request in requests:
        given = request.time_min
        for node_type, times in (request.time_max or {}).items():
            earliest.append(torch.full_like(times, EARLIEST) if given is None else given[node_type])
    return _joined(earliest, device), _joined(latest, device)


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return tensors as one, on the device, by one copy if they are all on the CPU."""
    if not parts:
        return torch.empty(0, dtype=torch.int64, device=device)
    if len({part.device for part in parts}) > 1:
        parts = [part.to(device) for part in parts]
    return torch.cat(list(parts)).to(device)


_NEVER = 1 << 40
"""Beyond the order of any node of a call."""


@dataclass(frozen=True)
class SampledEdgeList:
    """The result of a call of cuGraph for this rank, sorted by label and hop."""

    frontier: Tensor
    """``[num_edges] int64``: the vertex whose neighbours were sampled."""
    neighbor: Tensor
    """``[num_edges] int64``: its neighbour."""
    edge_id: Tensor
    """``[num_edges] int64``."""
    edge_type: Tensor | None
    """``[num_edges] int64``; ``None`` if there is one type."""
    counts: Tensor
    """``[num_labels, num_hops] int64``: edges of each label and hop."""

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        return [tensor for tensor in vars(self).values() if tensor is not None]


def split_edges(edges: SampledEdgeList, labels: Sequence[int]) -> list[SampledEdgeList]:
    """Split the edges of a call by work, with copies. It waits for the device.

    Args:
        edges: of all works.
        labels: number of labels of each work.
    """
    if len(labels) == 1:
        return [edges]
    counts = edges.counts.split_with_sizes(list(labels))
    sizes = torch.stack([count.sum() for count in counts]).tolist()

    def cut(column: Tensor) -> list[Tensor]:
        return [part.clone() for part in column.split_with_sizes(sizes)]

    types: Sequence[Tensor | None] = [None] * len(labels) if edges.edge_type is None else cut(edges.edge_type)
    columns = zip(cut(edges.frontier), cut(edges.neighbor), cut(edges.edge_id), types, counts, strict=True)
    return [SampledEdgeList(*column) for column in columns]


@dataclass(frozen=True)
class _Hop:
    """The edges of one hop of all batches, in their order: by batch, by edge type, by frontier node."""

    group: Tensor
    """``[n] int64``: ``batch * num_edge_types + edge type``."""
    col: Tensor
    """``[n] int64``: the order of the frontier node."""
    row: Tensor
    """``[n] int64``: number of the neighbour among all that the call found."""
    edge_id: Tensor
    count: Tensor
    """``[num_batches * num_edge_types] int64``."""


def decode(edges: SampledEdgeList, seeds: Seeds, numbering: Numbering, *, disjoint: bool) -> list[SampledSubgraph]:
    """Return the samples of the batches of a call; ``disjoint``: each seed has its own tree. Waits for the device.

    The nodes of a call are ordered by first occurrence: the seeds, then the neighbours hop by hop. All copies of a seed
    in a batch have the same neighbours.
    """
    num_seeds, num_hops = seeds.key.numel(), edges.counts.shape[1]
    device = seeds.key.device
    label = torch.repeat_interleave(edges.counts.sum(1), output_size=edges.neighbor.numel())
    keys = label * numbering.num_vertices + edges.neighbor
    known, where = torch.unique(torch.cat([seeds.key, keys]), return_inverse=True)
    order = torch.full(known.shape, _NEVER, dtype=torch.int64, device=device)
    order.scatter_reduce_(0, where[:num_seeds], torch.arange(num_seeds, device=device), "amin")
    ends, hops = [num_seeds], []
    for chosen in _by_hop(edges):
        of_edge = label[chosen]
        col = order[torch.searchsorted(known, of_edge * numbering.num_vertices + edges.frontier[chosen])]
        if seeds.has_copies:
            chosen, of_edge, col = _repeated(chosen, of_edge, col, seeds)
        group = seeds.batch_of_label[of_edge] * len(numbering.edge_types)
        if edges.edge_type is not None:
            group = group + edges.edge_type[chosen]
        place = torch.argsort((group << 40) | col, stable=True)
        at, group = chosen[place], group[place]
        count = _count(group, seeds.num_batches * len(numbering.edge_types))
        hop = _Hop(group, col[place], where[num_seeds:][at], edges.edge_id[at], count)
        ends.append(ends[-1] + len(at))
        order.scatter_reduce_(0, hop.row, torch.arange(*ends[-2:], device=device), "amin")
        hops.append(hop)

    # The nodes of each batch and type, in order.
    fresh = torch.argsort(order)[seeds.unique.numel() :]
    key = torch.cat([seeds.key, known[fresh]])
    at = torch.cat([torch.arange(num_seeds, device=device), order[fresh]])
    label = key // numbering.num_vertices
    vertex = key - label * numbering.num_vertices
    node_type = numbering.type_of(vertex)
    block = seeds.batch_of_label[label] * len(numbering.node_types) + node_type
    place = torch.argsort((block << 40) | at)
    block, at, label = block[place], at[place], label[place]
    num_blocks = seeds.num_batches * len(numbering.node_types)
    sizes = _count(block, num_blocks)
    local = torch.empty(ends[-1], dtype=torch.int64, device=device)  # order -> local id
    local[at] = torch.arange(at.numel(), device=device) - (sizes.cumsum(0) - sizes)[block]
    node = (vertex - numbering.begins[node_type])[place]
    added_by = torch.searchsorted(torch.tensor(ends, device=device), at, right=True)
    node_counts = _count(block * (num_hops + 1) + added_by, num_blocks * (num_hops + 1))
    tree = label - seeds.first_label[seeds.batch_of_label[label]] if disjoint else None

    # The edges of each batch and type, hop by hop.
    edge_counts = torch.stack([hop.count for hop in hops])
    pairs, edge_ids = _joined_hops(hops, edge_counts, order, local)
    on_host = torch.cat([node_counts, edge_counts.t().reshape(-1)]).tolist()
    split = num_blocks * (num_hops + 1)
    of_nodes = [on_host[i : i + num_hops + 1] for i in range(0, split, num_hops + 1)]
    of_edges = [on_host[i : i + num_hops] for i in range(split, len(on_host), num_hops)]
    return _cut(numbering, (node, tree), of_nodes, (pairs, edge_ids), of_edges)


def _by_hop(edges: SampledEdgeList) -> list[Tensor]:
    """Return for each hop the positions of its edges."""
    num_labels, num_hops = edges.counts.shape
    hop = torch.arange(num_hops, device=edges.counts.device).repeat(num_labels)
    hop = torch.repeat_interleave(hop, edges.counts.view(-1), output_size=edges.neighbor.numel())
    return list(torch.argsort(hop, stable=True).split_with_sizes(edges.counts.sum(0).tolist()))


def _repeated(chosen: Tensor, label: Tensor, col: Tensor, seeds: Seeds) -> tuple[Tensor, Tensor, Tensor]:
    """Repeat the edges of duplicate seeds for each copy."""
    num_seeds = seeds.key.numel()
    keys, copies = torch.sort(seeds.key, stable=True)
    of_seed = torch.cat([seeds.key, seeds.key.new_full((1,), -1)])[col.clamp(max=num_seeds)]  # -1: not a seed
    begin = torch.searchsorted(keys, of_seed)
    times = (torch.searchsorted(keys, of_seed, right=True) - begin).clamp(min=1)
    each = torch.repeat_interleave(times)
    number = torch.arange(each.numel(), device=each.device) - (times.cumsum(0) - times)[each]
    copy = copies[(begin[each] + number).clamp(max=num_seeds - 1)]
    return chosen[each], label[each], torch.where(of_seed[each] < 0, col[each], copy)


def _joined_hops(hops: list[_Hop], counts: Tensor, order: Tensor, local: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges of all hops, batch by batch, type by type: ``[2 * num_edges]`` local ids, and edge ids.

    The rows of each batch and type precede its columns.
    """
    device, total = counts.device, sum(hop.row.numel() for hop in hops)
    pairs = torch.empty(2 * total, dtype=torch.int64, device=device)
    edge_ids = torch.empty(total, dtype=torch.int64, device=device)
    of_group = counts.sum(0)
    begin, before = of_group.cumsum(0) - of_group, counts.cumsum(0) - counts
    for hop, mine, earlier in zip(hops, counts, before, strict=True):
        inside = torch.arange(hop.row.numel(), device=device) + (earlier - (mine.cumsum(0) - mine))[hop.group]
        at = begin[hop.group] + inside
        edge_ids[at] = hop.edge_id
        at += begin[hop.group]
        pairs[at] = local[order[hop.row]]
        pairs[at + of_group[hop.group]] = local[hop.col]
    return pairs, edge_ids


def _cut(
    numbering: Numbering,
    of_node: tuple[Tensor, Tensor | None],
    node_counts: list[list[int]],
    of_edge: tuple[Tensor, Tensor],
    edge_counts: list[list[int]],
) -> list[SampledSubgraph]:
    """Return the samples of each batch as views of common tensors."""
    (node, tree), (pairs, edge_ids) = of_node, of_edge
    num_nodes, num_edges = [sum(counts) for counts in node_counts], [sum(counts) for counts in edge_counts]
    nodes = node.split_with_sizes(num_nodes)
    trees = None if tree is None else tree.split_with_sizes(num_nodes)
    ends = [pair.view(2, -1).unbind(0) for pair in pairs.split_with_sizes([2 * n for n in num_edges])]
    ids = edge_ids.split_with_sizes(num_edges)
    samples = []
    for b in range(len(node_counts) // len(numbering.node_types)):
        n, e = b * len(numbering.node_types), b * len(numbering.edge_types)
        samples.append(
            SampledSubgraph(
                node=dict(zip(numbering.node_types, nodes[n:], strict=False)),
                row={t: ends[e + i][0] for i, t in enumerate(numbering.edge_types)},
                col={t: ends[e + i][1] for i, t in enumerate(numbering.edge_types)},
                edge_id=dict(zip(numbering.edge_types, ids[e:], strict=False)),
                tree=None if trees is None else dict(zip(numbering.node_types, trees[n:], strict=False)),
                num_sampled_nodes=dict(zip(numbering.node_types, node_counts[n:], strict=False)),
                num_sampled_edges=dict(zip(numbering.edge_types, edge_counts[e:], strict=False)),
            )
        )
    return samples


def _count(index: Tensor, size: int) -> Tensor:
    """Return ``[size] int64``: how often each number occurs. Unlike ``bincount``, does not wait for a GPU."""
    return torch.zeros(size, dtype=torch.int64, device=index.device).scatter_add_(0, index, torch.ones_like(index))
