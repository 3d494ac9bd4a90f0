"""Constants of a machine from records of ``manyhop bench gpu``: one rule per constant, none per row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from manyhop.costs import MERGED, CuGraphCosts, GPUCosts, Machine, Workload, expected_sizes, graph_sage
from manyhop.errors import InputError
from manyhop_bench.gpu.job import Row
from manyhop_bench.gpu.limits import COPY, PCIE, PEER, READS
from manyhop_bench.gpu.record import Run

_TITLE = re.compile(r"([\d,]+) nodes, ([\d,]+) edges, batches of ([\d,]+), (\d+) features of (\d+) bits")
_EXCHANGED = re.compile(r"150,000 rows of (\d+) B")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run was taken on: an R-MAT graph."""

    num_nodes: int
    num_edges: int
    batch_size: int
    features: int
    bits: int

    @staticmethod
    def of(run: Run) -> Measured:
        """Read the title of a run.

        Raises:
            InputError: another title.
        """
        match = _TITLE.fullmatch(run.title)
        if match is None:
            raise InputError(f"Expected a record of `manyhop bench gpu`, got one of {run.title!r}.")
        numbers = [int(text.replace(",", "")) for text in match.groups()]
        names = [field.name for field in dataclasses.fields(Measured)]
        return Measured(**dict(zip(names, numbers, strict=True)))

    def workload(self, row: Row) -> Workload:
        """Return what a row of loading or training did: its fanouts and channels are in its name."""
        return Workload(
            sizes=expected_sizes(self.num_nodes, self.num_edges, fanouts_of(row), self.batch_size),
            batch_size=self.batch_size,
            num_seeds=int(row.extra["batches"]) * self.batch_size * row.gpus,
            row_bytes=self.features * self.bits // 8,
            features=self.features,
            hidden=_hidden(row),
            half=self.bits == 16,
        )


def fanouts_of(row: Row) -> tuple[int, ...]:
    """Return the fanouts in the name of a workload."""
    return tuple(int(text) for text in row.workload[1 : row.workload.index("]")].split(","))


def calibrate(runs: Sequence[Run], base: Machine) -> tuple[Machine, list[str]]:
    """Return a machine with the constants that runs on it tell, and the names of those that stay as in ``base``."""
    known = base.gpu_costs()
    found: dict[str, Any] = {}
    for run in runs:
        rows = [row for row in run.rows if row.name in ("manyhop", "hardware")]
        for rule in (_limits, _sampling, _host, _ranks, _exchange):
            for name, value in rule(rows, Measured.of(run), dataclasses.replace(known, **found)):
                found.setdefault(name, value)
    gpu = dataclasses.replace(known, **found)
    kept = [field.name for field in dataclasses.fields(gpu) if field.name not in found]
    cugraph = next((costs for run in runs if (costs := _cugraph(run.rows, gpu)) is not None), base.cugraph)
    return dataclasses.replace(base, gpu=gpu, cugraph=cugraph), kept


Found = Iterator[tuple[str, float]]


def _limits(rows: Sequence[Row], measured: Measured, known: GPUCosts) -> Found:
    """Copies and reads of one GPU; links where most GPUs use them at once."""
    for name, workload, several in (("copy", COPY, 0), ("reads", READS, 0), ("pcie", PCIE, 1), ("peer", PEER, 1)):
        of = [row for row in rows if row.part == "limits" and row.workload == workload]
        if of:
            gpus = (max if several else min)(row.gpus for row in of)
            yield name, median(row.extra["per_s"] for row in of if row.gpus == gpus)


def _sampling(rows: Sequence[Row], measured: Measured, known: GPUCosts) -> Found:
    """What launches of one and of several batches take on the GPU: what they share, and the rest."""
    launches = {
        (len(fanouts_of(row)), row.setting): (row.extra["launch_s"], row.edges)
        for row in sorted(rows, key=lambda row: -row.gpus)
        if row.part == "sampling" and row.workload.startswith("[") and "launch_s" in row.extra
    }
    shared = {}
    for hops in {hops for hops, _ in launches}:
        one, merged = (launches.get((hops, f"{n} per call")) for n in (1, MERGED))
        if one is not None and merged is not None:
            shared[hops] = (one[0] - merged[0]) * MERGED / (MERGED - 1)
    if len(shared) < 2:
        return
    fewest, most = min(shared), max(shared)
    hop = (shared[most] - shared[fewest]) / (most - fewest)
    alone, edges = launches[most, "1 per call"]
    yield "hop_s", hop
    yield "launch_s", max(shared[fewest] - fewest * hop, 0.0)
    yield "edge_reads", (alone - shared[most]) / edges * known.reads
    sharded = launches.get((most, "1 per call, sharded topology"))
    if sharded is not None:
        yield "peer_hop_s", max(sharded[0] - alone, 0.0) / most


def _host(rows: Sequence[Row], measured: Measured, known: GPUCosts) -> Found:
    """The smallest batches and steps on one GPU, which wait for the host."""
    one = [row for row in rows if row.gpus == 1 and row.setting == ""]
    loaders = [row for row in one if row.part == "loader"]
    if loaders:
        yield "batch_s", min(loaders, key=lambda row: row.edges).median_s
    step = _smallest_step(one)
    if step is None:
        return
    layers = len(fanouts_of(step))
    alone = step.extra["step_s"] / layers
    if measured.bits == 16:
        yield "autocast_layer_s", max(alone - known.step_layer_s, 0.0)
        return
    yield "step_layer_s", alone
    if "step_gpu_s" in step.extra:
        rest = graph_sage(measured.workload(step), dataclasses.replace(known, layer_s=0.0)).gpu
        yield "layer_s", max(step.extra["step_gpu_s"] - rest, 0.0) / layers


def _ranks(rows: Sequence[Row], measured: Measured, known: GPUCosts) -> Found:
    """Steps under DDP without loading: of one rank, and of several on a host."""
    plain = _smallest_step([row for row in rows if row.gpus == 1 and row.setting == ""])
    if plain is None or measured.bits == 16:
        return
    alone = plain.extra["step_s"] + known.ddp_s
    one = _smallest_step([row for row in rows if row.setting == "DDP"])
    if one is not None:
        alone = one.extra["step_s"]
        yield "ddp_s", max(alone - plain.extra["step_s"], 0.0)
    several = [row for row in rows if row.gpus > 1 and row.part == "epoch" and row.workload == plain.workload]
    if several:
        yield "shared_host", max(mean(row.extra["step_s"] for row in several) / alone, 1.0)


def _exchange(rows: Sequence[Row], measured: Measured, known: GPUCosts) -> Found:
    """What is left of small exchanges beside bytes over NVLink and their copies."""
    rest = []
    for row in rows:
        match = _EXCHANGED.fullmatch(row.workload) if row.part == "exchange" else None
        if match is not None:
            rest.append(row.median_s - row.work[PEER] / known.peer - 150_000 * int(match[1]) / known.copy)
    if rest:
        yield "exchange_s", max(median(rest), 0.0)


def _cugraph(rows: Sequence[Row], known: GPUCosts) -> CuGraphCosts | None:
    """Loaders whose batches cuGraph samples, on most GPUs: those with fewest and most edges."""
    of = [row for row in rows if row.name == "manyhop" and row.part == "loader" and samples_by_cugraph(row)]
    gpus = max((row.gpus for row in of), default=0)
    of = sorted((row for row in of if row.gpus == gpus), key=lambda row: row.edges)
    if len(of) < 2:
        return None
    few, many = of[0], of[-1]
    edge_s = max(many.median_s - few.median_s, 0.0) / (many.edges - few.edges)
    loader_s = known.batch_s * (known.shared_host if gpus > 1 else 1.0)
    return CuGraphCosts(gpus=gpus, batch_s=max(few.median_s - few.edges * edge_s - loader_s, 0.0), edge_s=edge_s)


def samples_by_cugraph(row: Row) -> bool:
    """Return whether cuGraph samples the batches of a row."""
    return row.setting.endswith("cuGraph")


def _smallest_step(rows: Sequence[Row]) -> Row | None:
    """Return the training row of the narrowest model, the first of its scalings."""
    return min((row for row in rows if row.part == "epoch"), key=_hidden, default=None)


def _hidden(row: Row) -> int:
    """Return the channels of a model; names of early records leave out the 256 of all."""
    match = re.search(r"(\d+) hidden", row.workload)
    return int(match[1]) if match else 256
