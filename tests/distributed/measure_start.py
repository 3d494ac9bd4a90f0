"""How long ranks take to exchange facts when they start: ``python tests/distributed/measure_start.py --ranks 512``.

A thread with a connection of its own to one TCPStore stands for each rank; a few processes run the threads.
"""

import argparse
import itertools
import multiprocessing
import os
import threading
import time

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a line per connection otherwise

import torch.distributed as dist
from counting_store import CountingStore

from manyhop.ranks.control import FactExchange

STEPS = {  # what a script with one loader exchanges: title -> facts of a rank
    "manyhop.init()": lambda rank: {"node": f"torchrun {rank // 8}", "token": "0" * 32 if rank == 0 else ""},
    "a loader": lambda rank: {f"data {k}": f"float32 [1000000, 128], checksum {k:08x}" for k in range(30)},
    "seed of a loader": lambda rank: {"seed": rank},
}


def run(port, first, count, num_ranks, results):
    """The ranks of one process; the time of each step is that until the last rank has the facts of all."""
    seconds = [dict.fromkeys(STEPS, 0.0) for _ in range(count)]

    def take_part(k):
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        exchange = FactExchange(first + k, num_ranks, store)
        exchange("all are connected", {}, timeout=300.0)
        for title, facts_of in STEPS.items():
            begin = time.monotonic()
            assert len(exchange(title, facts_of(first + k), timeout=300.0)) == num_ranks
            seconds[k][title] = time.monotonic() - begin

    threads = [threading.Thread(target=take_part, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put({title: max(rank[title] for rank in seconds) for title in STEPS})


def operations(num_ranks):
    """Operations of one exchange, without the checks of ranks that wait."""
    store = CountingStore()
    ranks = [FactExchange(rank, num_ranks, store) for rank in range(num_ranks)]
    threads = [threading.Thread(target=rank, args=("x", {}), kwargs={"timeout": 300.0}) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(count for name, count in store.operations.items() if name != "check")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--processes", type=int, default=8)
    args = parser.parse_args()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = multiprocessing.Queue()
    cuts = [args.ranks * p // args.processes for p in range(args.processes + 1)]
    workers = [
        multiprocessing.Process(target=run, args=(server.port, a, b - a, args.ranks, results))
        for a, b in itertools.pairwise(cuts)
    ]
    for worker in workers:
        worker.start()
    seconds = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    print(f"{args.ranks} ranks: {operations(args.ranks)} operations of the store per exchange")
    for title in STEPS:
        print(f"  {title}: {max(found[title] for found in seconds):.2f} s")


if __name__ == "__main__":
    main()
