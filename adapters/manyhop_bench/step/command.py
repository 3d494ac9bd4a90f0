"""``manyhop bench step``: what a training step takes, and a layer of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from manyhop_bench.common.machine import describe
from manyhop_bench.common.measure import Contender, Timing, measure
from manyhop_bench.names import STEP_PARTS
from manyhop_bench.step.layers import LayerSize, layers
from manyhop_bench.step.planted import PlantedSize, accuracies, epochs, smaller
from manyhop_bench.step.training import TrainingSize, steps

LAYER = LayerSize()
TRAINING = TrainingSize()
PLANTED = PlantedSize()
EPOCHS, SEEDS = 3, range(5)
_MIN_TURN = 0.05  # seconds


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``manyhop bench step`` specify; print, save."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    header = describe(["step", *argv])
    if device.type == "cuda":
        header.append(("GPU", torch.cuda.get_device_name(device)))
    lines = ["# Training steps", "", *(f"- {label}: {value}" for label, value in header)]
    print(*lines, sep="\n")
    tables: dict[str, tuple[str, Callable[[], Sequence[Contender]]]] = {
        "layers": (
            f"A layer, forward and backward: {LAYER.num_dst:,} destinations, {LAYER.num_src:,} sources, "
            f"{LAYER.num_edges:,} edges, {LAYER.channels} channels",
            partial(layers, LAYER, device),
        ),
        "training": (
            f"A training step with loading: R-MAT, {TRAINING.num_nodes:,} nodes, {TRAINING.num_edges:,} edges, "
            f"{TRAINING.features} features, {len(TRAINING.fanouts)} layers of {TRAINING.channels} channels, "
            f"{list(TRAINING.fanouts)}, batches of {TRAINING.batch_size}",
            partial(steps, TRAINING, device),
        ),
        "planted": (
            f"A training step with loading: planted classes, {PLANTED.num_nodes:,} nodes, {PLANTED.num_edges:,} edges, "
            f"{PLANTED.features} features, {PLANTED.channels} channels, {list(PLANTED.fanouts)}, batches of "
            f"{PLANTED.batch_size}",
            partial(epochs, PLANTED, device),
        ),
    }
    for part in options.only or STEP_PARTS:
        table = _accuracies(device) if part == "accuracy" else _table(*tables[part], options.rounds)
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
    return ["", f"## {title}", "", "| work | of | ms (quartiles) |", "|---|---|---|", *map(_row, timings)]


def _accuracies(device: torch.device) -> list[str]:
    size = smaller(PLANTED)
    found = accuracies(size, EPOCHS, SEEDS, device)
    rows = [
        f"| {name} | {np.mean(values):.4f} | {' '.join(f'{value:.4f}' for value in values)} |"
        for name, values in found.items()
    ]
    title = (
        f"Accuracy after {EPOCHS} epochs, planted classes, {size.num_nodes:,} nodes, {size.num_edges:,} edges, "
        f"{len(SEEDS)} seeds"
    )
    return ["", f"## {title}", "", "| steps | mean | of each seed |", "|---|---|---|", *rows]


def _row(timing: Timing) -> str:
    low, median, high = np.quantile(timing.seconds, [0.25, 0.5, 0.75]) * 1e3
    return f"| {timing.workload} | {timing.name} | {median:.3f} ({low:.3f}-{high:.3f}) |"
