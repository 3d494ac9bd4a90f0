"""Samplers and DataLoaders beside those of DGL, on the CPU."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import dgl
import torch
from torch import Tensor

import manyhop_dgl
from benchmarks.common import (
    EXPLANATION,
    MANYHOP,
    BatchRunner,
    Contender,
    measure,
    on_threads,
    opening,
    print_and_save,
    section,
)
from benchmarks.gpu import graphs

FEATURES = 128
FANOUTS = [5, 10, 15]  # of three layers, the input layer first
MAIN = "NeighborSampler 15-10-5"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured, of a graph of ``2 ** scale`` nodes."""

    name: str
    scale: int
    num_edges: int
    rounds: int
    batches: int
    """Batches of a loader's epoch."""
    batch_size: int = 1024
    min_turn_s: float = 0.1


STANDARD = Size(name="dgl", scale=20, num_edges=15_000_000, rounds=9, batches=32)
QUICK = Size(name="dgl-quick", scale=17, num_edges=1_500_000, rounds=3, batches=4)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a minute: 131 072 nodes, 1.5 million edges, fewer rounds")
    parser.add_argument("--threads", type=int, default=2, help="measure with 1 and so many threads")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    size = QUICK if options.quick else STANDARD
    lines = opening(f"manyhop beside DGL: R-MAT, {1 << size.scale:,} nodes, {size.num_edges:,} edges", argv)
    lines += ["", EXPLANATION, "", f"Batches of {size.batch_size:,}."]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of DGL's loader about the affinity of its workers
        sections = on_cpu(size, sorted({1, options.threads}))
    lines += [line for title, timings in sections.items() for line in section(title, timings)]
    print_and_save("\n".join(lines) + "\n", options.output, f"{size.name}.md")


def rmat(size: Size) -> dgl.DGLGraph:
    """Draw a ``DGLGraph`` by R-MAT, edges in random order. Nodes have features ``feat [128] float32``."""
    graph = graphs.rmat(1 << size.scale, size.num_edges, torch.device("cpu"))
    src, dst = graph.edge_index()[:, torch.randperm(size.num_edges)]
    g = dgl.graph((src, dst), num_nodes=graph.num_nodes)
    g.ndata["feat"] = torch.rand(g.num_nodes(), FEATURES)
    return g


def on_cpu(size: Size, threads: list[int]) -> dict[str, list[Any]]:
    """Measure samplers and DataLoaders: title -> timings."""
    torch.manual_seed(0)
    g = rmat(size)
    seeds, edges = (torch.randperm(n)[: size.batch_size * size.batches] for n in (g.num_nodes(), g.num_edges()))
    theirs, negative = dgl.dataloading, dgl.dataloading.negative_sampler.Uniform(1)

    def for_edges(module: Any) -> Callable[..., Any]:
        return lambda fanouts: module.as_edge_prediction_sampler(
            module.NeighborSampler(fanouts), exclude="self", negative_sampler=negative
        )

    samplers: list[Contender] = []
    for workload, items, pair in (
        (MAIN, seeds, (manyhop_dgl.NeighborSampler, theirs.NeighborSampler)),
        ("LaborSampler 15-10-5", seeds, (manyhop_dgl.LaborSampler, theirs.LaborSampler)),
        ("edge prediction 15-10-5", edges, (for_edges(manyhop_dgl), for_edges(theirs))),
    ):
        for n in threads:
            mine = on_threads([_batches(size, g, items, pair[0](FANOUTS)) for _ in range(n)])
            other = in_dgl_threads(n, on_threads([_batches(size, g, items, pair[1](FANOUTS))]))
            for name, run in ((MANYHOP, mine), ("DGL", other)):
                samplers.append(Contender(workload=workload, name=name, threads=n, run=run))
    sections = {"Samplers alone: blocks": measure(samplers, size.rounds, size.min_turn_s)}
    for names in ([], ["feat"]):
        what = f"{FEATURES} float32 features per node" if names else "no features"
        found = measure(_dataloaders(size, g, seeds, threads, names), size.rounds, size.min_turn_s)
        sections[f"Whole DataLoader, {what}"] = found
    return sections


def _batches(size: Size, g: dgl.DGLGraph, items: Tensor, sampler: Any) -> Callable[[int], int]:
    batches = torch.split(items, size.batch_size)
    return lambda i: _num_edges(sampler.sample(g, batches[i % len(batches)].clone()))


def _dataloaders(size: Size, g: dgl.DGLGraph, seeds: Tensor, threads: list[int], names: list[str]) -> list[Contender]:
    """Return epochs of both loaders: ours with threads; DGL's with OpenMP's threads, and with worker processes."""
    options: dict[str, Any] = {"batch_size": size.batch_size, "shuffle": True}
    ours = manyhop_dgl.NeighborSampler(FANOUTS, prefetch_node_feats=names)
    theirs = dgl.dataloading.NeighborSampler(FANOUTS, prefetch_node_feats=names)
    found = []
    for n in threads:
        loaders = {
            MANYHOP: manyhop_dgl.DataLoader(g, seeds, ours, num_workers=n if n > 1 else 0, **options),
            "DGL": dgl.dataloading.DataLoader(g, seeds, theirs, num_workers=0, **options),
            "DGL, workers": dgl.dataloading.DataLoader(
                g, seeds, theirs, num_workers=n, persistent_workers=True, **options
            ),
        }
        for name, loader in loaders.items():
            run = _epoch(loader, lambda batch: [batch[-1][0].srcdata[name] for name in names])
            run = in_dgl_threads(n, run) if name == "DGL" else run
            found.append(Contender(workload=MAIN, name=name, threads=n, run=run, turn=size.batches))
    return found


def in_dgl_threads(threads: int, run: BatchRunner) -> BatchRunner:
    """Return a runner during which DGL and torch have this many threads, and one afterwards."""

    def limited(num_batches: int) -> int:
        try:
            torch.set_num_threads(threads)
            dgl.utils.set_num_threads(threads)
            return run(num_batches)
        finally:
            torch.set_num_threads(1)
            dgl.utils.set_num_threads(1)

    return limited


def _epoch(loader: Iterable[Any], use: Callable[[Any], object]) -> BatchRunner:
    def run(num_batches: int) -> int:
        edges = 0
        for batch in loader:
            use(batch)
            edges += _num_edges(batch)
        return edges

    return run


def _num_edges(batch: Any) -> int:
    return sum(block.num_edges() for block in batch[-1])
