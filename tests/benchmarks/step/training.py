"""Training steps of a GraphSAGE with loading: eagerly and captured, with PyG's aggregation and with the engine's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from benchmarks.common.measure import Contender
from benchmarks.gpu.graphs import rmat
from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, accelerate, capture

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
