"""What sharing costs and saves: python tests/distributed/measure_share.py [--gigabytes 1] [--ranks 4]

Prints the memory that a graph takes in one process with a copy of its own and in several ranks that share one, what
share() takes, and how fast rank 0 gathers and samples from shared and from private memory.
"""

import argparse
import time
from pathlib import Path

import torch
from launch import Launcher
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from manyhop.features import BufferPool, RowRequest, gather

WIDTH = 128  # columns of float32: 512 bytes per row


def make_data(gigabytes):
    """Half of the bytes are features, half are edges, 15 per node."""
    num_nodes = int(gigabytes * 2**30 / (4 * WIDTH + 15 * 16))
    return Data(x=torch.rand(num_nodes, WIDTH), edge_index=torch.randint(0, num_nodes, (2, 15 * num_nodes)))


def pss():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def touch(data, sampler):
    """Read a word of every page."""
    for t in (data.x, data.edge_index, *sampler.topology.graph.tables()):
        t.flatten()[:: 4096 // t.element_size()].sum()


def tasks(data):
    """Gathering 100 000 rows of 512 and of 64 bytes, and ten batches of [15, 10, 5], with one thread."""
    torch.manual_seed(0)
    pool, narrow = BufferPool(), data.x.view(-1, 16)
    rows, narrow_rows = (torch.randint(0, len(x), (100_000,)) for x in (data.x, narrow))
    sampler = manyhop_pyg.NeighborSampler(data, [15, 10, 5])
    edges = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    loader = manyhop_pyg.NodeLoader(edges, sampler, torch.arange(10_240), batch_size=1024, seed=1)
    return {
        "gather rows of 512 B": lambda: gather([RowRequest(data.x, rows, name="x")], pool=pool, threads=1),
        "gather rows of 64 B": lambda: gather([RowRequest(narrow, narrow_rows, name="x")], pool=pool, threads=1),
        "sample [15, 10, 5]": lambda: sum(1 for _ in loader),
    }


def speed(data):
    """Milliseconds of each task on private and on shared memory, in turns: the shortest, as others use the machine."""
    torch.set_num_threads(1)
    private, shared = tasks(Data(x=data.x.clone(), edge_index=data.edge_index.clone())), tasks(data)
    times = {name: ([], []) for name in private}
    for _ in range(9):
        for name, of_task in times.items():
            for call, of_memory in zip((private[name], shared[name]), of_task, strict=True):
                began = time.perf_counter()
                call()
                of_memory.append(1000 * (time.perf_counter() - began))
    return {name: tuple(map(min, of_task)) for name, of_task in times.items()}


def rank(gigabytes):
    manyhop.init(timeout=600)
    manyhop_pyg.NeighborSampler(make_data(0.001), [2])  # what is loaded once is loaded now
    before, began = pss(), time.perf_counter()
    data = manyhop_pyg.share(lambda: make_data(gigabytes))
    loaded = time.perf_counter() - began
    alone = torch.distributed.get_world_size() == 1
    sampler = manyhop_pyg.NeighborSampler(data, [2])
    ready = time.perf_counter() - began
    touch(data, sampler)
    torch.distributed.barrier()
    used = pss() - before
    torch.distributed.barrier()
    figures = speed(data) if not alone and torch.distributed.get_rank() == 0 else None
    torch.distributed.barrier()
    return used, loaded, ready, figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    launcher = Launcher()
    try:
        one = launcher.run(rank, options.gigabytes, world_size=1, timeout=600)
        many = launcher.run(rank, options.gigabytes, world_size=options.ranks, timeout=600)
    finally:
        launcher.close()
    for name, results in (("1 process", one), (f"{options.ranks} ranks", many)):
        used, loaded, ready, _ = zip(*results, strict=True)
        memory = f"{sum(used) / 2**30:.3f} GiB together"
        print(f"{name}: {memory}, loaded after {max(loaded):.1f} s, tables after {max(ready):.1f} s")
    print(f"memory: {sum(r[0] for r in many) / one[0][0]:.3f} x one process")
    for name, (private, shared) in many[0][3].items():
        print(f"{name}: private {private:.1f} ms, shared {shared:.1f} ms ({shared / private:.2f} x)")


if __name__ == "__main__":
    main()
