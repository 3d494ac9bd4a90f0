"""Constants of a machine from records of ``manyhop bench gpu``: one rule per constant, none per row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from manyhop.costs import (
    H200,
    MACHINES,
    MERGED,
    Cluster,
    CuGraphCosts,
    GPUCosts,
    Machine,
    Workload,
    expected_sizes,
    graph_sage,
    predict,
)
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
            captured=is_captured(row),
        )


def fanouts_of(row: Row) -> tuple[int, ...]:
    """Return the fanouts in the name of a workload."""
    return tuple(int(text) for text in row.workload[1 : row.workload.index("]")].split(","))


def base_of(gpu: str) -> Machine:
    """Return the built-in machine with a kind of GPU, for constants that are not measured; of others an H200."""
    return next((machine for name, machine in MACHINES.items() if name in gpu), H200)


def calibrate(runs: Sequence[Run], base: Machine) -> tuple[Machine, list[str]]:
    """Return a machine with the constants found by runs on it, and the names of those that stay as in ``base``."""
    known = base.gpu_costs()
    found: dict[str, Any] = {}
    for run in runs:
        rows = [row for row in run.rows if row.name in ("manyhop", "hardware")]
        for rule in (_limits, _sampling, _host, _ranks, _captured_ranks, _exchange):
            for name, value in rule(rows, Measured.of(run), dataclasses.replace(known, **found)):
                found.setdefault(name, value)
    gpu = dataclasses.replace(known, **found)
    kept = [field.name for field in dataclasses.fields(gpu) if field.name not in found]
    cugraph = next((costs for run in runs if (costs := _cugraph(run.rows, gpu)) is not None), None)
    if cugraph is None and base.cugraph is not None:
        kept.append("cugraph")
    return dataclasses.replace(base, gpu=gpu, cugraph=cugraph or base.cugraph), kept


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
    one = [row for row in rows if row.gpus == 1]
    plain, padded = (_smallest_batch(one, setting) for setting in ("", "padded"))
    if plain is not None:
        yield "epoch_s", plain.extra["first_s"]
        yield "batch_s", _further_s(plain)
        if padded is not None:
            yield "padded_batch_s", max(_further_s(padded) - _further_s(plain), 0.0)
    captured = _smallest_step([row for row in one if row.setting == "captured"])
    if captured is not None and measured.bits == 32:
        rest = graph_sage(measured.workload(captured), dataclasses.replace(known, captured_layer_s=0.0)).gpu
        yield "captured_layer_s", max(captured.extra["step_gpu_s"] - rest, 0.0) / len(fanouts_of(captured))
    step = _smallest_step([row for row in one if row.setting == ""])
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
    """Steps under DDP without loading, and the smallest batches: of one rank, and of several on a host."""
    plain = _smallest_step([row for row in rows if row.gpus == 1 and row.setting == ""])
    if plain is None or measured.bits == 16:
        return
    alone = plain.extra["step_s"] + known.ddp_s
    one = _smallest_step([row for row in rows if row.setting == "DDP"])
    if one is not None:
        alone = one.extra["step_s"]
        yield "ddp_s", max(alone - plain.extra["step_s"], 0.0)
    several = [row for row in rows if row.gpus > 1 and not is_captured(row) and not samples_by_cugraph(row)]
    steps = [row.extra["step_s"] / alone for row in several if row.part == "epoch" and row.workload == plain.workload]
    of_one = {row.workload: row.median_s for row in rows if row.part == "loader" and row.gpus == 1 and not row.setting}
    loaders = [
        row.median_s / of_one[row.workload]
        for row in several
        if row.part == "loader" and row.setting == "replica" and row.workload in of_one
    ]
    shared = known.shared_host
    if steps or loaders:
        shared = max(mean(mean(ratios) for ratios in (steps, loaders) if ratios), 1.0)
        yield "shared_host", shared
    batch, spread = (_smallest_batch(several, setting) for setting in ("replica", "sharded"))
    if batch is not None and spread is not None:
        yield "spread_batch_s", max(_further_s(spread) - _further_s(batch), 0.0) / shared


def _captured_ranks(rows: Sequence[Row], measured: Measured, known: GPUCosts) -> Found:
    """What captured steps without loading take longer on several GPUs than on one, beside the bytes of gradients."""
    captured = [row for row in rows if is_captured(row)]
    one = _smallest_step([row for row in captured if row.gpus == 1])
    if one is None or measured.bits == 16:
        return
    machine = Machine(name="", gpu=dataclasses.replace(known, captured_ddp_s=0.0))
    longer = [
        row.extra["step_s"]
        - one.extra["step_s"]
        - predict(measured.workload(row), Cluster(gpus_per_node=row.gpus), machine).all_reduce_s
        for row in captured
        if row.gpus > 1 and row.workload == one.workload
    ]
    if longer:
        yield "captured_ddp_s", max(mean(longer), 0.0)


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
    shared = known.shared_host if gpus > 1 else 1.0
    seconds_few, seconds_many = (_further_s(row, known.epoch_s * shared) for row in (few, many))
    edge_s = max(seconds_many - seconds_few, 0.0) / (many.edges - few.edges)
    batch_s = max(seconds_few - few.edges * edge_s - known.batch_s * shared, 0.0)
    return CuGraphCosts(gpus=gpus, batch_s=batch_s, edge_s=edge_s)


def samples_by_cugraph(row: Row) -> bool:
    """Return whether cuGraph samples the batches of a row."""
    return row.setting.endswith("cuGraph")


def is_captured(row: Row) -> bool:
    """Return whether the steps of a row are captured, and trimmed."""
    return row.setting.endswith("captured")


def _smallest_batch(rows: Sequence[Row], setting: str) -> Row | None:
    """Return the loader of the batches with fewest edges, on fewest GPUs."""
    of = [row for row in rows if row.part == "loader" and row.setting == setting]
    return min(of, key=lambda row: (row.gpus, row.edges), default=None)


def _further_s(row: Row, first_s: float | None = None) -> float:
    """Return the seconds of a batch of an epoch after the first one, which takes ``first_s``, or what was measured."""
    batches = row.extra["batches"]
    first = row.extra["first_s"] if first_s is None else first_s
    return max(row.median_s * batches - first, 0.0) / max(batches - 1, 1)


def _smallest_step(rows: Sequence[Row]) -> Row | None:
    """Return the training row of the narrowest model, the first of its scalings."""
    return min((row for row in rows if row.part == "epoch"), key=_hidden, default=None)


def _hidden(row: Row) -> int:
    """Return the channels of a model; names of early records leave out the 256 of all."""
    match = re.search(r"(\d+) hidden", row.workload)
    return int(match[1]) if match else 256
