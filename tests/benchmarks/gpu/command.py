"""``benchmarks gpu``: the command. Each contender is measured in processes of its own, one after the other."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.common.machine import describe
from benchmarks.gpu.job import Job, Missing, Row
from benchmarks.gpu.plot import as_svg
from benchmarks.gpu.record import Run, dump, join, load
from benchmarks.gpu.report import as_markdown, as_text
from benchmarks.gpu.schedule import run_jobs
from benchmarks.names import CONTENDERS, PARTS
from manyhop.errors import InputError
from manyhop.ranks import cuda
from manyhop.system import triton_compiler

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "WholeGraph": ("pylibwholegraph",),
    "pylibcugraph": ("pylibcugraph", "cupy", "rmm"),
    "cuGraph-PyG": ("cugraph_pyg", "pylibwholegraph", "cupy", "rmm", "torch_geometric"),
    "PyG": ("torch_geometric",),
}
"""What has to be installed for it."""

STANDARD = Job(
    contender="",
    parts=(),
    num_nodes=1 << 24,
    num_edges=1 << 28,
    fanouts=((15, 10, 5), (10, 10)),
    rounds=5,
    merged=(1, 4, 16),
    sampling_batches=64,
    gather_bytes=512 << 20,
    gather_table=8 << 30,
    row_bytes=(32, 64, 128, 256, 512, 1024, 2048, 4096),
    memories=(),
    epoch_batches=128,
    epochs=5,
    hidden=(256, 512),
    strong_batches=128,
    results="",
)
QUICK = dataclasses.replace(
    STANDARD,
    num_nodes=1 << 20,
    num_edges=1 << 24,
    rounds=5,
    sampling_batches=32,
    gather_bytes=128 << 20,
    gather_table=1 << 30,
    row_bytes=(64, 128, 512, 2048),
    epoch_batches=32,
    epochs=2,
    strong_batches=32,
)
PAPERS = dataclasses.replace(
    STANDARD,
    num_nodes=111_059_956,
    num_edges=1_615_685_872,
    fanouts=((15, 10, 5),),
    rounds=5,
    sampling_batches=64,
    epoch_batches=128,
    epochs=1,
    hidden=(256,),
    half=True,
    scalings=("strong",),
    strong_batches=1172,  # 1.2 million seeds
)


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks gpu`` specify; print, save."""

    def keep(run: Run) -> None:
        if options.output is not None:
            _save([run], options.output)

    if options.saved:
        runs = join([run for path in options.saved for run in load(path.read_text())])
    else:
        there = torch.cuda.device_count()
        gpus = options.gpus or sorted({1, there})
        if there == 0:
            raise InputError("Expected an NVIDIA GPU that torch can use, found none: `manyhop doctor` says why.")
        if min(gpus) < 1 or max(gpus) > there:
            raise InputError(f"Expected --gpus with numbers from 1 to {there}, got {gpus}.")
        triton_compiler.require("benchmarks gpu")
        template = QUICK if options.quick else PAPERS if options.papers else STANDARD
        chosen = options.contenders or list(CONTENDERS)
        parts = options.only or PARTS[1:]
        runs = [
            run(
                template,
                parts,
                chosen,
                gpus,
                options.timeout,
                argv,
                side_by_side=options.side_by_side,
                budget=options.budget,
                progress=_Progress(),
                keep=keep,
            )
        ]
    print(as_text(runs), end="")
    if options.output is not None:
        _save(runs, options.output)
        print(f"\nSaved gpu.json, gpu.md and gpu.svg in {options.output}")
    return 0


def run(
    template: Job,
    parts: Sequence[str],
    contenders: Sequence[str],
    gpus: Sequence[int],
    timeout: float,
    argv: list[str],
    *,
    side_by_side: bool = False,
    budget: float = math.inf,
    progress: Callable[[str], None] = lambda message: None,
    keep: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Measure some contenders at some parts, on some numbers of GPUs; ``keep`` is given what is there so far.

    What is not done after ``budget`` seconds is missing.
    """
    deadline = time.monotonic() + budget
    rows: list[Row] = []
    missing: list[Missing] = []
    size = f"{template.num_nodes:,} nodes, {template.num_edges:,} edges, batches of {template.batch_size:,}"
    found = Run(
        title=f"{size}, {template.num_features} features of {'16' if template.half else '32'} bits",
        header=[*describe(["gpu", *argv]), *_describe_gpus(template.device, side_by_side)],
        rows=rows,
        missing=missing,
    )
    there = torch.cuda.device_count() if template.device == "cuda" else max(2, *gpus)
    with tempfile.TemporaryDirectory() as folder:
        for k, number in enumerate(gpus):
            now = time.monotonic()
            jobs, absent = _jobs(template, contenders, parts, number, folder)
            missing += absent
            hardware = _job(template, "hardware", ("limits",), number, folder)
            at_once = there // number if side_by_side else 1
            for more, lost in run_jobs(
                [hardware, *jobs],
                timeout=timeout,
                deadline=now + (deadline - now) / (len(gpus) - k),  # the same for each number, and what is left over
                num_gpus=there,
                at_once=at_once,
                progress=progress,
            ):
                rows += more
                missing += lost
                keep(found)
    return found


def _jobs(
    template: Job, contenders: Sequence[str], parts: Sequence[str], gpus: int, folder: str
) -> tuple[list[Job], list[Missing]]:
    """What is run with so many GPUs, and who cannot; loaders first, as they matter most."""
    jobs: list[Job] = []
    missing: list[Missing] = []
    groups = [("loader", "epoch"), ("sampling",), ("gather",)]
    if gpus > 1:
        groups[1:] = [("sampling", "gather")]  # fewer processes to start: they cannot run side by side
    else:
        groups.append(("build",))
    groups.append(("stores",))
    for group in groups:
        for contender in contenders:
            mine = tuple(part for part in CONTENDERS[contender] if part in parts and part in group)
            if not mine or (contender == "torch" and gpus > 1):  # which does not know of other GPUs
                continue
            absent = [name for name in _NEEDS.get(contender, ()) if importlib.util.find_spec(name) is None]
            if absent:
                reason = f"{', '.join(absent)} cannot be imported"
                missing += [Missing(name=contender, reason=reason, part=part, gpus=gpus) for part in mine]
            else:
                jobs.append(_job(template, contender, mine, gpus, folder))
    jobs.sort(key=lambda job: job.contender == "PyG")  # which takes longest comes last
    return jobs, missing


def _job(template: Job, contender: str, parts: tuple[str, ...], gpus: int, folder: str) -> Job:
    placements: tuple[str, ...] = ("replica",)
    spread = "replica, cuGraph"
    if contender == "manyhop":
        placements += ("replica, padded", "replica, captured", "replica, DDP")
    if gpus > 1:
        placements = {"cuGraph-PyG": ("sharded",), "PyG": ("replica",)}.get(contender, ("sharded", "replica"))
        if contender == "manyhop":
            placements += ("distributed", "sharded, captured")
        spread = "sharded, cuGraph"
        template = dataclasses.replace(template, merged=template.merged[::2], row_bytes=template.row_bytes[2::2])
    if contender == "manyhop" and template.device == "cuda" and cuda.has_cugraph():
        placements += (spread,)
    if contender == "cuGraph-PyG":
        template = dataclasses.replace(template, epochs=min(template.epochs, 3))
    if contender == "PyG":  # which takes long
        template = dataclasses.replace(template, epochs=1, hidden=template.hidden[:1], scalings=template.scalings[:1])
    return dataclasses.replace(
        template,
        contender=contender,
        parts=parts,
        gpus=gpus,
        memories=("device", "pinned") if gpus == 1 else ("sharded",),
        placements=placements,
        results=f"{folder}/{contender}-{gpus}-{'-'.join(parts)}",
    )


def _describe_gpus(device: str, side_by_side: bool) -> list[tuple[str, str]]:
    if device != "cuda":
        return [("GPU", "none")]
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    at_once = "; measurements of fewer GPUs at the same time, each on GPUs of its own" if side_by_side else ""
    return [("GPU", f"{kinds}; CUDA {torch.version.cuda}{at_once}")]


class _Progress:
    """One line on stderr for each process that has ended."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, message: str) -> None:
        print(f"{time.monotonic() - self._began:4.0f} s  {message}", file=sys.stderr, flush=True)


def _save(runs: Sequence[Run], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(dump(runs))
    (folder / "gpu.md").write_text(as_markdown(runs, "gpu.svg"))
    (folder / "gpu.svg").write_text(as_svg(runs))
