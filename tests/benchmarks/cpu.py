"""Sampling alone, whole loaders and building on the CPU, beside PyG (pyg-lib or torch-sparse), DGL and GraphBolt.

DGL and GraphBolt expand all nodes of a batch again at each hop and so sample more edges per batch than the others; the
tables compare times per edge. Their threads are OpenMP threads inside one batch: with worker processes both are slower.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch_geometric.loader
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.utils import to_csc

import manyhop_dgl  # noqa: F401  # lets DGL be imported on this torch
from benchmarks.common import (
    EXPLANATION,
    MANYHOP,
    TIME_RANGE,
    Absent,
    BatchRunner,
    BenchGraph,
    Contender,
    Timing,
    edge_list,
    heterogeneous,
    homogeneous,
    import_peers,
    in_dgl_threads,
    measure,
    not_measured,
    opening,
    plot,
    print_and_save,
    section,
)
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, EdgeType, NodeType, build_graph
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop.system.memory import require_memory
from manyhop_pyg import NeighborLoader

T = TypeVar("T")
Mode = Literal["uniform", "weighted", "disjoint", "temporal"]
SampleBatch = Callable[[int], int]
"""Samples the batch of a number and returns how many edges it has."""
FEATURES = 128
CONTENTS = {  # of the data of a whole loader
    "plain": "no features",
    "sorted": "two numbers per edge, edges sorted by destination",
    "unsorted": "two numbers per edge, edges in random order",
    "features": f"{FEATURES} float32 features per node",
}
SEED_BATCHES = 32
PEERS = {  # what has to be in a module: manyhop_dgl lets DGL do without GraphBolt
    "pyg-lib": "pyg_lib",
    "torch-sparse": "torch_sparse",
    "DGL": "dgl",
    "GraphBolt": "dgl.graphbolt:ItemSampler",
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


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is sampled, without replacement. Batch i has the seeds of index ``i % len(seeds)``."""

    name: str
    graph: BenchGraph
    mode: Mode
    fanout: tuple[int, ...]
    seeds: Tensor
    """``[num_batches, batch_size] int64`` nodes of the graph's seed type, distinct in each batch."""
    times: Tensor | None
    """``[num_batches, batch_size] int64``, for ``temporal``."""

    @property
    def is_disjoint(self) -> bool:
        return self.mode in ("disjoint", "temporal")

    @property
    def is_plain(self) -> bool:
        """Whether DGL and GraphBolt are measured at it."""
        return self.mode == "uniform" and HOMOGENEOUS_EDGE in self.graph.row

    @property
    def csc(self) -> tuple[Tensor, Tensor]:
        """Columns and sources, in the dtype that the peers know."""
        return self.graph.colptr[HOMOGENEOUS_EDGE], self.graph.edge_index[HOMOGENEOUS_EDGE][0]


def arguments(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a minute: 200 000 nodes, 3 million edges, fewer rounds")
    size.add_argument("--large", action="store_true", help="10 million nodes, 150 million edges; needs 13 GiB")
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="measure with 1 and with so many threads")
    parser.add_argument("--only", choices=(*WORKLOADS, BUILD), help="measure this workload alone")
    parser.add_argument("--contents", choices=CONTENTS, nargs="+", help="measure whole loaders alone, of such data")
    parser.add_argument("--alone", action="store_true", help="measure manyhop alone")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    size = QUICK if options.quick else LARGE if options.large else STANDARD
    if options.only:
        size = replace(size, workloads=(options.only,) if options.only != BUILD else ())
    if options.contents:
        size = replace(size, sampling_rounds=0)
    sections, absent = run(
        size,
        sorted({1, *options.threads}),
        options.contents or list(CONTENTS),
        alone=options.alone,
        build=options.only in (None, BUILD) and not options.contents,
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
            found += _samplers(task, threads, modules, absent)
        sections["Sampling alone"] = measure(found, size.sampling_rounds, size.min_turn_s, progress=_show)
    for content in contents:
        timings = sections[f"Whole loader, {CONTENTS[content]}"] = []
        for task in tasks:
            if content in ("sorted", "unsorted") and not task.is_plain:
                continue
            found = _loaders(task, size.loader_batches, content, threads, modules, absent)
            timings += measure(found, size.loader_rounds, 0.0, progress=_show)
            gc.collect()  # PyG's loaders lie in reference cycles, and hold copies of the graph
    if build:
        title = f"Building the topology of {size.build_edges:,} edges (a batch is the graph)"
        found = _builders(size.num_nodes, edge_list(size.num_nodes, size.build_edges), threads)
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


def _samplers(
    task: Task, threads: list[int], modules: Mapping[str, ModuleType], absent: list[Absent]
) -> list[Contender]:
    """Return manyhop, the sampler under PyG's loaders, and DGL's, at a task; each thread samples batches of its own."""
    makers = {MANYHOP: _manyhop, "pyg-lib": _pyg_lib, "torch-sparse": _torch_sparse}
    found = []
    for name, make in makers.items():
        if name not in (MANYHOP, *modules):
            continue
        try:
            for n in threads:
                run = _on_threads([make(task) for _ in range(n)])
                found.append(Contender(workload=task.name, name=name, threads=n, run=run))
        except NotImplementedError as error:
            absent.append(Absent(name=name, workload=task.name, reason=str(error)))
    if "DGL" in modules and task.is_plain:
        for n in threads:
            run = in_dgl_threads(modules["DGL"], n, _on_threads([_dgl(modules["DGL"], task)]))
            found.append(Contender(workload=task.name, name="DGL", threads=n, run=run))
    return found


def _on_threads(samplers: list[SampleBatch]) -> BatchRunner:
    done = 0
    pool = ThreadPoolExecutor(len(samplers)) if len(samplers) > 1 else None

    def run(num_batches: int) -> int:
        nonlocal done
        first, done = done, done + num_batches

        def share(thread: int) -> int:
            sample = samplers[thread]
            return sum(sample(i) for i in range(first + thread, first + num_batches, len(samplers)))

        return share(0) if pool is None else sum(pool.map(share, range(len(samplers))))

    return run


def _manyhop(task: Task) -> SampleBatch:
    graph, seed_type = task.graph.engine, task.graph.seed_type
    spec = NeighborSpec(
        fanouts=dict.fromkeys(graph.edge_types, task.fanout),
        weighted=task.mode == "weighted",
        temporal="uniform" if task.mode == "temporal" else None,
        disjoint=task.is_disjoint,
    )
    sampler = CPUSampler(graph, spec)

    def sample(batch: int) -> int:
        at = batch % len(task.seeds)
        times = None if task.times is None else {seed_type: task.times[at]}
        request = NodeRequest(key=BatchKey(0, 0, batch), seeds={seed_type: task.seeds[at]}, time_max=times)
        return sum(row.numel() for row in sampler.sample(request).row.values())

    return sample


def _torch_sparse(task: Task) -> SampleBatch:
    if task.mode != "uniform":
        raise NotImplementedError(f"torch-sparse has no {task.mode} sampling for PyG's NeighborLoader")
    graph, fanout, ops = task.graph, list(task.fanout), torch.ops.torch_sparse
    if HOMOGENEOUS_EDGE in graph.row:
        tables = task.csc
        return lambda b: int(ops.neighbor_sample(*tables, task.seeds[b % SEED_BATCHES], fanout, False, True)[1].numel())
    row = {t: edge_index[0] for t, edge_index in graph.edge_index.items()}
    colptrs, rows, fanouts = (_by_relation(d) for d in (graph.colptr, row, dict.fromkeys(row, fanout)))
    types = (list(graph.num_nodes), list(graph.row))

    def sample(batch: int) -> int:
        seeds = {graph.seed_type: task.seeds[batch % SEED_BATCHES]}
        out = ops.hetero_neighbor_sample(*types, colptrs, rows, seeds, fanouts, len(fanout), False, True)
        return sum(r.numel() for r in out[1].values())

    return sample


def _pyg_lib(task: Task) -> SampleBatch:
    sampling = importlib.import_module("pyg_lib.sampler")
    graph, fanout = task.graph, list(task.fanout)
    options: dict[str, object] = {"csc": True, "disjoint": task.is_disjoint}
    options |= {"edge_weight": graph.weight} if task.mode == "weighted" else {}
    options |= {"edge_time": graph.time} if task.mode == "temporal" else {}

    def sample(batch: int) -> int:
        at = batch % SEED_BATCHES
        times = None if task.times is None else task.times[at]
        return int(sampling.neighbor_sample(*task.csc, task.seeds[at], fanout, seed_time=times, **options)[0].numel())

    def sample_hetero(batch: int) -> int:
        row = {t: edge_index[0] for t, edge_index in graph.edge_index.items()}
        seeds = {graph.seed_type: task.seeds[batch % SEED_BATCHES]}
        out = sampling.hetero_neighbor_sample(graph.colptr, row, seeds, dict.fromkeys(row, fanout), csc=True)
        return sum(r.numel() for r in out[0].values())

    return sample if HOMOGENEOUS_EDGE in graph.row else sample_hetero


def _by_relation(by_type: Mapping[EdgeType, T]) -> dict[str, T]:
    return {"__".join(t): value for t, value in by_type.items()}


def _dgl(dgl: ModuleType, task: Task) -> SampleBatch:
    graph = dgl.graph(("csc", (*task.csc, torch.empty(0, dtype=torch.int64))))
    sampler = dgl.dataloading.NeighborSampler(list(task.fanout)[::-1])  # outermost hop first

    def sample(batch: int) -> int:
        blocks = sampler.sample_blocks(graph, task.seeds[batch % SEED_BATCHES])[2]
        return sum(block.num_edges() for block in blocks)

    return sample


def _loaders(
    task: Task,
    batches: int,
    content: str,
    threads: list[int],
    modules: Mapping[str, ModuleType],
    absent: list[Absent],
) -> list[Contender]:
    """Return whole loaders over short epochs: one thread is ``num_workers=0``, N are threads or processes."""
    of_nodes = task.graph.num_nodes.items()
    features = {t: torch.rand(n, FEATURES) for t, n in of_nodes} if content == "features" else None
    data, inputs = _data(task, features), task.seeds[:batches].flatten()
    if content in ("sorted", "unsorted"):
        data.w, data.t = torch.rand(data.num_edges), torch.arange(data.num_edges)
    if content == "unsorted":
        data.edge_index = data.edge_index[:, torch.randperm(data.num_edges)]
    found = []
    classes: dict[str, Callable[..., Any]] = {MANYHOP: NeighborLoader}
    classes |= {f"PyG, {n}": torch_geometric.loader.NeighborLoader for n in PEERS if n in modules and "-" in n}
    for name, make in classes.items():
        try:
            made = [_pyg_loader(make, data, task, inputs, n, is_sorted=content != "unsorted") for n in threads]
            next(iter(made[0]))  # PyG with torch-sparse knows only now what it cannot sample
        except (ImportError, ValueError) as error:
            if name == MANYHOP:
                raise
            absent.append(Absent(name=name, workload=task.name, reason=str(error)))
            continue
        for n, loader in zip(threads, made, strict=True):
            run = _epoch(loader, lambda batch: sum(int(s.edge_index.shape[1]) for s in batch.edge_stores))
            closing = _closer(loader)
            found.append(Contender(workload=task.name, name=name, threads=n, run=run, turn=batches, close=closing))
    for name, make in (("DGL", _dgl_loader), ("GraphBolt", _graphbolt_loader)):
        if name in modules and task.is_plain and content in ("plain", "features"):
            loader, count = make(modules[name], task, inputs, features)
            for n in threads:
                run = in_dgl_threads(modules["DGL"], n, _epoch(loader, count))
                found.append(Contender(workload=task.name, name=name, threads=n, run=run, turn=batches))
    return found


def _epoch(loader: Any, count: Callable[[Any], int]) -> BatchRunner:
    def run(num_batches: int) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DGL's advice about cores
            return sum(count(batch) for batch in loader)

    return run


def _closer(loader: Any) -> Callable[[], None]:
    return lambda: setattr(loader, "_iterator", None)  # ends workers at once; as garbage they would wait for 5 s


def _data(task: Task, features: Mapping[NodeType, Tensor] | None) -> Data | HeteroData:
    graph = task.graph
    if HOMOGENEOUS_EDGE in graph.row:
        data = Data(edge_index=graph.edge_index[HOMOGENEOUS_EDGE], num_nodes=graph.num_nodes[graph.seed_type])
        data.update({} if features is None else {"x": features[graph.seed_type]})
        data.update({"edge_weight": graph.weight} if task.mode == "weighted" else {})
        data.update({"edge_time": graph.time} if task.mode == "temporal" else {})
        return data
    hetero = HeteroData()
    for node_type, num_nodes in graph.num_nodes.items():
        hetero[node_type].num_nodes = num_nodes
        if features is not None:
            hetero[node_type].x = features[node_type]
    for edge_type, edge_index in graph.edge_index.items():
        hetero[edge_type].edge_index = edge_index
    return hetero


def _pyg_loader(
    make: Callable[..., Any], data: Data | HeteroData, task: Task, inputs: Tensor, threads: int, *, is_sorted: bool
) -> Any:
    options: dict[str, object] = {"disjoint": True} if task.is_disjoint else {}
    if task.mode == "weighted":
        options["weight_attr"] = "edge_weight"
    if task.times is not None:
        options |= {"time_attr": "edge_time", "input_time": task.times.flatten()[: len(inputs)]}
    if threads > 1:
        options |= {"num_workers": threads, "persistent_workers": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        return make(
            data,
            num_neighbors=list(task.fanout),
            input_nodes=(task.graph.seed_type, inputs) if isinstance(data, HeteroData) else inputs,
            batch_size=task.seeds.shape[1],
            shuffle=True,
            is_sorted=is_sorted,
            **options,
        )


def _dgl_loader(dgl: ModuleType, task: Task, inputs: Tensor, features: Mapping[NodeType, Tensor] | None) -> Any:
    graph = dgl.graph(("csc", (*task.csc, torch.empty(0, dtype=torch.int64))))
    names = [] if features is None else ["x"]
    if features is not None:
        graph.ndata["x"] = features[HOMOGENEOUS_NODE]
    sampler = dgl.dataloading.NeighborSampler(list(task.fanout)[::-1], prefetch_node_feats=names)
    options = {"batch_size": task.seeds.shape[1], "shuffle": True, "num_workers": 0}

    def count(batch: Any) -> int:
        for name in names:
            batch[2][0].srcdata[name]
        return sum(block.num_edges() for block in batch[2])

    return dgl.dataloading.DataLoader(graph, inputs, sampler, **options), count


def _graphbolt_loader(gb: ModuleType, task: Task, inputs: Tensor, features: Mapping[NodeType, Tensor] | None) -> Any:
    graph = gb.fused_csc_sampling_graph(*task.csc)
    pipe = gb.ItemSampler(gb.ItemSet(inputs, names="seed_nodes"), batch_size=task.seeds.shape[1], shuffle=True)
    pipe = pipe.sample_neighbor(graph, list(task.fanout)[::-1])
    if features is not None:
        store = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(features[HOMOGENEOUS_NODE])})
        pipe = pipe.fetch_feature(store, node_feature_keys=["x"])
    return gb.DataLoader(pipe, num_workers=0), lambda batch: sum(
        int(s.sampled_csc.indices.numel()) for s in batch.sampled_subgraphs
    )


def _builders(num_nodes: int, edges: Tensor, threads: list[int]) -> list[Contender]:
    row, col = edges
    builds: dict[str, Callable[[], object]] = {
        MANYHOP: lambda: build_graph({HOMOGENEOUS_NODE: num_nodes}, {HOMOGENEOUS_EDGE: EdgeInput(row=row, col=col)}),
        "PyG": lambda: to_csc(Data(edge_index=edges, num_nodes=num_nodes)),
    }

    def runner(build: Callable[[], object], n: int) -> BatchRunner:
        def run(num_batches: int) -> int:
            torch.set_num_threads(n)
            for _ in range(num_batches):
                build()
            torch.set_num_threads(1)
            return num_batches * edges.size(1)

        return run

    return [
        Contender(workload="edge list", name=name, threads=n, run=runner(build, n), turn=1)
        for name, build in builds.items()
        for n in threads
    ]
