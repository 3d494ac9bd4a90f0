"""Rows from another node, in bytes received per second and rank, beside an all-to-all of as many by gloo or NCCL.

All rows that are asked for are on other nodes. Under torchrun, every rank is a node of its own. Otherwise two ranks are
started on this machine, with ``--device cuda`` on a GPU each, which reach each other over sockets only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

import manyhop
from benchmarks.common import opening, print_and_save, quartiles, reserved_port, table
from manyhop.features import BufferPool, DistributedRows, GPUExchange, RowRequest, pin
from manyhop.features.exchange.host import Exchange
from manyhop.features.sources import ShardedRows, Shards
from manyhop.system.memory import require_memory

_COLUMNS = ("rows, in memory of", "sent to each rank, MB", "manyhop, GB/s", "all-to-all, GB/s", "manyhop / all-to-all")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu", help="whose memory rows come to, by gloo or NCCL")
    add("--rows", type=int, default=1_000_000, help="rows of the tensor")
    add("--ids", type=int, default=50_000, help="random ids per rank and batch")
    add("--features", type=int, nargs="+", default=[128, 32, 512], help="float32 per row")
    add("--rounds", type=int, default=9)
    add("--batches", type=int, default=4, help="per turn")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    require_memory("This benchmark", 8 * options.rows * max(options.features), "Use fewer --rows or --features.")
    if "RANK" in os.environ:
        _be_rank(options, argv)
        return
    with reserved_port() as port:
        ranks = []
        for rank in range(2):
            env = {"RANK": rank, "WORLD_SIZE": 2, "GROUP_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            if options.device == "cuda":  # nodes of their own for NCCL, too, which has sockets only
                env |= {"CUDA_VISIBLE_DEVICES": rank, "NCCL_HOSTID": rank, "NCCL_P2P_DISABLE": 1, "NCCL_SHM_DISABLE": 1}
            command = [sys.executable, "-m", "benchmarks", *argv]
            ranks.append(subprocess.Popen(command, env=os.environ | {k: str(v) for k, v in env.items()}))
        if any([rank.wait() for rank in ranks]):
            raise SystemExit(1)


def _be_rank(options: argparse.Namespace, argv: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ["GROUP_RANK"] = os.environ["RANK"]
    world = manyhop.init()
    places = ("host",) if options.device == "cpu" else ("GPUs", "page-locked")
    rows = [_measure(width, place, options) for place in places for width in options.features]
    if world.rank == 0:
        lines = opening("Exchange of rows between nodes", argv)
        if options.device == "cuda":
            nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
            lines.append(f"- GPU of each node: {torch.cuda.get_device_name()}; NCCL {nccl}")
        lines += [
            "",
            f"{world.world_size} nodes of one rank each, {options.ids} random ids of other nodes per rank and "
            f"batch. Medians over {options.rounds}",
            "rounds; the ratio is that of the same round: median (quartiles).",
            "",
            *table(_COLUMNS),
            *rows,
        ]
        print_and_save("\n".join(lines) + "\n", options.output, "exchange.md")
    manyhop.shutdown()


def _measure(width: int, place: str, options: argparse.Namespace) -> str:
    """One line of the table: rows of so many float32, in host memory, or where GPUs read them."""
    world, device = manyhop.init(), torch.device(options.device)
    mine = Shards(options.rows, world.num_nodes).rows_of(world.node)
    rows = torch.from_numpy(np.ones((len(mine), width), np.float32))  # numpy asks for huge pages
    if place == "page-locked":
        pin(rows)
    exchange = (Exchange if place == "host" else GPUExchange)("the exchange")
    source: ShardedRows | DistributedRows = (
        ShardedRows(rows, options.rows, world)
        if place == "host"
        else DistributedRows(rows.to(device) if place == "GPUs" else rows, options.rows, world)
    )
    pool = BufferPool()
    draw = torch.Generator().manual_seed(world.rank)
    others = options.rows - len(mine)
    batches = [
        ((torch.randint(others, (options.ids,), generator=draw) + mine.stop) % options.rows).to(device)
        for _ in range(options.batches)
    ]

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    number = iter(range(1 << 30))

    def ours() -> None:
        for ids in batches:
            exchange.gather([RowRequest(source, ids)], (0, next(number)), pool=pool)

    ours()
    before = exchange.traffic.bytes_received
    ours()
    each = (exchange.traffic.bytes_received - before) // options.batches
    total = torch.tensor([each], device=device)
    dist.all_reduce(total)  # the same on all ranks: the mean of what one rank receives in a batch
    part = int(total) // world.world_size // (world.world_size - 1)
    splits = [0 if rank == world.rank else part for rank in range(world.world_size)]
    sent = torch.ones(sum(splits), dtype=torch.uint8, device=device)
    received = torch.ones_like(sent)
    group = dist.new_group(backend="gloo" if device.type == "cpu" else "nccl")

    def plain() -> None:
        for _ in batches:
            dist.all_to_all_single(received, sent, splits, splits, group=group)

    seconds: list[list[float]] = [[], []]
    plain()
    for turn in range(options.rounds):
        for k in (0, 1) if turn % 2 == 0 else (1, 0):
            finish()
            began = time.perf_counter()
            (ours, plain)[k]()
            finish()
            seconds[k].append((time.perf_counter() - began) / options.batches)
    speed = [sum(splits) / np.median(s) / 1e9 for s in seconds]
    exchange.close()
    cells = [f"{4 * width} bytes, {place}", f"{sum(splits) / 1e6:.1f}", f"{speed[0]:.2f}", f"{speed[1]:.2f}"]
    return f"| {' | '.join([*cells, quartiles(np.divide(seconds[1], seconds[0]))])} |"
