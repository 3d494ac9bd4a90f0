"""Sampling, gathers, loaders and epochs on GPUs, each contender in processes of its own, one after the other."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.common import opening, print_and_save, reserved_port
from benchmarks.gpu.job import Job, Missing, Row, read_results
from benchmarks.gpu.report import as_markdown
from manyhop.errors import InputError
from manyhop.ranks import cuda
from manyhop.system import triton_compiler
from manyhop.system.allocator import SETTING, VARIABLES

CONTENDERS: Mapping[str, tuple[str, ...]] = {
    "manyhop": ("sampling", "gather", "loader", "epoch", "stores", "build"),
    "WholeGraph": ("gather",),
    "torch": ("gather",),
    "cuGraph-PyG": ("loader", "epoch"),
}
"""Who is measured, at which parts."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "WholeGraph": ("pylibwholegraph",),
    "cuGraph-PyG": ("cugraph_pyg", "pylibwholegraph", "cupy", "rmm", "torch_geometric"),
}

GROUPS = (("loader", "epoch"), ("sampling",), ("gather",), ("stores",), ("build",))
"""Parts that share processes; loaders first, as they matter most."""

_INTERRUPTED = "interrupted"

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
    epochs=1,
    hidden=(256,),
    half=True,
    scalings=("strong",),
    strong_batches=1172,  # 1.2 million seeds
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only", nargs="+", choices=CONTENDERS["manyhop"], help="measure these parts alone")
    add("--contenders", nargs="+", choices=tuple(CONTENDERS), help="measure these alone")
    add("--gpus", type=int, nargs="+", help="numbers of GPUs (1, and all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="1 million nodes, 17 million edges, fewer rounds")
    size.add_argument("--papers", action="store_true", help="111 million nodes, 1.6 billion edges, float16 features")
    add("--timeout", type=int, default=300, help="seconds for each contender (300)")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    there = torch.cuda.device_count()
    if there == 0:
        raise InputError("Expected an NVIDIA GPU that torch can use, found none: `manyhop doctor` says why.")
    gpus = options.gpus or sorted({1, there})
    if min(gpus) < 1 or max(gpus) > there:
        raise InputError(f"Expected --gpus with numbers from 1 to {there}, got {gpus}.")
    triton_compiler.require("benchmarks gpu")
    template = QUICK if options.quick else PAPERS if options.papers else STANDARD
    parts, chosen = options.only or CONTENDERS["manyhop"], options.contenders or list(CONTENDERS)
    rows, missing = run(template, parts, chosen, gpus, options.timeout)
    title = f"{template.num_nodes:,} nodes, {template.num_edges:,} edges, batches of {template.batch_size:,}, "
    title += f"{template.num_features} features of {'16' if template.half else '32'} bits"
    lines = opening(f"manyhop on GPUs: {title}", argv)
    lines.append(f"- GPU: {there} x {torch.cuda.get_device_name()}; CUDA {torch.version.cuda}")
    print_and_save("\n".join([*lines, *as_markdown(rows, missing)]) + "\n", options.output, "gpu.md")
    if options.output is not None:
        (options.output / "gpu.json").write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")


def run(
    template: Job, parts: Sequence[str], contenders: Sequence[str], gpus: Sequence[int], timeout: float
) -> tuple[list[Row], list[Missing]]:
    """Measure some contenders at some parts, on some numbers of GPUs."""
    rows: list[Row] = []
    missing: list[Missing] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in gpus:
            jobs, absent = _jobs(template, contenders, parts, number, folder)
            missing += absent
            for job in [_job(template, "hardware", ("limits",), number, folder), *jobs]:
                try:
                    failure = launch(job, timeout)
                except KeyboardInterrupt:  # what was measured is reported
                    failure = _INTERRUPTED
                results = Path(job.results)
                more, lost = read_results(results.read_text() if results.exists() else "")
                if failure is not None:
                    reported = {line.part for line in more} | {line.part for line in lost}
                    rest = [part for part in job.parts if part not in reported] or [job.parts[-1]]
                    lost += [Missing(name=job.contender, reason=failure, part=part, gpus=number) for part in rest]
                rows += more
                missing += lost
                if failure == _INTERRUPTED:
                    return rows, missing
                took = f"{time.monotonic() - began:4.0f} s"
                print(f"{took}  {job.contender}, {number} GPUs: {', '.join(job.parts)}", file=sys.stderr, flush=True)
    return rows, missing


def _jobs(
    template: Job, contenders: Sequence[str], parts: Sequence[str], gpus: int, folder: str
) -> tuple[list[Job], list[Missing]]:
    jobs: list[Job] = []
    missing: list[Missing] = []
    for group in GROUPS if gpus == 1 else GROUPS[:-1]:
        for contender in contenders:
            mine = tuple(part for part in CONTENDERS[contender] if part in parts and part in group)
            if not mine or (contender == "torch" and gpus > 1):  # which does not know of other GPUs
                continue
            absent = [name for name in NEEDS.get(contender, ()) if importlib.util.find_spec(name) is None]
            if absent:
                reason = f"{', '.join(absent)} cannot be imported"
                missing += [Missing(name=contender, reason=reason, part=part, gpus=gpus) for part in mine]
            else:
                jobs.append(_job(template, contender, mine, gpus, folder))
    return jobs, missing


def _job(template: Job, contender: str, parts: tuple[str, ...], gpus: int, folder: str) -> Job:
    ours = contender == "manyhop"
    placements: tuple[str, ...] = ("replica",)
    if ours and gpus == 1:
        placements += ("replica, padded", "replica, captured", "replica, DDP")
    if gpus > 1:
        placements = ("sharded", "replica", "distributed", "sharded, captured") if ours else ("sharded",)
        template = dataclasses.replace(template, merged=template.merged[::2], row_bytes=template.row_bytes[2::2])
    if ours and template.device == "cuda" and cuda.has_cugraph():
        placements += (f"{'sharded' if gpus > 1 else 'replica'}, cuGraph",)
    if contender == "cuGraph-PyG":
        template = dataclasses.replace(template, epochs=min(template.epochs, 3))
    return dataclasses.replace(
        template,
        contender=contender,
        parts=parts,
        gpus=gpus,
        memories=("device",) if contender == "torch" else ("device", "pinned") if gpus == 1 else ("sharded",),
        placements=placements,
        results=f"{folder}/{contender}-{gpus}-{'-'.join(parts)}",
    )


def launch(job: Job, timeout: float) -> str | None:
    """Run a job to its end: ``None``, or what became of the first process that did not end well."""
    count = 1 if job.contender == "hardware" else job.gpus
    with reserved_port() as port, tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(rank) for rank in range(count)]
        processes = []
        for rank, log in enumerate(logs):
            env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
            env |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_PORT": str(port)}
            if job.device == "cpu":  # the flow, without a GPU
                env |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
            if job.contender != "manyhop" and env.get(VARIABLES[0]) == SETTING:
                env[VARIABLES[0]] = "expandable_segments:False"  # torch's default, which importing manyhop has changed
            command = [sys.executable, "-m", "benchmarks.gpu.worker", job.to_json()]
            with log.open("w") as output:
                processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env))
        deadline, failed = time.monotonic() + timeout, None
        try:
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                bad = [rank for rank, process in enumerate(processes) if process.poll()]
                if bad and failed is None:
                    failed, deadline = bad[0], min(deadline, time.monotonic() + 10)  # the other ranks have ten seconds
                time.sleep(0.05)
        finally:
            late = [process for process in processes if process.poll() is None]
            for process in late:
                process.kill()
                process.wait()
        if failed is None and late:
            return f"was ended after {timeout:.0f} s"
        failed = (
            next((rank for rank, process in enumerate(processes) if process.returncode), None)
            if failed is None
            else failed
        )
        if failed is None:
            return None
        lines = logs[failed].read_text(errors="replace").strip().splitlines()
        return f"ended with status {processes[failed].returncode}: {' / '.join(lines[-2:])[-300:]}"
