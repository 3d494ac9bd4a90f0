"""``benchmarks ranks``: epochs under DDP on one machine, beside PyG's own NeighborLoader."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.common.machine import import_peers
from benchmarks.common.report import opening, print_and_save, table
from manyhop.errors import MissingExtraError
from manyhop.system.memory import require_memory

_PEERS = {"torch-sparse": "torch_sparse"}
_COLUMNS = ("loader", "ranks", "loading an epoch, s", "training an epoch, s", "memory of all ranks, GiB")


@dataclass
class _Measured:
    loader: str
    world_size: int
    loading: list[float]
    training: list[float]
    memory: list[int]


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks ranks`` specify; print, save."""
    rows = options.nodes * 4 * options.features + options.edges * 16
    require_memory("This benchmark", 4 * max(options.ranks) * rows, "Use smaller --nodes, --edges or --ranks.")
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        raise MissingExtraError("torch_geometric", "pyg", "benchmarks ranks") from None
    modules, absent = import_peers(_PEERS)
    measured = [_Measured(name, w, [], [], []) for w in options.ranks for name in ("manyhop", *modules)]
    for turn in range(options.rounds):
        for one in measured:
            if sys.stderr.isatty():
                print(f"round {turn + 1}: {one.loader}, {one.world_size} ranks", file=sys.stderr)
            result = _run(one, options)
            one.loading += result["loading"]
            one.training += result["training"]
            one.memory.append(result["memory"])
    lines = _lines(measured, argv)
    lines += [f"Not measured: {peer.name}: {peer.reason}" for peer in absent]
    print_and_save("\n".join(lines) + "\n", options.output, "ranks.md")
    return 0


def _run(one: _Measured, options: argparse.Namespace) -> dict[str, Any]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={one.world_size}"]
    arguments = [f"--loader={one.loader}", "--fanout", *map(str, options.fanout)]
    for name in ("nodes", "edges", "features", "seeds", "batch_size", "workers", "epochs"):
        arguments.append(f"--{name.replace('_', '-')}={getattr(options, name)}")
    done = subprocess.run(
        [*torchrun, "-m", "benchmarks.ranks.worker", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{one.loader} on {one.world_size} ranks failed:\n{done.stdout}{done.stderr}")
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def _lines(measured: list[_Measured], argv: list[str]) -> list[str]:
    lines = [
        *opening("Epochs under DDP on one machine", ["ranks", *argv]),
        "",
        "Medians over all epochs of all rounds; an epoch lasts as long as its slowest rank.",
        "'Loading' only takes the batches, 'training' is GraphSAGE under DDP. Memory that ranks share counts once.",
        "",
        *table(_COLUMNS),
    ]
    for one in measured:
        seconds = f"{median(one.loading):.2f} | {median(one.training):.2f}"
        lines.append(f"| {one.loader} | {one.world_size} | {seconds} | {median(one.memory) / 2**30:.2f} |")
    return lines
