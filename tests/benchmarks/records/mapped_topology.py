"""Sampling from a topology in files that exceed the memory of a process: `python mapped_topology.py FOLDER`, as root.

A control group has 1 GiB, page cache included; the neighbours of 20 million nodes take 3 GiB. Neighbours are skewed:
half of them are among an eighth of the nodes. Each way to read has a process of its own; ways take turns.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from benchmarks.disk import memory_limit

from manyhop import files
from manyhop.graph import HOMOGENEOUS_EDGE as EDGE
from manyhop.graph import HOMOGENEOUS_NODE as NODE
from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop.sampling.cpu import paging, sampler

NODES, DEGREE, FANOUTS, LIMIT = 20_000_000, 40, (10, 10), 1 << 30
AHEAD, SINGLE, TOGETHER = "as the system reads ahead", "single pages", "single pages, asked for together"
CACHED = "no limit, all in the page cache"
SLOW = (AHEAD, 1, 16, 20)  # of 16 seeds: a batch of 256 would take minutes
WAYS = [(SINGLE, 1, 256, 6), (SINGLE, 8, 256, 6), (TOGETHER, 1, 256, 6), (TOGETHER, 2, 256, 6)]
ROUNDS = 5


def write(folder):
    rng = np.random.default_rng(0)
    row = np.lib.format.open_memmap(folder / "row.npy", "w+", np.int32, (NODES * DEGREE,))
    for begin in range(0, len(row), 1 << 24):
        part = row[begin : begin + (1 << 24)]
        part[:] = rng.random(len(part), dtype=np.float32) ** 3 * (NODES - 1)
    row.flush()
    np.save(folder / "colptr.npy", np.arange(NODES + 1) * DEGREE)


def measure(folder, processes, way, threads, seeds, seconds):
    if processes is not None:
        Path(processes).write_text(str(os.getpid()))
    paging.available_memory = lambda: LIMIT if way != CACHED else 1 << 40
    found = sampler.pages_edges
    if way == AHEAD:
        sampler.pages_edges = lambda graph: False
    elif way == SINGLE:
        sampler.pages_edges = lambda graph: found(graph) and False
    tables = {}
    for name in ("row", "colptr"):
        path = folder / f"{name}.npy"
        with open(path, "rb") as file:
            if way == CACHED:
                while file.read(1 << 24):
                    pass
            else:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        tables[name] = files.open(path).mapped()
    made = CPUSampler(build_graph({NODE: NODES}, {EDGE: EdgeInput(**tables)}), NeighborSpec(fanouts={EDGE: FANOUTS}))

    def work(rank, end, edges):
        rng = np.random.default_rng(rank)
        while time.perf_counter() < end:
            ids = torch.from_numpy(rng.choice(NODES, seeds, replace=False))
            sample = made.sample(NodeRequest(key=BatchKey(0, rank, edges[rank]), seeds={NODE: ids}))
            edges[rank] += sample.row[EDGE].numel()

    for _ in range(2):  # the first time fills the page cache
        begin, edges = time.perf_counter(), [0] * threads
        crew = [threading.Thread(target=work, args=(k, begin + seconds, edges)) for k in range(threads)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        rate = sum(edges) / (time.perf_counter() - begin)
    print(f"{way}, threads: {threads}: {rate:,.0f} edges/s", flush=True)


def main():
    folder = Path(sys.argv[1])
    if len(sys.argv) == 3:
        measure(folder, *json.loads(sys.argv[2]))
        return
    if not (folder / "colptr.npy").exists():
        write(folder)
    with memory_limit(LIMIT) as processes:
        for way in [SLOW, *WAYS * ROUNDS]:
            subprocess.run([sys.executable, __file__, folder, json.dumps([str(processes), *way])], check=True)
    for _ in range(ROUNDS):
        subprocess.run([sys.executable, __file__, folder, json.dumps([None, CACHED, 1, 256, 6])], check=True)


if __name__ == "__main__":
    main()
