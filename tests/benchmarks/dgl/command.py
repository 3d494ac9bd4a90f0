"""``benchmarks dgl``: samplers and DataLoaders beside those of DGL, on a random power-law graph (R-MAT)."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import dgl
import torch
from dgl.dataloading import BlockSampler
from torch import Tensor

from benchmarks.common.machine import describe
from benchmarks.common.measure import MANYHOP, BatchRunner, Contender, Timing, measure
from benchmarks.common.openmp import in_dgl_threads
from benchmarks.common.plot import as_svg
from benchmarks.common.report import Record, Section, as_markdown, as_text
from benchmarks.dgl import gpu
from benchmarks.dgl.graphs import FANOUTS, FEATURES, ON_GPU, QUICK, STANDARD, Size, rmat
from manyhop_dgl import DataLoader, LaborSampler, NeighborSampler, as_edge_prediction_sampler

MakeSampler: TypeAlias = Callable[..., BlockSampler]
_MAIN = "NeighborSampler 15-10-5"
_BATCH = 1024
_MIN_TURN = 0.1  # seconds


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks dgl`` specify; print, save."""
    size = QUICK if options.quick else ON_GPU if options.gpu else STANDARD
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of DGL's loader about the affinity of its workers
        record = gpu.run(size, argv) if options.gpu else run(size, sorted({1, options.threads}), argv)
    print(as_text(record), end="")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        name = f"{size.name}-gpu" if options.gpu else size.name
        svg = options.output / f"{name}.svg"
        (options.output / f"{name}.md").write_text(as_markdown(record, svg.name))
        svg.write_text(as_svg(record))
    return 0


def run(size: Size, threads: list[int], argv: list[str]) -> Record:
    """Measure all with each of these numbers of threads."""
    header = describe(["dgl", *argv])
    torch.manual_seed(0)
    g = rmat(size.scale, size.num_edges)
    seeds = torch.randperm(g.num_nodes())[: _BATCH * size.batches]
    edges = torch.randperm(g.num_edges())[: _BATCH * size.batches]
    sections = [
        Section(
            title="Samplers alone: blocks",
            timings=_measure(
                size,
                _samplers(_MAIN, g, seeds, threads, NeighborSampler, dgl.dataloading.NeighborSampler)
                + _samplers("LaborSampler 15-10-5", g, seeds, threads, LaborSampler, dgl.dataloading.LaborSampler)
                + _samplers("edge prediction 15-10-5", g, edges, threads, _ours_for_edges, _theirs_for_edges),
            ),
        ),
        Section(title="Whole DataLoader, no features", timings=_measure(size, _loaders(g, seeds, threads, []))),
    ]
    g.ndata["feat"] = torch.rand(g.num_nodes(), FEATURES)
    sections.append(
        Section(
            title=f"Whole DataLoader, {FEATURES} float32 features per node",
            timings=_measure(size, _loaders(g, seeds, threads, ["feat"])),
        )
    )
    return Record(
        title=f"manyhop beside DGL: R-MAT, {g.num_nodes():,} nodes, {g.num_edges():,} edges, batches of {_BATCH:,}",
        header=header,
        sections=sections,
        absent=[],
        base_workload=_MAIN,
    )


def _measure(size: Size, contenders: list[Contender]) -> list[Timing]:
    return measure(contenders, size.rounds, _MIN_TURN)


def _samplers(
    workload: str, g: dgl.DGLGraph, items: Tensor, threads: list[int], ours: MakeSampler, theirs: MakeSampler
) -> list[Contender]:
    """Both samplers: ours on threads of which each samples batches of its own, DGL's with threads inside a batch."""
    found = []
    for n in threads:
        mine, other = _on_threads(n, g, items, ours(FANOUTS)), _in_turn(g, items, theirs(FANOUTS))
        found.append(Contender(workload=workload, name=MANYHOP, threads=n, run=mine))
        found.append(Contender(workload=workload, name="DGL", threads=n, run=in_dgl_threads(dgl, n, other)))
    return found


def _ours_for_edges(fanouts: list[int]) -> BlockSampler:
    return _for_edges(as_edge_prediction_sampler, NeighborSampler(fanouts))


def _theirs_for_edges(fanouts: list[int]) -> BlockSampler:
    return _for_edges(dgl.dataloading.as_edge_prediction_sampler, dgl.dataloading.NeighborSampler(fanouts))


def _for_edges(make: MakeSampler, sampler: BlockSampler) -> BlockSampler:
    return make(sampler, exclude="self", negative_sampler=dgl.dataloading.negative_sampler.Uniform(1))


def _in_turn(g: dgl.DGLGraph, items: Tensor, sampler: BlockSampler) -> BatchRunner:
    batches = torch.split(items, _BATCH)
    done = 0

    def run(num_batches: int) -> int:
        nonlocal done
        first, done = done, done + num_batches
        return sum(_num_edges(sampler.sample(g, batches[i % len(batches)].clone())) for i in range(first, done))

    return run


def _on_threads(n: int, g: dgl.DGLGraph, items: Tensor, sampler: BlockSampler) -> BatchRunner:
    runs = [_in_turn(g, items, sampler) for _ in range(n)]
    pool = ThreadPoolExecutor(n) if n > 1 else None

    def run(num_batches: int) -> int:
        if pool is None:
            return runs[0](num_batches)
        shares = [len(range(i, num_batches, n)) for i in range(n)]
        return sum(pool.map(lambda run, share: run(share), runs, shares))

    return run


def _loaders(g: dgl.DGLGraph, seeds: Tensor, threads: list[int], names: list[str]) -> list[Contender]:
    """Epochs of both loaders: ours with threads; DGL's in the process, with OpenMP's threads, and with workers."""
    found = []
    options: dict[str, Any] = {"batch_size": _BATCH, "shuffle": True}
    num_batches = len(seeds) // _BATCH
    alone = DataLoader(g, seeds, NeighborSampler(FANOUTS, prefetch_node_feats=names), num_workers=0, **options)
    run = _epoch(alone, names)
    found.append(Contender(workload=_MAIN, name="manyhop, num_workers=0", threads=1, run=run, turn=num_batches))
    for n in threads:
        ours = DataLoader(g, seeds, NeighborSampler(FANOUTS, prefetch_node_feats=names), num_workers=n, **options)
        sampler = dgl.dataloading.NeighborSampler(FANOUTS, prefetch_node_feats=names)
        theirs = dgl.dataloading.DataLoader(g, seeds, sampler, num_workers=0, **options)
        workers = dgl.dataloading.DataLoader(g, seeds, sampler, num_workers=n, persistent_workers=True, **options)
        for name, run in (
            (MANYHOP, _epoch(ours, names)),
            ("DGL", in_dgl_threads(dgl, n, _epoch(theirs, names))),
            ("DGL, workers", _epoch(workers, names)),
        ):
            found.append(Contender(workload=_MAIN, name=name, threads=n, run=run, turn=num_batches))
    return found


def _epoch(loader: Iterable[Any], names: list[str]) -> BatchRunner:
    def run(num_batches: int) -> int:
        edges = 0
        for batch in loader:
            edges += _num_edges(batch)
            for name in names:
                batch[-1][0].srcdata[name]
        return edges

    return run


def _num_edges(batch: Any) -> int:
    return sum(block.num_edges() for block in batch[-1])
