"""R-MAT graphs for ``benchmarks gpu``, made where they are used: on the GPU.

Every edge chooses one quarter of the adjacency matrix after the other, with the usual chances of 0.57, 0.19, 0.19 and
0.05; ids are then permuted, so that ids do not depend on degrees. All processes make the same graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from manyhop.graph import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, Graph

_CHUNK = 1 << 26


@dataclass(kw_only=True)
class GPUGraph:
    """A homogeneous graph in columns, in the memory of a GPU."""

    num_nodes: int

    colptr: Tensor
    """``[num_nodes + 1] int64``."""

    row: Tensor
    """``[num_edges] int32``."""

    def __post_init__(self) -> None:
        self.num_edges = self.row.numel()

    def move_to_host(self) -> None:
        """Leave the GPU's memory to those who have copies of their own there."""
        if self.row.is_cuda:
            self.row, self.colptr = self.row.cpu(), self.colptr.cpu()
            torch.cuda.empty_cache()

    @cached_property
    def engine(self) -> Graph:
        """The topology as manyhop's samplers take it, over the same memory."""
        csc = CSC(num_src=self.num_nodes, colptr=self.colptr, row=self.row)
        return Graph(num_nodes={HOMOGENEOUS_NODE: self.num_nodes}, csc={HOMOGENEOUS_EDGE: csc})

    def edge_index(self, begin: int = 0, end: int | None = None) -> Tensor:
        """``[2, end - begin] int64``: edges of some positions, as PyG and cuGraph take them."""
        end = self.num_edges if end is None else end
        both = torch.empty(2, end - begin, dtype=torch.int64, device=self.row.device)
        both[0] = self.row[begin:end]
        for at in range(begin, end, _CHUNK):
            position = torch.arange(at, min(at + _CHUNK, end), device=self.row.device)
            both[1, at - begin : at - begin + position.numel()] = (
                torch.searchsorted(self.colptr, position, right=True) - 1
            )
        return both


def rmat(num_nodes: int, num_edges: int, device: torch.device) -> GPUGraph:
    """A graph of so many nodes and edges, a function of these and of the kind of device."""
    colptr, row = _columns(num_nodes, num_edges, device)
    return GPUGraph(num_nodes=num_nodes, colptr=colptr, row=row)


def _columns(num_nodes: int, num_edges: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """``colptr [num_nodes + 1] int64`` and ``row [num_edges] int32``."""
    scale = max(1, (num_nodes - 1).bit_length())
    draw = torch.Generator(device).manual_seed(0)
    src = torch.empty(num_edges, dtype=torch.int32, device=device)
    dst = torch.empty(num_edges, dtype=torch.int32, device=device)
    spread = torch.randperm(1 << scale, device=device, generator=draw)
    id_of = (spread * num_nodes >> scale).to(torch.int32)  # some ids may fall together
    for begin in range(0, num_edges, _CHUNK):
        row = torch.zeros(min(_CHUNK, num_edges - begin), dtype=torch.int32, device=device)
        col = torch.zeros_like(row)
        for _ in range(scale):
            unit = torch.rand(row.numel(), device=device, generator=draw)
            row.mul_(2).add_(unit >= 0.76)
            col.mul_(2).add_(((unit >= 0.57) & (unit < 0.76)) | (unit >= 0.95))
        src[begin : begin + row.numel()] = id_of[row]
        dst[begin : begin + row.numel()] = id_of[col]
    colptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device=device)
    torch.cumsum(torch.bincount(dst, minlength=num_nodes), 0, out=colptr[1:])
    order = torch.sort(dst, stable=True).indices
    row = src[order]
    del order, src, dst
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return colptr, row


def draw_seeds(num_nodes: int, num_batches: int, batch_size: int, device: torch.device) -> Tensor:
    """``[num_batches, batch_size] int64``: seeds, distinct in each batch."""
    draw = torch.Generator(device).manual_seed(2)
    order = torch.randperm(num_nodes, device=device, generator=draw)
    times = -(-num_batches * batch_size // num_nodes)
    return order.repeat(times)[: num_batches * batch_size].view(num_batches, batch_size)


def draw_features(num_rows: int, width: int, dtype: torch.dtype, device: torch.device, first: int = 0) -> Tensor:
    """``[num_rows, width]``: rows ``first`` and following of a table; row i is ``i % 1009 / 1009`` throughout."""
    features = torch.empty(num_rows, width, dtype=dtype, device=device)
    step = max(1, _CHUNK // width)
    for begin in range(0, num_rows, step):
        rows = torch.arange(first + begin, first + min(begin + step, num_rows), device=device)
        features[begin : begin + step] = ((rows % 1009)[:, None] / 1009).to(dtype)
    return features


def draw_labels(num_nodes: int, num_classes: int, device: torch.device) -> Tensor:
    """``[num_nodes] int64`` in ``[0, num_classes)``."""
    return torch.arange(num_nodes, device=device) % num_classes
