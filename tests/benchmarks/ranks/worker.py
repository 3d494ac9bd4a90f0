"""One rank of ``benchmarks ranks``: epochs of one loader under DDP, timed. Started by torchrun.

Prints one line of JSON on rank 0: seconds of each epoch (of the slowest rank) and the memory of all ranks together.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
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
from benchmarks.common.graphs import homogeneous
from manyhop.graph import HOMOGENEOUS_EDGE

_CLASSES = 50


def main() -> None:
    """Measure what the command line names."""
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


if __name__ == "__main__":
    main()
