"""One rank of ``benchmarks dgl --gpu``: epochs of SAGE under DDP, features sharded over the GPUs by WholeGraph.

Started by torchrun. Prints one line of JSON on rank 0.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import manyhop
from benchmarks.dgl.graphs import FANOUTS, FEATURES, rmat, with_data
from benchmarks.dgl.training import Layers, of_blocks, sage, train
from manyhop_dgl import DataLoader, NeighborSampler


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser()
    for name in ("scale", "num-edges", "rounds", "batches", "batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    world = manyhop.init(timeout=600)
    result = run(**vars(args), device=torch.device("cuda", torch.cuda.current_device()))
    if world.rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    manyhop.shutdown()


def run(
    *, scale: int, num_edges: int, rounds: int, batches: int, batch_size: int, device: torch.device
) -> dict[str, object]:
    """Train on all ranks for ``rounds`` epochs of ``batches`` steps each, after one that does not count."""
    world, on_gpu = manyhop.init(), device.type == "cuda"
    torch.manual_seed(0)  # all ranks make the same graph
    g = with_data(rmat(scale, num_edges, device))
    seeds = torch.randperm(g.num_nodes())[: batch_size * batches * world.world_size]
    sampler = NeighborSampler(FANOUTS, prefetch_node_feats=["feat"], prefetch_labels=["label"])
    options: dict[str, Any] = {"placement": "sharded"} if on_gpu else {}
    loader = DataLoader(g, seeds, sampler, device=device, use_ddp=True, batch_size=batch_size, shuffle=True, **options)
    model = DistributedDataParallel(Layers(sage(FEATURES, len(FANOUTS))).to(device))
    step = train(model, device, of_blocks)
    times, edges, loss = [], 0, torch.zeros(())
    for epoch in range(rounds + 1):
        dist.barrier()
        begin = time.perf_counter()
        for batch in loader:
            loss = step(batch)
            edges += sum(block.num_edges() for block in batch[-1]) if epoch else 0
        if on_gpu:
            torch.cuda.synchronize()
        dist.barrier()
        times.append(time.perf_counter() - begin)
    total = torch.tensor(edges, device=device)
    dist.all_reduce(total)
    seconds = median(times[1:])
    return {
        "ranks": world.world_size,
        "placement": "host" if loader.placement is None else loader.placement.features[0].place,
        "ms": 1e3 * seconds / batches,
        "medges_per_s": int(total) / rounds / seconds / 1e6,
        "loss": float(loss),
    }


if __name__ == "__main__":
    main()
