"""Layers forward and backward, training steps with loading, eager and captured, and what accuracy they reach.

Without a GPU, all runs eagerly on the CPU in smaller sizes, within about two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphSAGE, MessagePassing, SAGEConv
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from benchmarks.common import MANYHOP, Contender, Timing, measure, opening, print_and_save, table
from benchmarks.gpu.graphs import rmat
from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, accelerate, capture
from manyhop_train.aggregation import mark_sorted

CLASSES = 64
KEPT = 16  # batches of steps without loading


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model is trained."""

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
    """What is trained."""

    num_nodes: int = 1 << 20
    num_edges: int = 1 << 24
    features: int = 128
    channels: int = 256
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    turn: int = 32
    """Steps of a turn; the first turn, which does not count, compiles and records."""


def steps(size: TrainingSize, device: torch.device) -> list[Contender]:
    """Steps with their loaders."""
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
    """Loader of all nodes."""
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
        lr: of Adam.
        tf32: products round their factors to TF32.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        batches: Iterable[Any],
        *,
        captured: bool,
        trims: bool,
        lr: float = 0.001,
        tf32: bool = False,
    ) -> None:
        self.model, self._trims, self._tf32 = model, trims, tf32
        self._optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self._step = capture(self._train) if captured else self._train
        self._loader = batches
        self._batches = self._endless()

    def __call__(self, num_batches: int) -> int:
        """Train on some batches; returns how many edges they had."""
        edges = 0
        torch.backends.cuda.matmul.allow_tf32 = self._tf32
        for _ in range(num_batches):
            batch = next(self._batches)
            self._step(batch)
            edges += batch.num_edges
        torch.backends.cuda.matmul.allow_tf32 = False
        if batch.x.is_cuda:
            torch.cuda.synchronize()
        return edges

    def epochs(self, number: int) -> None:
        """Train on all batches, several times."""
        for _ in range(number):
            for batch in self._loader:
                self._step(batch)

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
PARTS = ("layers", "training", "planted", "accuracy")


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


@dataclass(frozen=True, kw_only=True)
class PlantedWay:
    """How a model is trained."""

    pygs_loader: bool = False
    captured: bool = False
    accelerated: bool = False
    trims: bool = False
    tf32: bool = False


PLANTED_WAYS: Final = {
    "PyG's loader": PlantedWay(pygs_loader=True),
    "eager": PlantedWay(),
    "accelerate(trim=True)": PlantedWay(accelerated=True, trims=True),
    "capture(), accelerate()": PlantedWay(captured=True, accelerated=True),
    "capture(), accelerate(trim=True)": PlantedWay(captured=True, accelerated=True, trims=True),
    "capture(), accelerate(trim=True), TF32": PlantedWay(captured=True, accelerated=True, trims=True, tf32=True),
}
"""The first three are PyG's script, with one import changed, and with a second line."""
LEARNT: Final = ("eager", "accelerate(trim=True)", "capture(), accelerate()", "capture(), accelerate(trim=True)")


@dataclass(frozen=True, kw_only=True)
class PlantedSize:
    """A graph whose edges join nodes of one class more often than others, and what is trained on it."""

    num_nodes: int = 232_965
    num_edges: int = 114_615_892
    features: int = 602
    classes: int = 41
    channels: int = 256
    fanouts: tuple[int, ...] = (25, 10)
    batch_size: int = 1024
    noise: float = 6.0
    """Standard deviation of features within a class; between classes it is 1."""


def planted(size: PlantedSize, device: torch.device) -> Data:
    """A third of edges join nodes of one class, others any; degrees are skewed. Two thirds of nodes are trained on."""
    draw = torch.Generator(device).manual_seed(0)

    def rand(n: int) -> Tensor:
        return torch.rand(n, device=device, generator=draw)

    y = torch.randint(0, size.classes, (size.num_nodes,), device=device, generator=draw)
    col = (rand(size.num_edges).square() * size.num_nodes).long().sort().values
    by_class, counts = y.argsort(), torch.bincount(y, minlength=size.classes)
    first, own = counts.cumsum(0) - counts, y[col]
    row = by_class[first[own] + (rand(size.num_edges) * counts[own]).long()]
    row = torch.where(rand(size.num_edges) < 1 / 3, row, (rand(size.num_edges) * size.num_nodes).long())
    centres = torch.randn(size.classes, size.features, device=device, generator=draw)
    x = torch.randn(size.num_nodes, size.features, device=device, generator=draw)
    train = rand(size.num_nodes) < 2 / 3
    return Data(x=centres[y] + size.noise * x, y=y, edge_index=torch.stack([row, col]), train_mask=train)


def epochs(size: PlantedSize, device: torch.device) -> list[Contender]:
    """Steps with loading; PyG's loader takes part where it can sample."""
    data = planted(size, device)
    return [
        Contender(workload="planted classes", name=name, threads=1, run=_training(size, data, way))
        for name, way in PLANTED_WAYS.items()
        if WITH_PYG_LIB or WITH_TORCH_SPARSE or not way.pygs_loader
    ]


def accuracies(
    size: PlantedSize, num_epochs: int, seeds: Sequence[int], device: torch.device
) -> dict[str, list[float]]:
    """Share of right predictions for nodes that were not trained on, by seed of the model."""
    data = planted(size, device)
    return {
        name: [_accuracy(size, data, _training(size, data, PLANTED_WAYS[name], seed), num_epochs) for seed in seeds]
        for name in LEARNT
    }


def _training(size: PlantedSize, data: Data, way: PlantedWay, seed: int = 0) -> Training:
    """A GraphSAGE as in PyG's example for Reddit, without the counts per hop."""
    torch.manual_seed(seed)
    model = GraphSAGE(size.features, size.channels, len(size.fanouts), size.classes, dropout=0.5).to(data.x.device)
    if way.accelerated:
        accelerate(model, trim=way.trims)
    batches: Iterable[Any]
    if way.pygs_loader:
        batches = _PyGsLoader(size, data)
    else:
        batches = _loader(size, data, data.train_mask, seed, "auto" if way.captured else None)
    return Training(model, batches, captured=way.captured, trims=False, lr=0.01, tf32=way.tf32)


class _PyGsLoader:
    """PyG's loader as its example uses it: edges on the CPU, features and classes on the device."""

    def __init__(self, size: PlantedSize, data: Data) -> None:
        self._device = data.x.device
        edges = data.edge_index.cpu()
        self._loader = PyGNeighborLoader(
            Data(x=data.x, y=data.y, edge_index=edges),
            list(size.fanouts),
            input_nodes=data.train_mask.cpu(),
            batch_size=size.batch_size,
            shuffle=True,
            num_workers=6 if data.x.is_cuda else 0,
            persistent_workers=data.x.is_cuda,
        )

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            batch.edge_index = batch.edge_index.to(self._device)
            yield batch


def _accuracy(size: PlantedSize, data: Data, training: Training, num_epochs: int) -> float:
    training.epochs(num_epochs)
    model, right = training.model.eval(), torch.zeros((), device=data.x.device)
    with torch.no_grad():
        for batch in _loader(size, data, ~data.train_mask, 1, None):
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            right += (out.argmax(1) == batch.y[: batch.batch_size]).sum()
    return float(right) / int((~data.train_mask).sum())


def _loader(size: PlantedSize, data: Data, mask: Tensor, seed: int, pad: Literal["auto"] | None) -> NeighborLoader:
    return NeighborLoader(
        data,
        list(size.fanouts),
        input_nodes=mask,
        batch_size=size.batch_size,
        shuffle=True,
        seed=seed,
        device=data.x.device,
        pad=pad,
    )


def smaller(size: PlantedSize) -> PlantedSize:
    """A graph on which many models are trained in seconds."""
    return replace(size, num_nodes=size.num_nodes // 8, num_edges=size.num_edges // 64, features=64, noise=4.0)


EPOCHS = 3  # before accuracies
_MIN_TURN = 0.05  # seconds


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured."""

    layer: LayerSize
    training: TrainingSize
    planted: PlantedSize
    learnt: PlantedSize
    """For accuracies."""
    seeds: int
    """Models of each kind, for accuracies."""


_SMALL = PlantedSize(
    num_nodes=5000, num_edges=125_000, features=64, channels=64, fanouts=(10, 5), batch_size=128, noise=4.0
)
SIZES = {
    "cuda": Sizes(
        layer=LayerSize(), training=TrainingSize(), planted=PlantedSize(), learnt=smaller(PlantedSize()), seeds=5
    ),
    "cpu": Sizes(  # 73 s of a core of an EPYC
        layer=LayerSize(num_dst=4500, num_src=11_300, num_edges=15_400),
        training=TrainingSize(
            num_nodes=1 << 16, num_edges=1 << 20, features=64, channels=64, fanouts=(10, 5), batch_size=256, turn=8
        ),
        planted=_SMALL,
        learnt=_SMALL,
        seeds=2,
    ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=9)


def main(options: argparse.Namespace, argv: list[str]) -> None:
    """Measure what the arguments specify."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = SIZES[device.type]
    layer, training, classes = sizes.layer, sizes.training, sizes.planted
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
        "planted": (
            f"A training step with loading: planted classes, {classes.num_nodes:,} nodes, {classes.num_edges:,} edges, "
            f"{classes.features} features, {classes.channels} channels, {list(classes.fanouts)}, batches of "
            f"{classes.batch_size}",
            partial(epochs, classes, device),
        ),
    }
    for part in options.only or PARTS:
        table = _accuracies(sizes, device) if part == "accuracy" else _table(*tables[part], options.rounds)
        lines += table
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print_and_save("\n".join(lines) + "\n", options.output, "step.md")


def _table(title: str, make: Callable[[], Sequence[Contender]], rounds: int) -> list[str]:
    timings = measure(make(), rounds, _MIN_TURN)
    return ["", f"## {title}", "", *table(("work", "of", "ms (quartiles)"), map(_row, timings))]


def _accuracies(sizes: Sizes, device: torch.device) -> list[str]:
    size = sizes.learnt
    found = accuracies(size, EPOCHS, range(sizes.seeds), device)
    rows = [
        (name, f"{np.mean(values):.4f}", " ".join(f"{value:.4f}" for value in values)) for name, values in found.items()
    ]
    title = (
        f"Accuracy after {EPOCHS} epochs, planted classes, {size.num_nodes:,} nodes, {size.num_edges:,} edges, "
        f"{sizes.seeds} seeds"
    )
    return ["", f"## {title}", "", *table(("steps", "mean", "of each seed"), rows)]


def _row(timing: Timing) -> tuple[str, ...]:
    low, median, high = np.quantile(timing.seconds, [0.25, 0.5, 0.75]) * 1e3
    return timing.workload, timing.name, f"{median:.3f} ({low:.3f}-{high:.3f})"
