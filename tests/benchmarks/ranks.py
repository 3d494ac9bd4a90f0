"""Epochs of a GraphSAGE under DDP: manyhop over shared memory with ``distributed=True``, beside PyG with torch-sparse.

PyG's ranks load the data each, and take their part of the seeds. Started by torchrun, in turns; memory that ranks share
counts once. ``python -m benchmarks.ranks --loader ...`` is one rank.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch_geometric.loader
import torch_geometric.typing as pyg_typing
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import manyhop
import manyhop_pyg
from benchmarks.common import homogeneous, opening, print_and_save, table
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop.system.memory import require_memory

_CLASSES = 50


def _be_rank() -> None:
    """Print a line of JSON on rank 0: seconds of each epoch, of the slowest rank, and the memory of all ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=("manyhop", "torch-sparse"), required=True)
    for name in ("nodes", "edges", "features", "seeds", "batch-size", "workers", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--fanout", type=int, nargs="+", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    manyhop.init(timeout=600)
    data, loader = _manyhop(args) if args.loader == "manyhop" else _pyg(args)
    model = DistributedDataParallel(GraphSAGE(args.features, 64, len(args.fanout), _CLASSES))
    optimizer = torch.optim.Adam(model.parameters())
    _epoch(loader, None, None)
    _epoch(loader, model, optimizer)
    loading = [_epoch(loader, None, None) for _ in range(args.epochs)]
    training = [_epoch(loader, model, optimizer) for _ in range(args.epochs)]
    memory = torch.tensor(float(_own_share_of_memory()))
    dist.all_reduce(memory)
    if dist.get_rank() == 0:
        print(json.dumps({"loading": loading, "training": training, "memory": int(memory)}), flush=True)
    dist.barrier()
    del loader, data
    manyhop.shutdown()


def _load(args: argparse.Namespace) -> Data:
    graph = homogeneous(args.nodes, args.edges, attributes=False)
    torch.manual_seed(0)
    return Data(
        edge_index=graph.edge_index[HOMOGENEOUS_EDGE],
        x=torch.rand(args.nodes, args.features),
        y=torch.randint(_CLASSES, (args.nodes,)),
        num_nodes=args.nodes,
    )


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "num_neighbors": args.fanout,
        "batch_size": args.batch_size,
        "shuffle": True,
        "is_sorted": True,
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
    }


def _manyhop(args: argparse.Namespace) -> tuple[Any, Any]:
    data = manyhop_pyg.share(lambda: _load(args))
    seeds = torch.arange(args.seeds)
    return data, manyhop_pyg.NeighborLoader(data, input_nodes=seeds, distributed=True, **_options(args))


def _pyg(args: argparse.Namespace) -> tuple[Any, Any]:
    """As PyG's DDP examples do it: every rank loads the data and takes its part of the seeds."""
    pyg_typing.WITH_PYG_LIB = False  # which PyG would prefer
    data = _load(args)
    seeds = torch.arange(args.seeds).chunk(dist.get_world_size())[dist.get_rank()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        return data, torch_geometric.loader.NeighborLoader(data, input_nodes=seeds, **_options(args))


def _epoch(loader: Any, model: Any, optimizer: Any) -> float:
    """Seconds of one epoch, of the slowest rank; without a model the batches are only loaded."""
    dist.barrier()
    start = time.perf_counter()
    for batch in loader:
        if model is not None:
            n = batch.batch_size
            loss = torch.nn.functional.cross_entropy(model(batch.x, batch.edge_index)[:n], batch.y[:n])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # of torch
            optimizer.step()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def _own_share_of_memory() -> int:
    """Bytes of this process and its children, where memory that processes share counts once in all."""
    me = Path("/proc/self/task")
    children = [pid for task in me.iterdir() for pid in (task / "children").read_text().split()]
    total = 0
    for pid in ("self", *children):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


_COLUMNS = ("loader", "ranks", "loading an epoch, s", "training an epoch, s", "memory of all ranks, GiB")


@dataclass
class _Measured:
    loader: str
    world_size: int
    loading: list[float]
    training: list[float]
    memory: list[int]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10])
    for name, value in {"nodes": 1_000_000, "edges": 15_000_000, "features": 128, "seeds": 20_480}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"batch-size": 1024, "workers": 0, "epochs": 3, "rounds": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)


def main(options: argparse.Namespace, argv: list[str]) -> None:
    rows = options.nodes * 4 * options.features + options.edges * 16
    require_memory("This benchmark", 4 * max(options.ranks) * rows, "Use smaller --nodes, --edges or --ranks.")
    names = ["manyhop", *(["torch-sparse"] if pyg_typing.WITH_TORCH_SPARSE else [])]
    measured = [_Measured(name, w, [], [], []) for w in options.ranks for name in names]
    for _ in range(options.rounds):
        for one in measured:
            result = _run(one, options)
            one.loading += result["loading"]
            one.training += result["training"]
            one.memory.append(result["memory"])
    lines = _lines(measured, argv)
    lines += [] if len(names) == 2 else ["Not measured: torch-sparse, which is not installed"]
    print_and_save("\n".join(lines) + "\n", options.output, "ranks.md")


def _run(one: _Measured, options: argparse.Namespace) -> dict[str, Any]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={one.world_size}"]
    arguments = [f"--loader={one.loader}", "--fanout", *map(str, options.fanout)]
    for name in ("nodes", "edges", "features", "seeds", "batch_size", "workers", "epochs"):
        arguments.append(f"--{name.replace('_', '-')}={getattr(options, name)}")
    done = subprocess.run(
        [*torchrun, "-m", "benchmarks.ranks", *arguments],
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
        *opening("Epochs under DDP on one machine", argv),
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


if __name__ == "__main__":
    _be_rank()
