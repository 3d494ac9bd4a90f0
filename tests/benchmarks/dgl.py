"""Samplers and DataLoaders beside those of DGL; ``--gpu``: loaders that feed a GPU, DGL's layers beside PyG's."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import GATConv, SAGEConv
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GraphSAGE

import manyhop_dgl
import manyhop_pyg
from benchmarks.common import (
    EXPLANATION,
    MANYHOP,
    BatchRunner,
    Contender,
    by_workload,
    find,
    measure,
    opening,
    print_and_save,
    ratio,
    section,
    table,
)
from benchmarks.gpu import graphs
from manyhop.errors import InputError

CLASSES, FEATURES, HIDDEN, HEADS = 47, 128, 256, 4
FANOUTS = [5, 10, 15]  # of three layers, the input layer first
MAIN = "NeighborSampler 15-10-5"
DGLS, PYGS = "DGL's layers", "PyG's layers"
DATA = {"prefetch_node_feats": ["feat"], "prefetch_labels": ["label"]}


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
ON_GPU = replace(STANDARD, name="dgl-gpu", rounds=4)
QUICK = Size(name="dgl-quick", scale=17, num_edges=1_500_000, rounds=3, batches=4)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a minute: 131 072 nodes, 1.5 million edges, fewer rounds")
    parser.add_argument("--gpu", action="store_true", help="loaders that feed a GPU, and training steps there")
    parser.add_argument("--threads", type=int, default=2, help="measure with 1 and so many threads")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    if options.gpu and not torch.cuda.is_available():
        raise InputError("Expected a CUDA device for --gpu, found none. Leave --gpu out to measure the CPU.")
    size = QUICK if options.quick else ON_GPU if options.gpu else STANDARD
    lines = opening(f"manyhop beside DGL: R-MAT, {1 << size.scale:,} nodes, {size.num_edges:,} edges", argv)
    if options.gpu:
        lines.append(f"- GPU: {torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    lines += ["", EXPLANATION, "", f"Batches of {size.batch_size:,}."]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of DGL's loader about the affinity of its workers
        if options.gpu:
            lines += on_gpu(size)
        else:
            sections = on_cpu(size, sorted({1, options.threads}))
            lines += [line for title, timings in sections.items() for line in section(title, timings)]
    print_and_save("\n".join(lines) + "\n", options.output, f"{size.name}.md")


def rmat(size: Size, device: torch.device | str = "cpu") -> dgl.DGLGraph:
    """Draw a ``DGLGraph`` by R-MAT on a device, edges in random order.

    It is on the CPU. Nodes have features ``feat [128] float32`` and a label.
    """
    graph = graphs.rmat(1 << size.scale, size.num_edges, torch.device(device))
    src, dst = graph.edge_index().cpu()[:, torch.randperm(size.num_edges)]
    g = dgl.graph((src, dst), num_nodes=graph.num_nodes)
    g.ndata["feat"] = torch.rand(g.num_nodes(), FEATURES)
    g.ndata["label"] = torch.arange(g.num_nodes()) % CLASSES
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
            mine = _on_threads([_in_turn(size, g, items, pair[0](FANOUTS)) for _ in range(n)])
            other = in_dgl_threads(n, _in_turn(size, g, items, pair[1](FANOUTS)))
            for name, run in ((MANYHOP, mine), ("DGL", other)):
                samplers.append(Contender(workload=workload, name=name, threads=n, run=run))
    sections = {"Samplers alone: blocks": measure(samplers, size.rounds, size.min_turn_s)}
    for names in ([], ["feat"]):
        what = f"{FEATURES} float32 features per node" if names else "no features"
        found = measure(_dataloaders(size, g, seeds, threads, names), size.rounds, size.min_turn_s)
        sections[f"Whole DataLoader, {what}"] = found
    return sections


def _in_turn(size: Size, g: dgl.DGLGraph, items: Tensor, sampler: Any) -> BatchRunner:
    batches = torch.split(items, size.batch_size)
    done = 0

    def run(num_batches: int) -> int:
        nonlocal done
        first, done = done, done + num_batches
        return sum(_num_edges(sampler.sample(g, batches[i % len(batches)].clone())) for i in range(first, done))

    return run


def _on_threads(runs: list[BatchRunner]) -> BatchRunner:
    pool = ThreadPoolExecutor(len(runs))

    def run(num_batches: int) -> int:
        shares = [len(range(i, num_batches, len(runs))) for i in range(len(runs))]
        return sum(pool.map(lambda one, share: one(share), runs, shares))

    return runs[0] if len(runs) == 1 else run


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
            edges += batch.num_edges if isinstance(batch, Data) else _num_edges(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return edges

    return run


def _num_edges(batch: Any) -> int:
    return sum(block.num_edges() for block in batch[-1])


def on_gpu(size: Size, device: str = "cuda", workers: int = 8) -> list[str]:
    """Measure loaders that feed a GPU, and training steps there."""
    torch.manual_seed(0)
    g = rmat(size, device)
    seeds = torch.randperm(g.num_nodes())[: size.batch_size * size.batches]
    data = Data(x=g.ndata["feat"], y=g.ndata["label"], edge_index=torch.stack(g.edges()))
    options: dict[str, Any] = {"batch_size": size.batch_size, "shuffle": True, "device": torch.device(device)}
    steps = []
    for fanouts in ([10, 10], FANOUTS):
        n = len(fanouts)
        blocks = manyhop_dgl.DataLoader(g, seeds, manyhop_dgl.NeighborSampler(fanouts, **DATA), **options)
        batches = manyhop_pyg.NeighborLoader(data, fanouts[::-1], seeds, **options)
        gat = GAT(FEATURES, HIDDEN, n, CLASSES, heads=HEADS, add_self_loops=False, act="relu")
        for name, layers, model in (("SAGE", _sage(n), GraphSAGE(FEATURES, HIDDEN, n, CLASSES)), ("GAT", _gat(n), gat)):
            for by, loader, step in (
                (DGLS, blocks, _train(Layers(layers), device, _of_blocks)),
                (PYGS, batches, _train(model, device, _of_pyg)),
            ):
                workload, run = f"step of {name}, {n} x {HIDDEN}", _epoch(loader, step)
                steps.append(Contender(workload=workload, name=by, threads=1, run=run, turn=size.batches))
    timings = measure(steps, 2 * size.rounds, 0.0)
    rows = []
    for workload in by_workload(timings):
        ours, theirs = (find(timings, workload, name, 1) for name in (DGLS, PYGS))
        figures = f"{ours.ms_per_batch:.2f}", f"{theirs.ms_per_batch:.2f}", ratio(ours, theirs, per_edge=False)
        rows.append((workload, *figures))
    columns = "step", "DGL's layers, ms", "PyG's layers, ms", "DGL's time, PyG's = 1"
    lines = ["", "## Training on manyhop's loaders, loading included", "", *table(columns, rows)]
    theirs = dgl.dataloading.NeighborSampler(FANOUTS, **DATA)
    loaders = {
        MANYHOP: manyhop_dgl.DataLoader(g, seeds, manyhop_dgl.NeighborSampler(FANOUTS, **DATA), **options),
        "DGL": dgl.dataloading.DataLoader(g, seeds, theirs, num_workers=0, **options),
        f"DGL, {workers} workers": dgl.dataloading.DataLoader(
            g, seeds, theirs, num_workers=workers, persistent_workers=True, **options
        ),
    }
    epochs = [
        Contender(
            workload="loader",
            name=name,
            threads=1,
            run=_epoch(loader, lambda batch: batch[-1][0].srcdata["feat"]),
            turn=size.batches,
        )
        for name, loader in loaders.items()
    ]
    title = f"Whole DataLoader, {FEATURES} float32 features per node, up to blocks on the GPU"
    return lines + section(title, measure(epochs, size.rounds, 0.0))


class Layers(nn.Module):
    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, blocks: list[dgl.DGLGraph], h: Tensor) -> Tensor:
        last = len(self.layers) - 1
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, h)
            if h.dim() > 2:  # heads
                h = h.flatten(1) if i < last else h.mean(1)
            h = F.relu(h) if i < last else h
        return h


def _sage(num_layers: int) -> list[nn.Module]:
    sizes = [FEATURES, *[HIDDEN] * (num_layers - 1), CLASSES]
    return [SAGEConv(sizes[i], sizes[i + 1], "mean") for i in range(num_layers)]


def _gat(num_layers: int) -> list[nn.Module]:
    sizes = [FEATURES, *[HIDDEN] * (num_layers - 1)]
    outs = [*[HIDDEN // HEADS] * (num_layers - 1), CLASSES]
    return [GATConv(sizes[i], outs[i], HEADS, allow_zero_in_degree=True) for i in range(num_layers)]


def _of_blocks(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    blocks = batch[-1]
    return model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"]


def _of_pyg(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    hops = {f"num_sampled_{what}_per_hop": batch[f"num_sampled_{what}"] for what in ("nodes", "edges")}
    return model(batch.x, batch.edge_index, **hops)[: batch.batch_size], batch.y[: batch.batch_size]


def _train(
    model: nn.Module, device: torch.device | str, call: Callable[..., tuple[Tensor, Tensor]]
) -> Callable[[Any], Tensor]:
    """Return a step of training on a batch, which gives the loss; ``call``: outputs and labels of a batch."""
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=torch.device(device).type == "cuda" or None)

    def step(batch: Any) -> Tensor:
        loss = F.cross_entropy(*call(model, batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
