"""``benchmarks step``: what a training step takes, and a layer of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.common.measure import Contender, Timing, measure
from benchmarks.common.report import opening, table
from benchmarks.names import STEP_PARTS
from benchmarks.step.layers import LayerSize, layers
from benchmarks.step.planted import PlantedSize, accuracies, epochs, smaller
from benchmarks.step.training import TrainingSize, steps

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


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks step`` specify; print, save."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = SIZES[device.type]
    layer, training, classes = sizes.layer, sizes.training, sizes.planted
    lines = opening("Training steps", ["step", *argv])
    if device.type == "cuda":
        lines.append(f"- GPU: {torch.cuda.get_device_name(device)}")
    print(*lines, sep="\n")
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
    for part in options.only or STEP_PARTS:
        table = _accuracies(sizes, device) if part == "accuracy" else _table(*tables[part], options.rounds)
        print(*table, sep="\n", flush=True)
        lines += table
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "step.md").write_text("\n".join(lines) + "\n")
    return 0


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
