"""``manyhop bench``: compares manyhop's loaders with installed ones on this machine."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from manyhop.errors import ManyhopError
from manyhop.files import open_graph, save_graph
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from manyhop.hints import pip_install
from manyhop_tools.cli.table import table

_GROUP = "manyhop.peers"  # entry points of the adapters, which create the loaders
_MANYHOP = "manyhop"

Epoch: TypeAlias = Callable[[], tuple[int, int]]
"""Loads one epoch; returns the numbers of batches and of sampled edges."""

MakeEpochs: TypeAlias = Callable[..., Mapping[str, Epoch | str]]
"""Makes, from a graph's folder, the epochs of a framework by name, ``"manyhop"`` first; a text: why one is missing.

Keywords: ``fanout``, ``batch_size``, ``batches`` (at most), ``threads`` (1: the caller's own), ``device``.
"""


def report(args: argparse.Namespace) -> Iterator[str]:
    """Measure the loaders for the arguments of ``manyhop bench``, and yield the lines of the report.

    Raises:
        ManyhopError: the adapters are not installed, or the folder holds no graph.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # loaders have their own threads
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.folder or _random_graph(Path(scratch) / "graph", args.nodes, args.edges, args.features)
            yield from _report(folder, args)
    finally:
        torch.set_num_threads(threads)


def _random_graph(folder: Path, num_nodes: int, num_edges: int, num_features: int) -> Path:
    """Write a random graph whose degrees follow a power law: ``r ** -0.6`` for the node of rank r."""
    draw = np.random.default_rng(0)
    node = draw.permutation(num_nodes)
    src, dst = (torch.from_numpy(node[(num_nodes * draw.random(num_edges) ** 2.5).astype(np.int64)]) for _ in range(2))
    x = torch.rand(num_nodes, num_features)
    save_graph(
        folder, {HOMOGENEOUS_NODE: num_nodes}, {HOMOGENEOUS_EDGE: (src, dst)},
        node_tensors={HOMOGENEOUS_NODE: {"x": x}}, homogeneous=True,
    )  # fmt: skip
    return folder


def _report(folder: Path, args: argparse.Namespace) -> Iterator[str]:
    graph = open_graph(folder)
    options = {name: getattr(args, name) for name in ("fanout", "batch_size", "batches", "threads")}
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    missing: list[str] = []
    rows: list[tuple[str, ...]] = []
    peers = 0
    points = entry_points(group=_GROUP)
    if not points:
        raise ManyhopError(
            f"Expected installed entry points of the group '{_GROUP}', found none. "
            f"Install manyhop again: {pip_install('pyg')}"
        )
    for point in points:
        try:
            make: MakeEpochs = point.load()
        except ImportError as error:
            missing.append(f"{point.name}: {error}: {pip_install(point.name)}")
            continue
        for device in devices:
            found = make(folder, device=device, **options)
            epochs = {name: epoch for name, epoch in found.items() if not isinstance(epoch, str)}
            missing += [f"{name}: {why}" for name, why in found.items() if isinstance(why, str)]
            peers += len(epochs.keys() - {_MANYHOP})
            rows += _rows(point.name, device, epochs, args.rounds)
    if not peers:
        yield "No peer is installed: manyhop is measured alone."
    nodes, edges = (sum(part.count for part in parts.values()) for parts in (graph.nodes, graph.edges))
    yield (
        f"{nodes:,} nodes, {edges:,} edges; batches of {args.batch_size:,} seeds, {args.fanout}; "
        f"{args.threads} thread{'s' if args.threads > 1 else ''} each. Medians of {args.rounds} rounds, with quartiles."
    )
    yield ""
    yield from table([("for", "device", "loader", "ms per batch", "M edges/s", "time per edge, manyhop = 1"), *rows])
    if missing:
        yield from ("", "Not measured", *(f"  {line}" for line in dict.fromkeys(missing)))


def _rows(framework: str, device: str, epochs: Mapping[str, Epoch], rounds: int) -> Iterator[tuple[str, ...]]:
    """Measure the loaders in turns. Ratios are per round, as the speed of a machine drifts."""
    for epoch in epochs.values():
        epoch()  # compiles, starts processes
    order = list(epochs)
    per_edge: dict[str, list[float]] = {name: [] for name in order}
    per_batch: dict[str, list[float]] = {name: [] for name in order}
    for number in range(rounds):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            began = time.perf_counter()
            batches, edges = epochs[name]()
            seconds = time.perf_counter() - began
            per_edge[name].append(seconds / max(edges, 1))
            per_batch[name].append(seconds / batches)
    for name in order:
        low, middle, high = np.quantile(np.divide(per_edge[name], per_edge[_MANYHOP]), (0.25, 0.5, 0.75))
        ratio = "" if name == _MANYHOP else f"{middle:.2f} ({low:.2f}-{high:.2f})"
        ms, speed = 1e3 * np.median(per_batch[name]), 1e-6 / np.median(per_edge[name])
        yield framework, device, name, f"{ms:.2f}", f"{speed:.2f}", ratio
