"""Sampling alone, whole loaders and building on the CPU, beside PyG."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata

import numpy as np
import torch
import torch_geometric.typing

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
    measure,
    not_measured,
    opening,
    print_and_save,
    section,
)
from benchmarks.cpu_contenders import FEATURES, PYG_LIB, SEED_BATCHES, Mode, Task, builders, loaders, samplers
from manyhop.graph import HOMOGENEOUS_EDGE
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
    loader_batches=16, build_edges=15_000_000, build_rounds=7, memory=4 << 30,
)  # fmt: skip
QUICK = Size(
    name="cpu-quick", num_nodes=200_000, num_edges=3_000_000, sampling_rounds=3, min_turn_s=0.03, loader_rounds=3,
    loader_batches=2, build_edges=3_000_000, build_rounds=3, memory=2 << 30, batch_size=512,
)  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a minute: 200 000 nodes, 3 million edges, fewer rounds")
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="measure with 1 and with so many threads")
    parser.add_argument("--only", choices=(*WORKLOADS, BUILD), nargs="+", help="measure these workloads alone")
    parser.add_argument("--contents", choices=CONTENTS, nargs="+", help="measure whole loaders alone, of such data")
    parser.add_argument("--alone", action="store_true", help="measure manyhop alone")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    size = QUICK if options.quick else STANDARD
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
    absent: list[Absent] = []
    with_pyg_lib = torch_geometric.typing.WITH_PYG_LIB and not alone
    if not (with_pyg_lib or alone):
        url = f"https://data.pyg.org/whl/torch-{metadata.version('torch').partition('+')[0]}+cpu.html"
        absent.append(Absent(name=PYG_LIB, reason=f"get it by: pip install pyg-lib -f {url}"))
    pyg = None if alone else f"PyG, {PYG_LIB if with_pyg_lib else 'torch-sparse'}"
    tasks = _tasks(size)
    sections: dict[str, list[Timing]] = {}
    try:
        if size.sampling_rounds:
            found = [contender for task in tasks for contender in samplers(task, threads, with_pyg_lib)]
            sections["Sampling alone"] = measure(found, size.sampling_rounds, size.min_turn_s, progress=_show)
        for content in contents:
            timings = sections[f"Whole loader, {CONTENTS[content]}"] = []
            for task in tasks:
                typed = HOMOGENEOUS_EDGE not in task.graph.row
                if content in ("sorted", "unsorted") and (typed or task.mode != "uniform"):
                    continue
                found = loaders(task, size.loader_batches, content, threads, pyg, absent)
                timings += measure(found, size.loader_rounds, 0.0, progress=_show)
                gc.collect()  # PyG's loaders lie in reference cycles, and hold copies of the graph
        if build:
            title = f"Building the topology of {size.build_edges:,} edges (a batch is the graph)"
            found = builders(size.num_nodes, edge_list(size.num_nodes, size.build_edges), threads)
            sections[title] = measure(found, size.build_rounds, 0.0, progress=_show)
    except KeyboardInterrupt:  # what was measured is reported
        absent.append(Absent(name="the rest", reason="interrupted"))
    return {title: timings for title, timings in sections.items() if timings}, absent


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
