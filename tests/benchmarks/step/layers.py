"""Layers on the edges of a sampled batch, forward and backward: PyG's, and with the engine's aggregation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, MessagePassing, SAGEConv

from benchmarks.common.measure import MANYHOP, Contender
from manyhop_pyg import accelerate
from manyhop_train.aggregation import mark_sorted

PYG = "PyG"


@dataclass(frozen=True, kw_only=True)
class LayerSize:
    """A layer of a batch: the second of [15, 10, 5] on a batch of 1024."""

    num_dst: int = 45_000
    num_src: int = 113_000
    num_edges: int = 154_000
    channels: int = 256
    heads: int = 4


def layers(size: LayerSize, device: torch.device) -> list[Contender]:
    """Both layers of each kind and precision, captured, where there is a GPU."""
    edge_index, per_head = _edges(size, device), size.channels // size.heads
    # Without self loops, whose number PyG counts on the host: its layer could not be captured.
    gcn: dict[str, Any] = {"out_channels": size.channels, "add_self_loops": False}
    attention: dict[str, Any] = {"heads": size.heads, "add_self_loops": False}
    found = []
    for name, make, dtype, tf32 in (
        ("SAGE layer, float32", partial(SAGEConv, out_channels=size.channels), torch.float32, False),
        ("SAGE layer, TF32 products", partial(SAGEConv, out_channels=size.channels), torch.float32, True),
        ("SAGE layer, bfloat16", partial(SAGEConv, out_channels=size.channels), torch.bfloat16, False),
        ("GCN layer of all nodes, float32", partial(GCNConv, **gcn), torch.float32, False),
        ("GAT layer, float32", partial(GATConv, out_channels=per_head, **attention), torch.float32, False),
        ("GATv2 layer, float32", partial(GATv2Conv, out_channels=per_head, **attention), torch.float32, False),
    ):
        x = torch.randn(size.num_src, size.channels, device=device, dtype=dtype, requires_grad=True)
        for contender in (MANYHOP, PYG):
            conv = make(size.channels).to(device, dtype)
            if contender == MANYHOP:
                accelerate(conv)
            run = _BothWays(conv, x, edge_index, size.num_dst, size.channels, tf32)
            found.append(Contender(workload=name, name=contender, threads=1, run=run))
    return found


def _edges(size: LayerSize, device: torch.device) -> Tensor:
    """Edges sorted by destination; all sources that are no destinations have one, some have hundreds."""
    draw = torch.Generator().manual_seed(0)
    new = torch.arange(size.num_dst, size.num_src)
    others = torch.rand(size.num_edges - new.numel(), generator=draw).pow(3) * size.num_src
    row = torch.cat([new, others.long()])[torch.randperm(size.num_edges, generator=draw)]
    col = torch.randint(0, size.num_dst, (size.num_edges,), generator=draw).sort().values
    return torch.stack([row, col]).to(device)


class _BothWays:
    """A layer forward and backward, from a CUDA graph where there is a GPU."""

    def __init__(
        self, conv: MessagePassing, x: Tensor, edge_index: Tensor, num_dst: int, channels: int, tf32: bool
    ) -> None:
        mark_sorted(edge_index)
        self._conv, self._x, self._edge_index, self._num_dst = conv, x, edge_index, num_dst
        self._whole = isinstance(conv, GCNConv)  # which takes sources and destinations as one tensor
        self._seed = torch.randn(x.size(0) if self._whole else num_dst, channels, device=x.device, dtype=x.dtype)
        self._replay = self._captured(tf32) if x.is_cuda else self._run

    def __call__(self, num_batches: int) -> int:
        for _ in range(num_batches):
            self._replay()
        if self._x.is_cuda:
            torch.cuda.synchronize(self._x.device)
        return num_batches

    def _run(self) -> None:
        self._x.grad = None
        self._conv.zero_grad()
        x = self._x if self._whole else (self._x, self._x[: self._num_dst])
        self._conv(x, self._edge_index).backward(self._seed)

    def _captured(self, tf32: bool) -> Callable[[], None]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        stream = torch.cuda.Stream(self._x.device)  # type: ignore[no-untyped-call]  # of torch
        stream.wait_stream(torch.cuda.current_stream(self._x.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._run()
        torch.backends.cuda.matmul.allow_tf32 = False
        return graph.replay
