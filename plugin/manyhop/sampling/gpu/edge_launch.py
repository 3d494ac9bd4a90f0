"""The memory of a launch of seed edges: layout of the endpoints, and the descriptor that kernels read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from manyhop.graph import EdgeType, NodeType
from manyhop.sampling.contract import EdgeRequest, NegativeSpec
from manyhop.sampling.gpu.kernels import negatives as kernels
from manyhop.sampling.negatives import NegativeTable
from manyhop.system.triton_launch import low_64_bits

Ints = npt.NDArray[np.int64]

_DESCRIPTOR, _BATCH = kernels.DESCRIPTOR_COLUMNS.value, kernels.BATCH_COLUMNS.value
_STATE_COUNTS: int = kernels.STATE_COUNTS.value


class Candidates:
    """Tables of the nodes that negatives of one end are drawn from, on the device.

    Args:
        table: the candidates; ``None`` if nothing is drawn.
        num_nodes: number of nodes of the type.
        device: where kernels read them.
    """

    def __init__(self, table: NegativeTable | None, num_nodes: int, device: torch.device) -> None:
        self.sorted = table is not None and table.node is not None
        self.weighted = table is not None and table.cumw is not None
        columns = () if table is None else (table.node, table.time, table.cumw, table.last_positive)
        self._columns = [None if column is None else torch.from_numpy(column).to(device) for column in columns]
        addresses = [0 if column is None else column.data_ptr() for column in self._columns] or [0] * 4
        self.about = [*addresses, num_nodes, 0 if table is None else table.first_positive]


class Part(NamedTuple):
    """The seed edges of one type in one batch, and where their endpoints are."""

    num_pos: int
    num_neg: int
    num_src: int
    """Sources, including those of negatives."""
    num_dst: int
    src_at: int
    """Offset of the sources among all endpoints."""
    dst_at: int
    src_local: int
    """Endpoints of the same node type and batch before the sources."""
    dst_local: int


class Layout:
    """Layout of the endpoints of batches: a row for each node type of a batch, by edge type, sources first.

    Args:
        edge_types: the types of the seed edges, and which negatives are drawn.
        num_pos: ``[num_edge_types][num_batches]``: seed edges.
    """

    def __init__(
        self, edge_types: Sequence[tuple[EdgeType, NegativeSpec | None]], num_pos: Sequence[Sequence[int]]
    ) -> None:
        self.types: list[NodeType] = list(dict.fromkeys(t[end] for t, _ in edge_types for end in (0, 2)))
        self.lengths = [0] * (len(self.types) * len(num_pos[0]))
        found = []
        for (edge_type, negatives), sizes in zip(edge_types, num_pos, strict=True):
            amount = 0 if negatives is None else negatives.amount
            binary = negatives is not None and negatives.mode == "binary"
            src, dst = self.types.index(edge_type[0]), self.types.index(edge_type[2])
            parts = []
            for b, n in enumerate(sizes):
                num_neg, rows = math.ceil(n * amount), (b * len(self.types) + src, b * len(self.types) + dst)
                num_ends = n + num_neg if binary else n, n + num_neg
                local = []
                for row, num in zip(rows, num_ends, strict=True):
                    local.append(self.lengths[row])
                    self.lengths[row] += num
                parts.append((n, num_neg, *num_ends, *rows, *local))
            found.append(parts)
        self.pitch = max(1, *self.lengths)
        self.parts = [
            [Part(p, n, ns, nd, s * self.pitch + i, d * self.pitch + j, i, j) for p, n, ns, nd, s, d, i, j in parts]
            for parts in found
        ]
        """``[num_edge_types][num_batches]``."""

    def seed_edges(self, b: int) -> Ints:
        """Return the seed edge of each endpoint of a batch, row by row, numbered through the edge types."""
        found, first = [], 0
        for parts in self.parts:
            part = parts[b]
            for n, at in ((part.num_src, part.src_at), (part.num_dst, part.dst_at)):
                found.append((at, first + np.arange(n, dtype=np.int64) % max(part.num_pos, 1)))
            first += part.num_pos
        return np.concatenate([edges for _, edges in sorted(found, key=lambda one: one[0])])


class Launch:
    """The memory of one launch.

    Args:
        layout: layout of the endpoints.
        requests: by edge type and batch; their CPU tensors are copied to the device in one copy.
        device: where kernels run.
        wide: whether endpoints are int64 instead of int32.
        disjoint: whether endpoints have their own times, and are not made unique.
        exclude: whether attempts can fail.
    """

    def __init__(
        self,
        layout: Layout,
        requests: Sequence[Sequence[EdgeRequest]],
        device: torch.device,
        *,
        wide: bool,
        disjoint: bool,
        exclude: bool,
    ) -> None:
        num_rows, pitch = len(layout.lengths), layout.pitch
        ints = torch.empty((4, num_rows * pitch), dtype=torch.int64, device=device)
        self.index, self.unique, self.out_max, self.out_min = ints.unbind(0)
        self.out = self.unique
        if not wide:
            self.out = torch.empty(num_rows * pitch, dtype=torch.int32, device=device)
        elif not disjoint:
            self.out = torch.empty_like(self.unique)
        if not disjoint:  # sorting includes the padding after the ends of rows
            self.out.fill_(torch.iinfo(self.out.dtype).max)
        num_parts = sum(map(len, layout.parts))
        num_failed = num_parts * pitch if exclude else 1
        self.failed = torch.empty(num_failed, dtype=torch.int8, device=device)

        self._keep = [  # must outlive the launch; copies of the tensors of other GPUs
            [
                None if x is None else (x.to(device) if x.is_cuda else x).resolve_neg().contiguous()
                for x in (r.src, r.all_dst(), r.time_max, r.time_min)
            ]
            for of_type in requests
            for r in of_type
        ]
        here = [x for tensors in self._keep for x in tensors if x is not None and not x.is_cuda]
        lengths_at = _DESCRIPTOR + num_parts * _BATCH
        state_at = lengths_at + num_rows
        arrays_at = state_at + _STATE_COUNTS + num_rows
        size = arrays_at + sum(x.numel() for x in here)
        staging = torch.empty(size, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        memory = torch.empty(size, dtype=torch.int64, device=device) if device.type == "cuda" else staging
        self.descriptor, self.state = memory, memory[state_at:arrays_at]

        written = (self.out, self.out_max, self.out_min, self.index, self.unique, self.failed, self.state)
        table = [*(x.data_ptr() for x in written), memory.data_ptr() + 8 * lengths_at, pitch]
        at = arrays_at
        all_requests = [(i, request) for i, of_type in enumerate(requests) for request in of_type]
        all_parts = [part for parts in layout.parts for part in parts]
        for (kind, request), part, tensors in zip(all_requests, all_parts, self._keep, strict=True):
            addresses = []
            for x in tensors:
                if x is None:
                    addresses.append(0)
                elif x.is_cuda:
                    addresses.append(x.data_ptr())
                else:
                    addresses.append(memory.data_ptr() + 8 * at)
                    at += x.numel()
            key = [low_64_bits(number) for number in request.key]
            table += [part.num_pos, part.num_neg, *addresses, *key, *part[4:], kind]
        table += layout.lengths
        host: Ints = staging.numpy()
        host[:state_at] = table
        host[state_at:arrays_at] = 0
        if here:
            np.concatenate([x.numpy() for x in here], out=host[arrays_at:])
        if device.type == "cuda":
            memory.copy_(staging, non_blocking=True)
