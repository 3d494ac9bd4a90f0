"""What the programs share: interleaved timing, tables, the description of the machine, peers, random graphs."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import platform
import shlex
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, EdgeType, Graph, NodeType, build_graph
from manyhop.system.threads import available_cores

MANYHOP = "manyhop"

BatchRunner = Callable[[int], int]
"""Runs so many batches and returns the number of edges sampled."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contender:
    """One row of the table: one loader at one workload with a number of threads."""

    workload: str
    name: str
    threads: int
    run: BatchRunner
    turn: int | None = None
    """Batches per turn; ``None``: as many as fill a turn of ``min_turn_s``."""
    close: Callable[[], None] = lambda: None
    """Ends what is left running between turns."""


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A peer that was not measured, at one workload or at all."""

    name: str
    reason: str
    workload: str | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What was measured of one contender, round by round: seconds and sampled edges per batch."""

    workload: str
    name: str
    threads: int
    seconds: list[float] = field(default_factory=list)
    edges: list[float] = field(default_factory=list)

    @property
    def ms_per_batch(self) -> float:
        return float(np.median(self.seconds)) * 1e3

    @property
    def edges_per_s(self) -> float:
        return float(np.median(np.divide(self.edges, self.seconds)))


def quartiles(values: npt.ArrayLike, digits: int = 2) -> str:
    """Return median and quartiles as text."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{median:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def on_threads(samplers: Sequence[Callable[[int], int]]) -> BatchRunner:
    """Return what runs samplers of numbered batches, each on a thread with batches of its own."""
    done = 0
    pool = ThreadPoolExecutor(len(samplers)) if len(samplers) > 1 else None

    def run(num_batches: int) -> int:
        nonlocal done
        first, done = done, done + num_batches

        def share(thread: int) -> int:
            return sum(map(samplers[thread], range(first + thread, first + num_batches, len(samplers))))

        return share(0) if pool is None else sum(pool.map(share, range(len(samplers))))

    return run


def ratio(timing: Timing, base: Timing) -> str:
    """Return time per edge over that of ``base`` in the same rounds: median and quartiles.

    The speed of a shared machine drifts by more than the differences one looks for; this ratio does not see the drift.
    """
    cost, other = (np.divide(one.seconds, one.edges) for one in (timing, base))
    return quartiles(cost / other)


def measure(
    contenders: Sequence[Contender],
    rounds: int,
    min_turn_s: float,
    *,
    progress: Callable[[str], None] = lambda message: None,
) -> list[Timing]:
    """Let all contenders take turns for a number of rounds, after a turn that does not count, then close them."""
    try:
        turns = [_warm_up(contender, min_turn_s) for contender in contenders]
        timings = [Timing(workload=c.workload, name=c.name, threads=c.threads) for c in contenders]
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            for i in range(len(contenders)):
                at = (i + number) % len(contenders)  # another one begins each round
                began = time.perf_counter()
                edges = contenders[at].run(turns[at])
                timings[at].seconds.append((time.perf_counter() - began) / turns[at])
                timings[at].edges.append(edges / turns[at])
        return timings
    finally:
        for contender in contenders:
            contender.close()


def _warm_up(contender: Contender, min_turn_s: float) -> int:
    """Run what the first turn has to compile, fork or allocate; returns the number of batches of a turn."""
    if contender.turn is not None:
        contender.run(contender.turn)
        return contender.turn
    contender.run(contender.threads)
    began = time.perf_counter()
    contender.run(contender.threads)
    per_batch = (time.perf_counter() - began) / contender.threads
    rows = math.ceil(min_turn_s / max(per_batch, 1e-6) / contender.threads)
    return contender.threads * min(max(rows, 1), 1000)


def find(timings: Sequence[Timing], workload: str, name: str, threads: int) -> Timing | None:
    """Return the timing of a contender, if it was measured."""
    return next((t for t in timings if (t.workload, t.name, t.threads) == (workload, name, threads)), None)


def by_workload(timings: Sequence[Timing]) -> dict[str, list[Timing]]:
    """Group timings by workload, in order; manyhop first in each group, then by name, then by threads."""
    groups: dict[str, list[Timing]] = {}
    for timing in timings:
        groups.setdefault(timing.workload, []).append(timing)
    return {name: sorted(group, key=lambda t: (t.name != MANYHOP, t.name, t.threads)) for name, group in groups.items()}


_COLUMNS = ("workload", "loader", "threads", "ms per batch", "M edges/s", "time, manyhop = 1", "speed-up by threads")
EXPLANATION = (
    "Medians over rounds in which all loaders take turns. 'time, manyhop = 1' is the time per sampled edge over\n"
    "that of manyhop with as many threads, in the same round: median (quartiles). Above 1, manyhop is faster."
)


def section(title: str, timings: Sequence[Timing]) -> list[str]:
    """Return a table of workloads of one kind."""
    rows = []
    for workload, group in by_workload(timings).items():
        for timing in group:
            mine = find(group, workload, MANYHOP, timing.threads)
            one = find(group, workload, timing.name, 1)
            cells = [workload, timing.name, timing.threads, f"{timing.ms_per_batch:.2f}"]
            cells += [f"{timing.edges_per_s / 1e6:.2f}", "" if mine in (None, timing) else ratio(timing, mine)]
            rows.append([*cells, "" if one in (None, timing) else ratio(one, timing)])
    return ["", f"## {title}", "", *table(_COLUMNS, rows)] if rows else []


def not_measured(absent: Sequence[Absent]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for peer in absent:
        reasons.setdefault((peer.name, peer.reason), []).extend([peer.workload] if peer.workload else [])
    lines = []
    for (name, reason), workloads in reasons.items():
        at = f" ({'; '.join(dict.fromkeys(workloads))})" if workloads else ""
        lines.append(f"- {name}{at}: {reason}")
    return ["", "## Not measured", "", *lines] if lines else []


def print_and_save(text: str, folder: Path | None, name: str) -> None:
    """Print markdown, and save it as ``folder / name``; ``None``: no file is wanted."""
    print(text, end="", flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def opening(title: str, argv: Sequence[str]) -> list[str]:
    """Return the first lines of a record in markdown: its title, and where it was taken."""
    return [f"# {title}", "", *(f"- {label}: {value}" for label, value in describe(argv))]


def table(columns: Sequence[str], rows: Iterable[Iterable[object]] = ()) -> list[str]:
    """Return the lines of a table in markdown."""
    return [table_row(columns), "|" + "---|" * len(columns), *map(table_row, rows)]


def table_row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


_PACKAGES = (
    *("manyhop", "torch", "numpy", "numba", "torch_geometric", "pyg_lib", "torch_sparse", "dgl"),
    *("pylibwholegraph", "cugraph_pyg"),
)


def describe(argv: Sequence[str]) -> list[tuple[str, str]]:
    """Return date, machine, versions and command, as (label, value)."""
    versions = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        version: str | None
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:  # builds for other hardware have other names
            version = getattr(sys.modules.get(package), "__version__", None)
        if version is not None:
            versions.append(f"{package} {version}")
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = models[0].partition(":")[2].strip() if models else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [
        ("Date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("Command", shlex.join(["python", "tests/benchmarks", *argv])),
        ("CPU", f"{cpu}, {available_cores()} cores; load average {os.getloadavg()[0]:.1f} at the start"),
        ("Memory", f"{memory / 2**30:.0f} GiB"),
        ("System", platform.platform()),
        ("Versions", ", ".join(versions)),
        ("OpenMP", ", ".join(f"{k}={os.environ.get(k, 'unset')}" for k in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"))),
    ]


def import_quietly(module: str) -> ModuleType:
    """Import a module; its warnings are not ours to show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port in the body: the system gives it to nobody who asks for any one, and ranks may listen there."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        yield reserved.getsockname()[1]


TIME_RANGE = 1 << 20
"""Times of edges and seeds are uniform in [0, TIME_RANGE)."""

HETERO_NODES: Mapping[NodeType, float] = {"paper": 0.5, "author": 0.4, "venue": 0.1}  # shares of all nodes

HETERO_EDGES: Mapping[EdgeType, float] = {  # shares of all edges
    ("paper", "cites", "paper"): 0.4,
    ("author", "writes", "paper"): 0.27,
    ("paper", "written_by", "author"): 0.27,
    ("paper", "appears_in", "venue"): 0.03,
    ("venue", "publishes", "paper"): 0.03,
}


@dataclass(frozen=True, kw_only=True)
class BenchGraph:
    """A graph in the forms that manyhop and its peers take. Edges lie in columns, by time where they have times.

    The node of rank r is an end of an edge in proportion to (r + 1)^-0.6, as source and as destination, and ranks are
    spread over the ids at random. Columns are made directly: their lengths by one multinomial draw, then their sources.
    """

    num_nodes: Mapping[NodeType, int]
    """Seeds are drawn from the first type."""
    colptr: Mapping[EdgeType, Tensor]
    row: Mapping[EdgeType, Tensor]
    weight: Tensor | None = None
    """``[num_edges] float32``; homogeneous graphs only."""
    time: Tensor | None = None
    """``[num_edges] int64``; homogeneous graphs only."""

    @property
    def seed_type(self) -> NodeType:
        return next(iter(self.num_nodes))

    @cached_property
    def edge_index(self) -> Mapping[EdgeType, Tensor]:
        """Edge type -> ``[2, num_edges] int64``, sorted by destination: the peers know no smaller ids."""
        edge_index = {}
        for edge_type, row in self.row.items():
            both = torch.empty(2, row.numel(), dtype=torch.int64)
            both[0] = row
            both[1] = torch.repeat_interleave(torch.diff(self.colptr[edge_type]), output_size=row.numel())
            edge_index[edge_type] = both
        return edge_index

    @cached_property
    def engine(self) -> Graph:
        edges = {
            t: EdgeInput(row=self.row[t], colptr=self.colptr[t], weight=self.weight, time=self.time, is_sorted=True)
            for t in self.row
        }
        return build_graph(self.num_nodes, edges)


def homogeneous(num_nodes: int, num_edges: int, *, attributes: bool) -> BenchGraph:
    """Make one node type and one edge type; with ``attributes`` the edges have weights in [0.1, 1) and times."""
    rng = np.random.default_rng(0)
    law = _PowerLaw(rng, num_nodes)
    colptr, row = _columns(rng, law, law, num_edges)
    weight = time = None
    if attributes:
        weight = torch.from_numpy(rng.uniform(0.1, 1.0, num_edges).astype(np.float32))
        times = rng.integers(0, TIME_RANGE, num_edges)
        columns = np.repeat(np.arange(num_nodes), np.diff(colptr))
        # By time in each column. The sources are independent of each other: they may stay where they are.
        time = torch.from_numpy(times[np.lexsort((times, columns))])
    return BenchGraph(
        num_nodes={HOMOGENEOUS_NODE: num_nodes},
        colptr={HOMOGENEOUS_EDGE: torch.from_numpy(colptr)},
        row={HOMOGENEOUS_EDGE: torch.from_numpy(row)},
        weight=weight,
        time=time,
    )


def edge_list(num_nodes: int, num_edges: int) -> Tensor:
    """Return ``[2, num_edges] int64``: the edges of :func:`homogeneous`, drawn one by one, so in random order."""
    rng = np.random.default_rng(0)
    law = _PowerLaw(rng, num_nodes)
    edges = torch.empty(2, num_edges, dtype=torch.int64)
    for ends in edges:
        ends.copy_(torch.from_numpy(law.draw(rng, num_edges)))
    return edges


def heterogeneous(num_nodes: int, num_edges: int) -> BenchGraph:
    """Make three node types and five edge types, with so many nodes and edges in all."""
    rng = np.random.default_rng(1)
    law = {t: _PowerLaw(rng, max(1, int(num_nodes * share))) for t, share in HETERO_NODES.items()}
    columns = {t: _columns(rng, law[t[0]], law[t[2]], int(num_edges * s)) for t, s in HETERO_EDGES.items()}
    return BenchGraph(
        num_nodes={t: law[t].num_nodes for t in law},
        colptr={t: torch.from_numpy(colptr) for t, (colptr, _) in columns.items()},
        row={t: torch.from_numpy(row) for t, (_, row) in columns.items()},
    )


class _PowerLaw:
    def __init__(self, rng: np.random.Generator, num_nodes: int) -> None:
        weight = 1.0 / np.arange(1, num_nodes + 1) ** 0.6
        self.num_nodes = num_nodes
        self.share = weight / weight.sum()
        self.by_rank = rng.permutation(num_nodes).astype(np.int32)

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
        """``[count] int32`` independent nodes."""
        below = np.cumsum(self.share)
        below[-1] = 1.0
        return self.by_rank[np.searchsorted(below, rng.random(count), side="right")]


def _columns(
    rng: np.random.Generator, src: _PowerLaw, dst: _PowerLaw, num_edges: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """``colptr [num_dst + 1]`` and ``row [num_edges]`` of one edge type."""
    degree = np.empty(dst.num_nodes, np.int64)
    degree[dst.by_rank] = rng.multinomial(num_edges, dst.share)
    colptr = np.zeros(dst.num_nodes + 1, np.int64)
    np.cumsum(degree, out=colptr[1:])
    return colptr, src.draw(rng, num_edges)
