"""Sampling alone, whole loaders and building on the CPU, beside PyG (pyg-lib or torch-sparse), DGL and GraphBolt.

DGL and GraphBolt expand all nodes of a batch again at each hop and so sample more edges per batch than the others; the
tables compare times per edge. Their threads are OpenMP threads inside one batch: with worker processes both are slower.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from types import ModuleType

import numpy as np
import torch
import torch_geometric.loader
import torch_geometric.typing

import manyhop_dgl  # noqa: F401  # lets DGL be imported on this torch
from benchmarks.common import (
    EXPLANATION,
    MANYHOP,
    TIME_RANGE,
    Absent,
    BenchGraph,
    Timing,
    edge_list,
    heterogeneous,
    homogeneous,
    import_peers,
    measure,
    not_measured,
    opening,
    plot,
    print_and_save,
    section,
)
from benchmarks.cpu_contenders import FEATURES, PEERS, SEED_BATCHES, Mode, Task, builders, loaders, samplers
from manyhop.system.memory import require_memory

CONTENTS = {  # of the data of a whole loader
    "plain": "no features",
    "sorted": "two numbers per edge, edges sorted by destination",
    "unsorted": "two numbers per edge, edges in random order",
    "features": f"{FEATURES} float32 features per node",
}
WORKLOADS: Mapping[str, tuple[str, Mode, tuple[int, ...]]] = {
    "15-10-5": ("[15, 10, 5]", "uniform", (15, 10, 5)),
    "10-10": ("[10, 10]", "uniform", (10, 10)),
    "weighted": ("weighted [15, 10, 5]", "weighted", (15, 10, 5)),
    "disjoint": ("disjoint [15, 10]", "disjoint", (15, 10)),
    "temporal": ("temporal [15, 10]", "temporal", (15, 10)),
    "hetero": ("3 node types [10, 10]", "uniform", (10, 10)),
}
BUILD = "build"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the graphs are and how long it is measured."""

    name: str
    num_nodes: int
    num_edges: int
    sampling_rounds: int
    min_turn_s: float
    """Least seconds of a turn when only sampling is measured."""
    loader_rounds: int
    loader_batches: int
    """Batches of one turn of a whole loader."""
    build_edges: int
    build_rounds: int
    memory: int
    """Bytes needed, about."""
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    batch_size: int = 1024


STANDARD = Size(
    name="cpu", num_nodes=1_000_000, num_edges=15_000_000, sampling_rounds=15, min_turn_s=0.1, loader_rounds=7,
    loader_batches=8, build_edges=15_000_000, build_rounds=7, memory=4 << 30,
)  # fmt: skip
QUICK = Size(
    name="cpu-quick", num_nodes=200_000, num_edges=3_000_000, sampling_rounds=3, min_turn_s=0.03, loader_rounds=3,
    loader_batches=2, build_edges=3_000_000, build_rounds=3, memory=2 << 30, batch_size=512,
)  # fmt: skip
LARGE = Size(
    name="cpu-large", num_nodes=10_000_000, num_edges=150_000_000, sampling_rounds=9, min_turn_s=0.1, loader_rounds=5,
    loader_batches=4, build_edges=50_000_000, build_rounds=3, memory=13 << 30, workloads=("15-10-5", "10-10"),
)  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a minute: 200 000 nodes, 3 million edges, fewer rounds")
    size.add_argument("--large", action="store_true", help="10 million nodes, 150 million edges; needs 13 GiB")
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="measure with 1 and with so many threads")
    parser.add_argument("--only", choices=(*WORKLOADS, BUILD), nargs="+", help="measure these workloads alone")
    parser.add_argument("--contents", choices=CONTENTS, nargs="+", help="measure whole loaders alone, of such data")
    parser.add_argument("--alone", action="store_true", help="measure manyhop alone")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    size = QUICK if options.quick else LARGE if options.large else STANDARD
    if options.only:
        size = replace(size, workloads=tuple(name for name in options.only if name != BUILD))
    if options.contents:
        size = replace(size, sampling_rounds=0)
    sections, absent = run(
        size,
        sorted({1, *options.threads}),
        options.contents or list(CONTENTS),
        alone=options.alone,
        build=BUILD in (options.only or [BUILD]) and not options.contents,
    )
    lines = opening(f"manyhop on the CPU: {size.num_nodes:,} nodes, {size.num_edges:,} edges", argv)
    lines += ["", EXPLANATION, "", f"Batches of {size.batch_size:,}."]
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        plot(sections, options.output / f"{size.name}.svg")
        lines += ["", f"![Sampled edges per second]({size.name}.svg)"]
    lines += [line for title, timings in sections.items() for line in section(title, timings)]
    lines += _costs(sections.get("Sampling alone", [])) + not_measured(absent)
    print_and_save("\n".join(lines) + "\n", options.output, f"{size.name}.md")


def _costs(timings: list[Timing]) -> list[str]:
    mine = [t for t in timings if (t.name, t.threads) == (MANYHOP, 1)]
    costs = [f"{t.workload} {float(np.median(np.divide(t.seconds, t.edges))) * 1e9:.1f}" for t in mine]
    return ["", f"Sampling by manyhop on one thread, ns per edge: {'; '.join(costs)}."] if costs else []


def run(
    size: Size, threads: list[int], contents: list[str], *, alone: bool, build: bool
) -> tuple[dict[str, list[Timing]], list[Absent]]:
    """Measure a size: title -> timings, and who is missing."""
    require_memory("This benchmark", size.memory, "Run it with --quick.")
    torch.set_num_threads(1)
    modules, absent = import_peers({} if alone else PEERS)
    if not alone:
        choose_for_pyg(modules, absent)
    tasks = _tasks(size)
    sections: dict[str, list[Timing]] = {}
    if size.sampling_rounds:
        found = []
        for task in tasks:
            found += samplers(task, threads, modules, absent)
        sections["Sampling alone"] = measure(found, size.sampling_rounds, size.min_turn_s, progress=_show)
    for content in contents:
        timings = sections[f"Whole loader, {CONTENTS[content]}"] = []
        for task in tasks:
            if content in ("sorted", "unsorted") and not task.is_plain:
                continue
            found = loaders(task, size.loader_batches, content, threads, modules, absent)
            timings += measure(found, size.loader_rounds, 0.0, progress=_show)
            gc.collect()  # PyG's loaders lie in reference cycles, and hold copies of the graph
    if build:
        title = f"Building the topology of {size.build_edges:,} edges (a batch is the graph)"
        found = builders(size.num_nodes, edge_list(size.num_nodes, size.build_edges), threads)
        sections[title] = measure(found, size.build_rounds, 0.0, progress=_show)
    return sections, absent


def choose_for_pyg(modules: dict[str, ModuleType], absent: list[Absent]) -> None:
    """Leave PyG one library to sample with: pyg-lib where PyG finds it, otherwise torch-sparse."""
    if not torch_geometric.typing.WITH_PYG_LIB and modules.pop("pyg-lib", None) is not None:
        absent.append(Absent(name="pyg-lib", reason="PyG does not use this build"))
    if "pyg-lib" in modules:
        if modules.pop("torch-sparse", None) is not None:
            absent.append(Absent(name="torch-sparse", reason="PyG prefers pyg-lib"))
        return
    url = f"https://data.pyg.org/whl/torch-{metadata.version('torch').partition('+')[0]}+cpu.html"
    absent.append(Absent(name="pyg-lib", reason=f"get it by: pip install pyg-lib -f {url}"))


def _show(message: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{message:<40}", end="", file=sys.stderr, flush=True)


def _tasks(size: Size) -> list[Task]:
    graphs: dict[bool, BenchGraph] = {}
    tasks = []
    for name in size.workloads:
        title, mode, fanout = WORKLOADS[name]
        typed = name == "hetero"
        if typed not in graphs:
            with_attributes = bool({"weighted", "temporal"} & set(size.workloads))
            graphs[typed] = (
                heterogeneous(size.num_nodes, size.num_edges)
                if typed
                else homogeneous(size.num_nodes, size.num_edges, attributes=with_attributes)
            )
        graph, rng = graphs[typed], np.random.default_rng(2)
        num_nodes = graph.num_nodes[graph.seed_type]
        seeds = np.stack([rng.choice(num_nodes, size.batch_size, replace=False) for _ in range(SEED_BATCHES)])
        times = torch.from_numpy(rng.integers(0, TIME_RANGE, seeds.shape)) if mode == "temporal" else None
        tasks.append(
            Task(name=title, graph=graph, mode=mode, fanout=fanout, seeds=torch.from_numpy(seeds), times=times)
        )
    return tasks
