"""Graphs of the size of Reddit with planted classes: epochs, and what is learnt in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from manyhop_bench.common.measure import Contender
from manyhop_bench.step.training import Training
from manyhop_pyg import NeighborLoader

EAGER, CAPTURED = "eager", "capture(), accelerate()"


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
    """Steps with loading."""
    data = planted(size, device)
    return [
        Contender(workload="planted classes", name=name, threads=1, run=_training(size, data, name))
        for name in (EAGER, CAPTURED)
    ]


def accuracies(
    size: PlantedSize, num_epochs: int, seeds: Sequence[int], device: torch.device
) -> dict[str, list[float]]:
    """Share of right predictions for nodes that were not trained on, by seed of the model."""
    data = planted(size, device)
    return {
        name: [_accuracy(size, data, _training(size, data, name, seed), num_epochs) for seed in seeds]
        for name in (EAGER, CAPTURED)
    }


def _training(size: PlantedSize, data: Data, name: str, seed: int = 0) -> Training:
    """A GraphSAGE as in PyG's example for Reddit."""
    torch.manual_seed(seed)
    model = GraphSAGE(size.features, size.channels, len(size.fanouts), size.classes, dropout=0.5).to(data.x.device)
    captured = name == CAPTURED
    batches = _loader(size, data, data.train_mask, seed, "auto" if captured else None)
    return Training(model, batches, captured=captured, accelerated=captured, trims=False, lr=0.01)


def _accuracy(size: PlantedSize, data: Data, training: Training, num_epochs: int) -> float:
    training.epochs(num_epochs)
    model, right = training.model.eval(), torch.zeros((), device=data.x.device)
    with torch.no_grad():
        for batch in _loader(size, data, ~data.train_mask, 1, None):
            right += (model(batch.x, batch.edge_index).argmax(1) == batch.y)[: batch.batch_size].sum()
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
