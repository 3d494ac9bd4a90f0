"""Tables of what was measured on GPUs, each figure with the limit of the hardware beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.common import table
from benchmarks.gpu.hardware import limit_seconds
from benchmarks.gpu.job import Missing, Row

EXPLANATION = (
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


def as_markdown(rows: Sequence[Row], missing: Sequence[Missing]) -> list[str]:
    """Return an explanation and all tables that have rows."""
    lines = ["", EXPLANATION]
    for title, part, columns, cells in TABLES:
        found = of_part(rows, part)
        if found:
            head = ("workload", "GPUs", "by", "how", *columns.split(", "), "limit", "manyhop = 1", "peak")
            body = (
                (r.workload, r.gpus, r.name, r.setting, *cells(r), _limit(rows, r), _ratio(rows, r), _peak(r))
                for r in found
            )
            lines += ["", f"## {title}", "", *table(head, body)]
    scaling = _scaling(rows)
    if scaling:
        columns = ("part", "workload", "by", "how", "GPUs", "efficiency", "against DDP on one GPU")
        lines += ["", "## Scaling, against one GPU", "", *table(columns, scaling)]
    if missing:
        lines += ["", "## Not measured", ""]
        for one in missing:
            lines.append(f"- {one.name}, {f'{one.part} {one.workload}'.strip()}, {one.gpus} GPUs: {one.reason}")
    return lines


def of_part(rows: Sequence[Row], part: str) -> list[Row]:
    """Return the rows of one part, of one workload after the other, by number of GPUs, manyhop first."""
    found = [row for row in rows if row.part == part]
    order = {workload: i for i, workload in enumerate(dict.fromkeys(row.workload for row in found))}
    return sorted(found, key=lambda r: (order[r.workload], r.gpus, r.name != "manyhop", r.name))


def _sampling(row: Row) -> tuple[str, ...]:
    alone = f"{row.extra['launch_s'] * 1e6:.1f}" if "launch_s" in row.extra else ""
    return f"{row.median_s * 1e6:.0f}", alone, f"{row.edges:.0f}", f"{row.edges / row.median_s / 1e9:.2f}"


def _moved(row: Row) -> tuple[str, ...]:
    return f"{row.median_s * 1e6:.0f}", f"{row.extra['bytes'] / row.median_s / 1e9:.1f}"


def _loader(row: Row) -> tuple[str, ...]:
    first, construct = (f"{row.extra[name] * 1e3:.1f}" for name in ("first_s", "construct_s"))
    return f"{row.median_s * 1e3:.3f}", first, construct, f"{row.extra['batches']:.0f}", f"{row.edges:.0f}"


def _quartiles(row: Row) -> str:
    return "{ratio:.3f} ({ratio_low:.3f}-{ratio_high:.3f})".format(**row.extra)


def _epoch(row: Row) -> tuple[str, ...]:
    steps = row.extra["batches"]
    times = [f"{1e3 * seconds:.2f}" for seconds in (row.median_s, row.extra["step_s"], row.extra["step_gpu_s"])]
    return f"{row.median_s * steps:.3f}", *times, _quartiles(row), f"{steps:.0f}"


def _stores(row: Row) -> tuple[str, ...]:
    per_row = f"{row.extra['per_row_s'] * 1e9:.2f}"
    return f"{row.median_s * 1e3:.3f}", f"{row.extra['rows']:.0f}", per_row, _quartiles(row)


TABLES: Sequence[tuple[str, str, str, Callable[[Row], tuple[str, ...]]]] = (
    (
        "Limits",
        "limits",
        "G/s of each GPU",
        lambda row: (f"{row.extra['per_s'] / 1e9:.1f}",),
    ),
    ("Sampling", "sampling", "us per batch, launch alone, edges, G edges/s", _sampling),
    ("Gather", "gather", "us, GB/s of each GPU", _moved),
    ("Exchange of rows, of which each GPU has a part", "exchange", "us, GB/s of each GPU", _moved),
    ("Loader, with features", "loader", "ms per batch, first batch, making it, batches per epoch, edges", _loader),
    (
        "GraphSAGE epochs",
        "epoch",
        "epoch in s, ms per step, the step alone, for the GPU, with loading / alone, steps",
        _epoch,
    ),
    ("PyG's and DGL's loaders over the same rows", "stores", "ms per batch, rows, ns per row, PyG / DGL", _stores),
    (
        "From an edge list to the first batch",
        "build",
        "first batch in s, of which making the loader",
        lambda row: (f"{row.median_s:.2f}", f"{row.extra['construct_s']:.2f}"),
    ),
)


def limit_s(rows: Sequence[Row], row: Row) -> float | None:
    """Return the seconds that the hardware needs for what a row does; ``None`` where that was not measured."""
    found = {one.workload: one for gpus in (1, row.gpus) for one in rows if (one.part, one.gpus) == ("limits", gpus)}
    return limit_seconds(row.work, found)


def _limit(rows: Sequence[Row], row: Row) -> str:
    limit = limit_s(rows, row)
    return "" if limit is None else f"{limit * 1e6:.0f} us ({limit / row.median_s:.0%})"


def _ratio(rows: Sequence[Row], row: Row) -> str:
    """Return the time of a row over that of manyhop's fastest at the same, per sampled edge for sampling."""
    same = [r for r in rows if (r.part, r.workload, r.gpus) == (row.part, row.workload, row.gpus)]
    mine = [_cost(r) for r in same if r.name == "manyhop"]
    return "" if row.name == "manyhop" or not mine else f"{_cost(row) / min(mine):.2f}"


def _cost(row: Row) -> float:
    return row.median_s / row.edges if row.edges and row.part == "sampling" else row.median_s


def _peak(row: Row) -> str:
    return f"{row.extra['peak_bytes'] / 2**30:.1f} GiB" if "peak_bytes" in row.extra else ""


def _scaling(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    found = []
    for row in rows:
        if row.gpus == 1 or row.part not in ("sampling", "loader", "epoch"):
            continue
        one = [r for r in rows if (r.part, r.workload, r.name, r.gpus) == (row.part, row.workload, row.name, 1)]
        ddp = [r for r in one if r.setting == "DDP"]
        one = [r for r in one if r not in ddp and (row.part != "sampling" or r.setting == row.setting)]
        if one:
            texts = [f"{_efficiency(base[0], row):.2f}" if base else "" for base in (one, ddp)]
            found.append((row.part, row.workload, row.name, row.setting, row.gpus, *texts))
    return found


def _efficiency(one: Row, several: Row) -> float:
    """Return the time on one GPU over that on several, for each GPU the same work."""
    strong = several.workload.endswith("strong")
    share = one.extra["batches"] / (several.extra["batches"] * several.gpus) if strong else 1.0
    return one.median_s / several.median_s * share
