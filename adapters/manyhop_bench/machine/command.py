"""``manyhop bench machine``: the command."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from manyhop.costs import H200, CPUCosts, CuGraphCosts, GPUCosts, Machine, write_machine
from manyhop.errors import MissingExtraError
from manyhop.system import triton_compiler
from manyhop_bench.common.report import opening, table
from manyhop_bench.gpu.record import Run, load
from manyhop_bench.machine.calibrate import base_of, calibrate
from manyhop_bench.machine.compare import as_table, compare, summary


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure, or read records, as the arguments of ``manyhop bench machine`` specify; print, save."""
    machine, lines = H200, ["# Constants of a machine", ""]
    if options.saved:
        for path in options.saved:
            runs = load(path.read_text())
            machine, kept = calibrate(runs, base_of(" ".join(value for run in runs for _, value in run.header)))
            lines += [f"## {path.name}", "", *_report(machine, kept, runs)]
    else:
        machine, found = _measure(options)
        lines = [*opening("Constants of a machine", ["machine", *argv]), "", *found]
    text = "\n".join(lines).rstrip() + "\n"
    print(text, end="")
    if options.output is not None:
        write_machine(machine, options.output)
        print(f"\nSaved {options.output}: pass it to `manyhop plan` as --calibration.")
    return 0


def _measure(options: argparse.Namespace) -> tuple[Machine, list[str]]:
    """Return the constants of this machine, and what to print."""
    try:
        from manyhop_bench.machine.cpu import measure_cpu
    except ModuleNotFoundError as error:
        if error.name != "torch_geometric":
            raise
        raise MissingExtraError("torch_geometric", "pyg", "manyhop bench machine") from None
    cpu, line = measure_cpu(options.nodes, options.edges, options.rounds)
    lines = ["Of the CPU, one thread:", "", *_constants(cpu), "", line]
    if not (torch.cuda.is_available() and triton_compiler.usable()):
        return Machine(name="this machine", cpu=cpu), [*lines, "", "Of a GPU: none was found."]
    name = torch.cuda.get_device_name()
    base = base_of(name)
    measured: dict[str, Any] = {
        "memory": torch.cuda.mem_get_info()[1],
        "products": products_per_s(torch.device("cuda"), torch.float32),
        "half_products": products_per_s(torch.device("cuda"), torch.bfloat16),
    }
    runs = [_gpu_run()]
    known = dataclasses.replace(base, name=name, cpu=cpu, gpu=dataclasses.replace(base.gpu_costs(), **measured))
    machine, kept = calibrate(runs, known)
    kept = [constant for constant in kept if constant not in measured]
    return machine, [*lines, "", f"Of the GPU ({name}; what was not measured is that of an {base.name}):", "",
                     *_report(machine, kept, runs)]  # fmt: skip


def _gpu_run() -> Run:
    """Measure sampling, loaders and steps on a small graph, on one GPU and on all."""
    from manyhop_bench.gpu.command import QUICK, run

    gpus = sorted({1, torch.cuda.device_count()})
    return run(
        dataclasses.replace(QUICK, scalings=("weak",)),
        ("sampling", "loader", "epoch"),
        ("manyhop",),
        gpus,
        300,
        ["--quick", "--only", "sampling", "loader", "epoch", "--contenders", "manyhop"],
        progress=lambda message: print(message, file=sys.stderr),
    )


def products_per_s(device: torch.device, dtype: torch.dtype, *, rows: int = 45_000, channels: int = 256) -> float:
    """Return floating-point operations per second of ``[rows, channels]`` by ``[channels, channels]``."""
    left = torch.ones(rows, channels, device=device, dtype=dtype)
    right = torch.ones(channels, channels, device=device, dtype=dtype)
    out = left @ right
    best = float("inf")
    for _ in range(5):
        _settle(device)
        began = time.perf_counter()
        for _ in range(10):
            torch.mm(left, right, out=out)
        _settle(device)
        best = min(best, (time.perf_counter() - began) / 10)
    return 2 * rows * channels * channels / best


def _settle(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _report(machine: Machine, kept: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Return constants, and predictions beside what was measured."""
    compared = [one for run in runs for one in compare(run, machine)]
    rest = f"Not in the record, so as given: {', '.join(kept)}."
    cugraph = ["No batches that cuGraph samples were measured.", ""]
    if machine.cugraph is not None:
        cugraph = ["Of batches that cuGraph samples:", "", *_constants(machine.cugraph), ""]
    constants = [*_constants(machine.gpu_costs()), "", rest, "", *cugraph]
    return [*constants, *as_table(compared), "", summary(compared), ""]


def _constants(costs: CPUCosts | CuGraphCosts | GPUCosts) -> list[str]:
    """Return the rows of a markdown table."""
    found = dataclasses.asdict(costs)
    return table(("constant", "value"), [(name, f"{value:.4g}") for name, value in found.items()])
