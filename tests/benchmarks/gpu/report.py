"""Tables of a record of ``benchmarks gpu``, each figure with the limit of the hardware beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from benchmarks.common.report import table
from benchmarks.gpu.job import Row
from benchmarks.gpu.limits import READS
from benchmarks.gpu.record import Run

Table: TypeAlias = tuple[str, Sequence[str], list[list[str]]]
"""Title, columns, rows."""

_EXPLANATION = (
    "Medians over rounds; of the slowest GPU where there are several. 'limit' is the least time that the hardware "
    "needs for the same, from the limits measured in the same run: 3 random reads per sampled edge, and the bytes of "
    "the gathered rows at the speed of a copy (of PCIe, of NVLink). 'manyhop = 1' is the time over that of manyhop's "
    "fastest row of the same workload on as many GPUs; for sampling it is the time per sampled edge. 'launch alone' is "
    "what the GPU takes for launches that wait in its queue, with the writing of results, without what Python does "
    "meanwhile; 'us per batch' is the time until all results are there; 'one ahead' means that each launch is begun "
    "before the one before is finished, as launches of several batches always are. 64 steps of an epoch take turns "
    "with as many over new batches that are there already ('alone'): 'with loading / alone' is the median of the "
    "ratios of these pairs, with their quartiles. 'For the GPU' is what it takes for steps that wait in its queue: "
    "where that is less than the step alone, the host decides. 'DDP' on one GPU is the script for several, as one rank "
    "of one; 'captured' steps are replayed, with manyhop's aggregation. 'peak' is all memory in use on the GPU beyond "
    "an idle process, with the graph and the features that lie there."
)


def as_markdown(runs: Sequence[Run], plot: str | None = None) -> str:
    """The record for a file; ``plot`` is the name of the picture next to it."""
    lines = ["# manyhop on GPUs", "", _EXPLANATION]
    if plot is not None:
        lines += ["", f"![Time of the others over that of manyhop]({plot})"]
    for run in runs:
        lines += ["", f"## {run.title}", "", *(f"- {label}: {value}" for label, value in run.header)]
        for title, columns, rows in tables(run):
            lines += ["", f"### {title}", "", *table(columns, rows)]
        lines += _missing(run, "### Not measured", "- ")
    return "\n".join(lines) + "\n"


def as_text(runs: Sequence[Run]) -> str:
    """The record for a terminal."""
    lines: list[str] = []
    for run in runs:
        lines += [run.title, "", *(f"{label}: {value}" for label, value in run.header)]
        for title, columns, rows in tables(run):
            lines += ["", title, *_aligned([list(columns), *rows])]
        lines += _missing(run, "Not measured", "  ")
    return "\n".join(lines) + "\n"


def tables(run: Run) -> Iterable[Table]:
    """All tables that have rows."""
    for make in (_limits, _sampling, _gather, _exchange, _loader, _epoch, _build, _stores, _scaling):
        made = make(run)
        if made[2]:
            yield made


def _limits(run: Run) -> Table:
    measured: dict[tuple[str, int], list[float]] = {}
    for row in run.of("limits"):
        measured.setdefault((row.workload, row.gpus), []).append(row.extra["per_s"] / 1e9)
    rows = []
    for (limit, gpus), values in measured.items():  # joined runs have each measured them
        low, high = (f"{value:.1f}" for value in (min(values), max(values)))
        text = low if low == high else f"{low}-{high}"
        rows.append([limit, str(gpus), f"{text} {'G/s' if limit == READS else 'GB/s'}"])
    return "Limits", ("limit", "GPUs", "of each GPU"), rows


def _sampling(run: Run) -> Table:
    columns = ("workload", "GPUs", "by", "batches", "us per batch", "launch alone, us", "edges", "G edges/s")
    rows = []
    for row in run.of("sampling"):
        rows.append(
            [
                row.workload,
                str(row.gpus),
                row.name,
                row.setting,
                f"{row.median_s * 1e6:.0f}",
                f"{row.extra['launch_s'] * 1e6:.1f}" if "launch_s" in row.extra else "",
                f"{row.edges:.0f}",
                f"{row.edges / row.median_s / 1e9:.2f}",
                _limit(run, row, 1e6, "us"),
                _ratio(run, row),
                _gib(row),
            ]
        )
    return "Sampling", (*columns, "limit", "manyhop = 1", "peak"), rows


def _gather(run: Run) -> Table:
    columns = ("table and rows", "GPUs", "by", "how", "GB/s", "limit", "manyhop = 1", "peak")
    rows = []
    for row in run.of("gather"):
        size, limit = row.extra["bytes"], run.limit_s(row)
        text = "" if limit is None else f"{size / limit / 1e9:.0f} GB/s ({limit / row.median_s:.0%})"
        speed = f"{size / row.median_s / 1e9:.1f}"
        rows.append([row.workload, str(row.gpus), row.name, row.setting, speed, text, _ratio(run, row), _gib(row)])
    return "Gather, GB/s of gathered rows on each GPU", columns, rows


def _exchange(run: Run) -> Table:
    columns = ("rows that each GPU asks for", "GPUs", "by", "us", "GB/s", "limit", "manyhop = 1")
    rows = []
    for row in run.of("exchange"):
        speed = f"{row.extra['bytes'] / row.median_s / 1e9:.1f}"
        cells = [row.workload, str(row.gpus), row.name, f"{row.median_s * 1e6:.0f}", speed]
        rows.append([*cells, _limit(run, row, 1e6, "us"), _ratio(run, row)])
    return "Exchange of rows, of which each GPU has a part", columns, rows


def _loader(run: Run) -> Table:
    columns = ("workload", "GPUs", "by", "how", "ms per batch", "first batch, ms", "making the loader, ms")
    rows = []
    for row in run.of("loader"):
        first, construct = row.extra["first_s"] * 1e3, row.extra["construct_s"] * 1e3
        cells = [row.workload, str(row.gpus), row.name, row.setting, f"{row.median_s * 1e3:.3f}"]
        cells += [f"{first:.1f}", f"{construct:.1f}", f"{row.extra['batches']:.0f}", f"{row.edges:.0f}"]
        rows.append([*cells, _limit(run, row, 1e3, "ms"), _ratio(run, row), _gib(row)])
    return "Loader, with features", (*columns, "batches per epoch", "edges", "limit", "manyhop = 1", "peak"), rows


def _epoch(run: Run) -> Table:
    columns = ("workload", "GPUs", "by", "how", "epoch, s", "ms per step", "the step alone, ms", "for the GPU, ms")
    rows = []
    for row in run.of("epoch"):
        steps = row.extra["batches"]
        cells = [row.workload, str(row.gpus), row.name, row.setting, f"{row.median_s * steps:.3f}"]
        cells += [f"{row.median_s * 1e3:.2f}", f"{row.extra['step_s'] * 1e3:.2f}"]
        cells += [f"{row.extra['step_gpu_s'] * 1e3:.2f}" if "step_gpu_s" in row.extra else ""]
        cells += [_spread(row), f"{steps:.0f}"]
        rows.append([*cells, _limit(run, row, 1e3, "ms"), _ratio(run, row), _gib(row)])
    more = ("with loading / alone", "steps", "limit of loading", "manyhop = 1", "peak")
    return "GraphSAGE epochs", (*columns, *more), rows


def _build(run: Run) -> Table:
    rows = []
    for row in run.of("build"):
        cells = [row.workload, row.name, row.setting, f"{row.median_s:.2f}", f"{row.extra['construct_s']:.2f}"]
        rows.append([*cells, _gib(row)])
    columns = ("workload", "by", "edges", "first batch, s", "of which making the loader, s", "peak")
    return "From an edge list to the first batch", columns, rows


def _stores(run: Run) -> Table:
    rows = []
    for row in run.of("stores"):
        cells = [row.workload, str(row.gpus), row.setting, f"{row.median_s * 1e3:.3f}", f"{row.edges:.0f}"]
        cells += [f"{row.extra['rows']:.0f}", f"{row.median_s / row.extra['rows'] * 1e9:.2f}", _spread(row)]
        cells += [_between(row, "ratio_from", "ratio_to"), _between(row, "own_low", "own_high")]
        rows.append([*cells, *(f"{row.extra[name] / 2**30:.2f} GiB" for name in ("one_bytes", "more_bytes"))])
    columns = ("workload", "GPUs", "rows, loader", "ms per batch", "edges", "rows", "ns per row", "PyG / DGL, per row")
    more = ("its median, 95 %", "next turn / this one", "first loader takes", "two further ones take")
    return "Loaders over the same rows in a store", (*columns, *more), rows


def _spread(row: Row) -> str:
    """Median and quartiles of ratios over rounds; of training, with loading over without."""
    if "ratio" not in row.extra:
        return ""
    middle, low, high = (f"{row.extra[name]:.3f}" for name in ("ratio", "ratio_low", "ratio_high"))
    return f"{middle} ({low}-{high})"


def _between(row: Row, low: str, high: str) -> str:
    """Two numbers, where they are known."""
    return f"{row.extra[low]:.3f}-{row.extra[high]:.3f}" if low in row.extra else ""


def _scaling(run: Run) -> Table:
    rows = []
    for row in run.rows:
        if row.gpus == 1 or row.part not in ("sampling", "loader", "epoch"):
            continue
        one = [r for r in run.rows if (r.part, r.workload, r.name, r.gpus) == (row.part, row.workload, row.name, 1)]
        ddp = [r for r in one if r.setting == "DDP"]
        one = [r for r in one if r not in ddp and (row.part != "sampling" or r.setting == row.setting)]
        if not one:
            continue
        text = [f"{_efficiency(base[0], row):.2f}" if base else "" for base in (one, ddp)]
        kind = "strong" if row.workload.endswith("strong") else "weak"
        rows.append([row.part, row.workload, row.name, row.setting, str(row.gpus), kind, *text])
    columns = ("part", "workload", "by", "setting", "GPUs", "scaling", "efficiency", "against DDP on one GPU")
    return "Scaling, against one GPU", columns, rows


def _efficiency(one: Row, several: Row) -> float:
    """Time on one GPU over that on several, for each GPU the same work."""
    strong = several.workload.endswith("strong")
    share = one.extra["batches"] / (several.extra["batches"] * several.gpus) if strong else 1.0
    return one.median_s / several.median_s * share


def _limit(run: Run, row: Row, scale: float, unit: str) -> str:
    limit = run.limit_s(row)
    if limit is None:
        return ""
    digits = 0 if unit == "us" else 3
    return f"{limit * scale:.{digits}f} {unit} ({limit / row.median_s:.0%})"


def _ratio(run: Run, row: Row) -> str:
    ratio = run.ratio(row)
    return "" if ratio is None else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _gib(row: Row) -> str:
    return f"{row.extra['peak_bytes'] / 2**30:.1f} GiB" if "peak_bytes" in row.extra else ""


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _missing(run: Run, title: str, bullet: str) -> list[str]:
    lines = []
    for one in run.missing:
        what = f"{one.part} {one.workload}".strip()
        lines.append(f"{bullet}{one.name}, {what}, {one.gpus} GPU{'s' if one.gpus > 1 else ''}: {one.reason}")
    return ["", title, "", *dict.fromkeys(lines)] if lines else []
