"""Graphs of the size of Reddit with planted classes: epochs, and what is learnt in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from benchmarks.common.measure import Contender
from benchmarks.step.training import Training
from manyhop_pyg import NeighborLoader, accelerate


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model is trained."""

    pygs_loader: bool = False
    captured: bool = False
    accelerated: bool = False
    trims: bool = False
    tf32: bool = False


WAYS: Final = {
    "PyG's loader": Way(pygs_loader=True),
    "eager": Way(),
    "accelerate(trim=True)": Way(accelerated=True, trims=True),
    "capture(), accelerate()": Way(captured=True, accelerated=True),
    "capture(), accelerate(trim=True)": Way(captured=True, accelerated=True, trims=True),
    "capture(), accelerate(trim=True), TF32": Way(captured=True, accelerated=True, trims=True, tf32=True),
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
        for name, way in WAYS.items()
        if WITH_PYG_LIB or WITH_TORCH_SPARSE or not way.pygs_loader
    ]


def accuracies(
    size: PlantedSize, num_epochs: int, seeds: Sequence[int], device: torch.device
) -> dict[str, list[float]]:
    """Share of right predictions for nodes that were not trained on, by seed of the model."""
    data = planted(size, device)
    return {
        name: [_accuracy(size, data, _training(size, data, WAYS[name], seed), num_epochs) for seed in seeds]
        for name in LEARNT
    }


def _training(size: PlantedSize, data: Data, way: Way, seed: int = 0) -> Training:
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
