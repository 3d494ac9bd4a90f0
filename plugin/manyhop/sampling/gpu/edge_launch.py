"""The memory of a launch of seed edges: layout of the endpoints, and the descriptor that kernels read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from manyhop.sampling.contract import EdgeRequest, NegativeSpec
from manyhop.sampling.gpu.kernels import negatives as kernels
from manyhop.sampling.gpu.transfer import low_64_bits
from manyhop.sampling.negatives import NegativeTable

Ints = npt.NDArray[np.int64]

_DESCRIPTOR, _BATCH, _ROW = (c.value for c in (kernels.DESCRIPTOR_COLUMNS, kernels.BATCH_COLUMNS, kernels.ROW_COLUMNS))
_STATE_COUNTS: int = kernels.STATE_COUNTS.value


class Candidates:
    """Tables of the nodes that negatives of one end are drawn from, on the device.

    Args:
        table: the candidates; ``None`` if nothing is drawn.
        num_nodes: number of nodes of the type.
        device: where kernels read them.
    """

    def __init__(self, table: NegativeTable | None, num_nodes: int, device: torch.device) -> None:
        self.table = table
        self.sorted = table is not None and table.node is not None
        self.weighted = table is not None and table.cumw is not None
        columns = () if table is None else (table.node, table.time, table.cumw, table.last_positive)
        self._columns = [None if column is None else torch.from_numpy(column).to(device) for column in columns]
        addresses = [0 if column is None else column.data_ptr() for column in self._columns] or [0] * 4
        self.about = [*addresses, num_nodes, 0 if table is None else table.first_positive]


class Layout:
    """Layout of the endpoints of batches: a row for each node type of a batch, sources before destinations.

    Args:
        negatives: which negatives are drawn.
        joint: whether both ends have one type.
        num_pos: seed edges of each batch.
    """

    def __init__(self, negatives: NegativeSpec | None, num_pos: Sequence[int], *, joint: bool) -> None:
        amount = 0 if negatives is None else negatives.amount
        binary = negatives is not None and negatives.mode == "binary"
        self.triplet = negatives is not None and negatives.mode == "triplet"
        self.amount = int(amount) if self.triplet else 0
        self.joint = joint
        self.num_pos = num_pos
        self.num_neg = [math.ceil(n * amount) for n in num_pos]
        self.num_dst = [p + n for p, n in zip(num_pos, self.num_neg, strict=True)]
        self.num_src = self.num_dst if binary else num_pos
        pairs = zip(self.num_src, self.num_dst, strict=True)
        self.lengths = [s + d for s, d in pairs] if joint else [n for pair in pairs for n in pair]
        self.pitch = max(1, *self.lengths)

    def ends(self, b: int) -> tuple[int, int]:
        """Return the offsets of the sources and the destinations of batch ``b``, in rows of ``pitch``."""
        if self.joint:
            return b * self.pitch, b * self.pitch + self.num_src[b]
        return 2 * b * self.pitch, (2 * b + 1) * self.pitch

    def rows(self) -> list[tuple[int, int, int]]:
        """Return the table of rows, with `kernels.negatives.ROW_COLUMNS` columns."""
        table = []
        for r, length in enumerate(self.lengths):
            b, of_src = (r, False) if self.joint else (r // 2, r % 2 == 0)
            drawn = self.num_neg[b] if self.triplet and not of_src else 0
            table.append((length, length - drawn, self.num_pos[b]))
        return table


class Launch:
    """The memory of one launch.

    Args:
        layout: layout of the endpoints.
        requests: the batches; their CPU tensors are copied to the device in one copy.
        device: where kernels run.
        wide: whether endpoints are int64 instead of int32.
        disjoint: whether endpoints have their own times, and are not made unique.
        exclude: whether attempts can fail.
        kind: number of the edge type among those of a batch.
    """

    def __init__(
        self,
        layout: Layout,
        requests: Sequence[EdgeRequest],
        device: torch.device,
        *,
        wide: bool,
        disjoint: bool,
        exclude: bool,
        kind: int,
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
        num_failed = len(requests) * pitch if exclude else 1
        self.failed = torch.empty(num_failed, dtype=torch.int8, device=device)

        self._keep = [  # must outlive the launch; copies of the tensors of other GPUs
            [
                None if x is None else (x.to(device) if x.is_cuda else x).contiguous()
                for x in (r.src, r.all_dst(), r.time_max, r.time_min)
            ]
            for r in requests
        ]
        here = [x for tensors in self._keep for x in tensors if x is not None and not x.is_cuda]
        rows_at = _DESCRIPTOR + len(requests) * _BATCH
        state_at = rows_at + num_rows * _ROW
        arrays_at = state_at + _STATE_COUNTS + num_rows
        size = arrays_at + sum(x.numel() for x in here)
        staging = torch.empty(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        memory = torch.empty(size, dtype=torch.int64, device=device) if device.type == "cuda" else staging
        self.descriptor, self.state = memory, memory[state_at:arrays_at]

        written = (self.out, self.out_max, self.out_min, self.index, self.unique, self.failed, self.state)
        table = [*(x.data_ptr() for x in written), memory.data_ptr() + 8 * rows_at, pitch]
        at = arrays_at
        for b, (request, tensors) in enumerate(zip(requests, self._keep, strict=True)):
            addresses = []
            for x in tensors:
                if x is None:
                    addresses.append(0)
                elif x.is_cuda:
                    addresses.append(x.data_ptr())
                else:
                    addresses.append(memory.data_ptr() + 8 * at)
                    at += x.numel()
            key = [low_64_bits(part) for part in request.key]
            begin_src, begin_dst = layout.ends(b)
            local = layout.num_src[b] if layout.joint else 0
            table += [layout.num_pos[b], layout.num_neg[b], *addresses, *key, begin_src, begin_dst, local, kind]
        for row in layout.rows():
            table += row
        host: Ints = staging.numpy()
        host[:state_at] = table
        host[state_at:arrays_at] = 0
        if here:
            np.concatenate([x.numpy() for x in here], out=host[arrays_at:])
        if device.type == "cuda":
            memory.copy_(staging, non_blocking=True)
