"""``benchmarks cpu``: the command."""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from benchmarks.common.graphs import BenchGraph, edge_list, heterogeneous, homogeneous
from benchmarks.common.machine import choose_for_pyg, describe, import_peers
from benchmarks.common.measure import Absent, Contender, Timing, measure
from benchmarks.common.plot import as_svg
from benchmarks.common.report import Record, Section, as_markdown, as_text
from benchmarks.cpu import build, dgl_peers, samplers
from benchmarks.cpu.tasks import LoaderTask, Task, make_task
from benchmarks.names import BUILD, WORKLOADS
from manyhop.errors import InputError
from manyhop.graph import NodeType
from manyhop.system.memory import require_memory

_FEATURES = 128


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the graphs are and how long it is measured."""

    name: str
    """Name of the files that are saved."""
    num_nodes: int
    num_edges: int
    sampling_rounds: int
    min_turn_s: float
    """Least seconds of a turn when only sampling is measured."""
    loader_rounds: int
    loader_batches: int
    """Batches of one turn of a whole loader."""
    build_edges: int
    """Edges of the list of which the topology is built."""
    build_rounds: int
    workloads: tuple[str, ...]
    memory: int
    """Bytes needed, about."""
    batch_size: int = 1024


STANDARD = Size(
    name="cpu",
    num_nodes=1_000_000,
    num_edges=15_000_000,
    sampling_rounds=15,
    min_turn_s=0.1,
    loader_rounds=7,
    loader_batches=8,
    build_edges=15_000_000,
    build_rounds=7,
    workloads=tuple(WORKLOADS),
    memory=4 << 30,
)
QUICK = Size(
    name="cpu-quick",
    num_nodes=200_000,
    num_edges=3_000_000,
    sampling_rounds=3,
    min_turn_s=0.03,
    loader_rounds=3,
    loader_batches=2,
    build_edges=3_000_000,
    build_rounds=3,
    workloads=tuple(WORKLOADS),
    memory=2 << 30,
    batch_size=512,
)
LARGE = Size(
    name="cpu-large",
    num_nodes=10_000_000,
    num_edges=150_000_000,
    sampling_rounds=9,
    min_turn_s=0.1,
    loader_rounds=5,
    loader_batches=4,
    build_edges=50_000_000,
    build_rounds=3,
    workloads=("15-10-5", "10-10"),
    memory=13 << 30,
)


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks cpu`` specify; print, save."""
    chosen = QUICK if options.quick else LARGE if options.large else STANDARD
    workloads = (*chosen.workloads, BUILD)
    if options.only is not None and options.only not in workloads:
        raise InputError(f"Expected --only {' or '.join(workloads)} with --large, got {options.only}.")
    workloads = workloads if options.only is None else (options.only,)
    record = run(chosen, workloads, options.threads, argv, progress=_show_progress)
    print(as_text(record), end="")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        markdown, svg = options.output / f"{chosen.name}.md", options.output / f"{chosen.name}.svg"
        markdown.write_text(as_markdown(record, svg.name))
        svg.write_text(as_svg(record))
        print(f"\nSaved {markdown} and {svg}")
    return 0


def run(
    size: Size,
    workloads: Sequence[str],
    threads: int,
    argv: list[str],
    *,
    progress: Callable[[str], None] = lambda message: None,
) -> Record:
    """Measure some workloads with 1 and with ``threads`` threads.

    Raises:
        CapacityError: the graphs do not fit in memory.
    """
    require_memory("This benchmark", size.memory, "Run it with --quick.")
    torch.set_num_threads(1)
    modules, absent = import_peers()
    choose_for_pyg(modules, absent)
    header = describe(["cpu", *argv])
    tasks = _make_tasks(size, [name for name in workloads if name != BUILD], progress)
    bench = _Bench(size, tasks, sorted({1, threads}), modules, absent, progress)
    sections = []
    if tasks:
        sections.append(Section(title="Sampling alone", timings=bench.sampling()))
    makers, missing = _loader_makers() if tasks else ([], [])
    absent += missing
    for num_features in (0, _FEATURES):
        what = f"{num_features} float32 features per node" if num_features else "no features"
        sections.append(Section(title=f"Whole loader, {what}", timings=bench.loaders(makers, num_features)))
    if BUILD in workloads:
        sections.append(
            Section(
                title=f"Building the topology of {size.build_edges:,} edges (a batch is the graph)",
                timings=bench.building(),
            )
        )
    progress("")
    return Record(
        title=f"manyhop on the CPU: {size.num_nodes:,} nodes, {size.num_edges:,} edges, batches of {size.batch_size:,}",
        header=header,
        sections=sections,
        absent=absent,
        base_workload=WORKLOADS["15-10-5"][0],
    )


LoaderMaker = Callable[[LoaderTask, list[int], Mapping[str, ModuleType]], tuple[list[Contender], list[Absent]]]


@dataclass
class _Bench:
    """Measures kind after kind of workload, and drops what it made for one before the next."""

    size: Size
    tasks: list[Task]
    threads: list[int]
    modules: Mapping[str, ModuleType]
    absent: list[Absent]
    progress: Callable[[str], None]

    def building(self) -> list[Timing]:
        """From an edge list to the topology."""
        self.progress("building: a graph")
        edges = edge_list(self.size.num_nodes, self.size.build_edges)
        found, missing = build.contenders(self.size.num_nodes, edges, self.threads)
        self.absent += missing
        return self._measure("building", found, self.size.build_rounds)

    def sampling(self) -> list[Timing]:
        """Sampling alone: all workloads take turns with each other, as their costs are compared too."""
        self.progress("sampling: first batches")
        found, missing = samplers.contenders(self.tasks, self.threads, self.modules)
        found_dgl, missing_dgl = dgl_peers.dgl_samplers(self.tasks, self.threads, self.modules)
        self.absent += missing + missing_dgl
        return self._measure("sampling", found + found_dgl, self.size.sampling_rounds)

    def loaders(self, makers: list[LoaderMaker], num_features: int) -> list[Timing]:
        """Whole loaders, workload by workload; 0: without features."""
        timings: list[Timing] = []
        graph: BenchGraph | None = None
        features: dict[NodeType, Tensor] | None = None
        for task in self.tasks:
            if num_features > 0 and task.graph is not graph:
                features = None  # frees the last graph's before the next ones are made
                features = {t: torch.rand(n, num_features) for t, n in task.graph.num_nodes.items()}
                graph = task.graph
            batches = self.size.loader_batches
            timings += self._whole(
                makers, LoaderTask(name=task.name, task=task, num_batches=batches, features=features)
            )
            gc.collect()  # PyG's loaders lie in reference cycles, and hold copies of the graph
        return timings

    def _whole(self, makers: list[LoaderMaker], task: LoaderTask) -> list[Timing]:
        what = f"loader {'without' if task.features is None else 'with'} features, {task.name}"
        self.progress(f"{what}: first batches")
        contenders = []
        for make in makers:
            found, missing = make(task, self.threads, self.modules)
            contenders += found
            self.absent += missing
        return self._measure(what, contenders, self.size.loader_rounds)

    def _measure(self, what: str, contenders: list[Contender], rounds: int) -> list[Timing]:
        return measure(contenders, rounds, self.size.min_turn_s, progress=lambda m: self.progress(f"{what}: {m}"))


def _make_tasks(size: Size, workloads: Sequence[str], progress: Callable[[str], None]) -> list[Task]:
    progress("making graphs")
    plain = hetero = None
    tasks = []
    for name in workloads:
        title, mode, fanout = WORKLOADS[name]
        if name == "hetero":
            hetero = hetero or heterogeneous(size.num_nodes, size.num_edges)
            graph = hetero
        else:
            attributes = any(w in workloads for w in ("weighted", "temporal"))
            plain = plain or homogeneous(size.num_nodes, size.num_edges, attributes=attributes)
            graph = plain
        tasks.append(make_task(title, graph, mode, fanout, size.batch_size))
    return tasks


def _loader_makers() -> tuple[list[LoaderMaker], list[Absent]]:
    """What makes whole loaders: PyG's and ours for PyG where PyG is installed, DGL's."""
    makers: list[LoaderMaker] = [dgl_peers.dgl_loaders]
    absent = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of PyG
            from benchmarks.cpu.pyg_loaders import loaders
        makers.insert(0, loaders)
    except ImportError as error:
        absent.append(Absent(name="Whole loaders for PyG", reason=str(error)))
    return makers, absent


def _show_progress(message: str) -> None:
    """One line on stderr that is written over and over, if someone is looking."""
    if sys.stderr.isatty():
        print(f"\r{message:<78}", end="" if message else "\r", file=sys.stderr, flush=True)
