"""Layers, and training steps with loading: eager and captured, with PyG's aggregation and with manyhop's.

Without a GPU, all runs eagerly on the CPU in smaller sizes, within about two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphSAGE, MessagePassing, SAGEConv

from benchmarks.common import MANYHOP, Contender, Timing, measure, opening, print_and_save, quartiles, table
from benchmarks.gpu.graphs import rmat
from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, accelerate, capture
from manyhop_pyg.batch.join import mark_sorted

CLASSES = 64
KEPT = 16  # batches of steps without loading


@dataclass(frozen=True, kw_only=True)
class Way:
    captured: bool = False
    compiled: bool = False
    accelerated: bool = False
    trims: bool = False
    """By ``accelerate``, which computes fewer rows than PyG by the counts of a batch."""
    kept: bool = False
    """On batches that are there already."""


WAYS: Final = {
    "eager": Way(),
    "eager, accelerate()": Way(accelerated=True),
    "torch.compile": Way(compiled=True),
    "capture()": Way(captured=True),
    "capture(), torch.compile": Way(captured=True, compiled=True),
    "capture(), accelerate()": Way(captured=True, accelerated=True),
    "capture(), accelerate(trim=True)": Way(captured=True, accelerated=True, trims=True),
    "the same without loading": Way(captured=True, accelerated=True, trims=True, kept=True),
}


@dataclass(frozen=True, kw_only=True)
class TrainingSize:
    num_nodes: int = 1 << 20
    num_edges: int = 1 << 24
    features: int = 128
    channels: int = 256
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    turn: int = 32
    """Steps of a turn; the first turn, which does not count, compiles and records."""


def steps(size: TrainingSize, device: torch.device) -> list[Contender]:
    graph = rmat(size.num_nodes, size.num_edges, device)
    col = torch.repeat_interleave(graph.colptr.diff())
    data = Data(
        x=torch.randn(size.num_nodes, size.features, device=device),
        y=torch.randint(0, CLASSES, (size.num_nodes,), device=device),
        edge_index=torch.stack([graph.row.long(), col]),
    )
    trained = []
    for name, way in WAYS.items():
        model: torch.nn.Module = GraphSAGE(size.features, size.channels, len(size.fanouts), CLASSES).to(device)
        if way.accelerated:
            accelerate(model, trim=way.trims)
        if way.compiled:
            backend = "inductor" if device.type == "cuda" else "eager"
            model = cast(torch.nn.Module, torch.compile(model, backend=backend))
        batches: Iterable[Any] = loader(size, data, device, "auto" if way.captured or way.compiled else None)
        if way.kept:
            batches = list(islice(batches, KEPT))
        run = Training(model, batches, captured=way.captured, trims=not way.trims)
        trained.append(Contender(workload="GraphSAGE", name=name, threads=1, run=run, turn=size.turn))
    copies = _Copy(loader(size, data, device, "auto"))
    return [*trained, Contender(workload="copy of a batch", name="capture()", threads=1, run=copies)]


def loader(size: TrainingSize, data: Data, device: torch.device, pad: Literal["auto"] | None) -> NeighborLoader:
    fanouts, batch_size = list(size.fanouts), size.batch_size
    return NeighborLoader(data, fanouts, batch_size=batch_size, shuffle=True, seed=0, device=device, pad=pad)


class _Copy:
    """What a replay does first: it copies the batch to where the graph reads it. Here it does nothing else."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batch = next(iter(batches))
        self._step = capture(lambda batch: None)
        self._edges = int(self._batch.num_edges)

    def __call__(self, num_batches: int) -> int:
        for _ in range(num_batches):
            self._step(self._batch)
        if self._batch.edge_mask.is_cuda:
            torch.cuda.synchronize()
        return self._edges * num_batches


class Training:
    """Steps of a model on the batches of a loader, from the first again after the last.

    Args:
        model: of layers of PyG's.
        batches: of a loader.
        captured: replay steps.
        trims: each layer computes only what the next ones need, by the counts per hop.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        batches: Iterable[Any],
        *,
        captured: bool,
        trims: bool,
    ) -> None:
        self.model, self._trims = model, trims
        self._optimizer = torch.optim.Adam(model.parameters())
        self._step = capture(self._train) if captured else self._train
        self._loader = batches
        self._batches = self._endless()

    def __call__(self, num_batches: int) -> int:
        """Train on some batches; returns how many edges they had."""
        edges = 0
        for _ in range(num_batches):
            batch = next(self._batches)
            self._step(batch)
            edges += batch.num_edges
        if batch.x.is_cuda:
            torch.cuda.synchronize()
        return edges

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def _train(self, batch: Any) -> Tensor:
        hops: dict[str, Any] = {}
        if self._trims:
            hops["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
            hops["num_sampled_edges_per_hop"] = batch.num_sampled_edges
        out = self.model(batch.x, batch.edge_index, **hops)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="none")
        loss = masked_mean(loss, batch.seed_mask) if "seed_mask" in batch else loss.mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        self._optimizer.step()
        return loss


PYG = "PyG"
PARTS = ("layers", "training")


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


_MIN_TURN = 0.05  # seconds

SIZES = {
    "cuda": (LayerSize(), TrainingSize()),
    "cpu": (
        LayerSize(num_dst=4500, num_src=11_300, num_edges=15_400),
        TrainingSize(
            num_nodes=1 << 16, num_edges=1 << 20, features=64, channels=64, fanouts=(10, 5), batch_size=256, turn=8
        ),
    ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=9)


def main(options: argparse.Namespace, argv: list[str]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layer, training = SIZES[device.type]
    lines = opening("Training steps", argv)
    if device.type == "cuda":
        lines.append(f"- GPU: {torch.cuda.get_device_name(device)}")
    tables: dict[str, tuple[str, Callable[[], Sequence[Contender]]]] = {
        "layers": (
            f"A layer, forward and backward: {layer.num_dst:,} destinations, {layer.num_src:,} sources, "
            f"{layer.num_edges:,} edges, {layer.channels} channels",
            partial(layers, layer, device),
        ),
        "training": (
            f"A training step with loading: R-MAT, {training.num_nodes:,} nodes, {training.num_edges:,} edges, "
            f"{training.features} features, {len(training.fanouts)} layers of {training.channels} channels, "
            f"{list(training.fanouts)}, batches of {training.batch_size}",
            partial(steps, training, device),
        ),
    }
    for part in options.only or PARTS:
        lines += _table(*tables[part], options.rounds)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print_and_save("\n".join(lines) + "\n", options.output, "step.md")


def _table(title: str, make: Callable[[], Sequence[Contender]], rounds: int) -> list[str]:
    timings = measure(make(), rounds, _MIN_TURN)
    return ["", f"## {title}", "", *table(("work", "of", "ms (quartiles)"), map(_row, timings))]


def _row(timing: Timing) -> tuple[str, ...]:
    return timing.workload, timing.name, quartiles(np.multiply(timing.seconds, 1e3), 3)
