"""Graphs of the size of Reddit with planted classes: epochs, and what is learnt in them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.loader
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from manyhop.masks import masked_mean
from manyhop_bench.common.measure import MANYHOP, Absent, Contender
from manyhop_pyg import NeighborLoader, accelerate, capture

EAGER, CAPTURED = "eager", "capture(), accelerate()"
_WORKERS = 8


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


def epochs(size: PlantedSize, device: torch.device) -> list[Contender | Absent]:
    """Steps with loading, in PyG's way and in ours."""
    data = planted(size, device)
    found: list[Contender | Absent] = [
        Contender(workload="planted classes", name=f"{MANYHOP}, {name}", threads=1, run=Training(size, data, name))
        for name in (CAPTURED, EAGER)
    ]
    if not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE):
        return [*found, Absent(name="PyG", reason="its loader needs pyg-lib or torch-sparse")]
    pygs = Training(size, data, EAGER, loader=_pygs(size, data, device))
    return [*found, Contender(workload="planted classes", name=f"PyG, {_WORKERS} processes", threads=1, run=pygs)]


def accuracies(
    size: PlantedSize, num_epochs: int, seeds: Sequence[int], device: torch.device
) -> dict[str, list[float]]:
    """Share of right predictions for nodes that were not trained on, by seed of the model."""
    data = planted(size, device)
    return {
        name: [Training(size, data, name, seed=seed).accuracy(num_epochs) for seed in seeds]
        for name in (EAGER, CAPTURED)
    }


class Training:
    """A GraphSAGE of as many layers as there are hops."""

    def __init__(
        self, size: PlantedSize, data: Data, name: str, *, seed: int = 0, loader: Iterable[Any] | None = None
    ) -> None:
        torch.manual_seed(seed)
        self._size, self._data, self._device = size, data, data.x.device
        options: dict[str, Any] = {"pad": "auto"} if name == CAPTURED else {}
        self._loader = self._loader_of(data.train_mask, seed, **options) if loader is None else loader
        self._model = GraphSAGE(size.features, size.channels, len(size.fanouts), size.classes, dropout=0.5)
        self._model.to(self._device)
        if name == CAPTURED:
            accelerate(self._model)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.01)
        self._step = capture(self._train) if name == CAPTURED else self._train
        self._batches = self._endless()

    def __call__(self, num_batches: int) -> int:
        """Train on some batches."""
        for _ in range(num_batches):
            self._step(next(self._batches))
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return num_batches

    def accuracy(self, num_epochs: int) -> float:
        """Train, and evaluate."""
        self._model.train()
        for _ in range(num_epochs):
            for batch in self._loader:
                self._step(batch)
        self._model.eval()
        right = torch.zeros((), device=self._device)
        with torch.no_grad():
            for batch in self._loader_of(~self._data.train_mask, 1):
                right += (self._model(batch.x, batch.edge_index).argmax(1) == batch.y)[: batch.batch_size].sum()
        return float(right) / int((~self._data.train_mask).sum())

    def _loader_of(self, mask: Tensor, seed: int, **options: Any) -> NeighborLoader:
        size = self._size
        return NeighborLoader(
            self._data,
            list(size.fanouts),
            input_nodes=mask,
            batch_size=size.batch_size,
            shuffle=True,
            seed=seed,
            device=self._device,
            **options,
        )

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def _train(self, batch: Any) -> Tensor:
        out = self._model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="none")
        loss = masked_mean(loss, batch.seed_mask) if "seed_mask" in batch else loss.mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        self._optimizer.step()
        return loss


def _pygs(size: PlantedSize, data: Data, device: torch.device) -> Iterable[Any]:
    """PyG's loader, as its example for Reddit uses it: features stay on the GPU."""
    edges = Data(edge_index=data.edge_index.cpu(), num_nodes=size.num_nodes, n_id=torch.arange(size.num_nodes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        loader = torch_geometric.loader.NeighborLoader(
            edges,
            list(size.fanouts),
            input_nodes=data.train_mask.cpu(),
            batch_size=size.batch_size,
            shuffle=True,
            is_sorted=True,
            num_workers=_WORKERS if device.type == "cuda" else 0,
            persistent_workers=device.type == "cuda",
        )
    return _OnDevice(loader, data)


class _OnDevice:
    """Batches with their rows of features that are on the GPU."""

    def __init__(self, loader: Iterable[Any], data: Data) -> None:
        self._loader, self._data = loader, data

    def __iter__(self) -> Iterator[Any]:
        device = self._data.x.device
        for batch in self._loader:
            node = batch.n_id.to(device)
            batch.edge_index = batch.edge_index.to(device)
            batch.x, batch.y = self._data.x[node], self._data.y[node]
            yield batch


def smaller(size: PlantedSize) -> PlantedSize:
    """A graph on which many models are trained in seconds."""
    return replace(size, num_nodes=size.num_nodes // 8, num_edges=size.num_edges // 64, features=64, noise=4.0)
