"""Ranks that sample together, or by themselves, as processes that exchange ids, rows and gradients over gloo.

PYTHONPATH=tests torchrun --nproc-per-node 4 tests/benchmarks/records/cooperative_ranks.py [FOLDER ...]

Prints what a rank receives per step from the others, counted where it is received, and the time of a step: sampling and
exchanges, without layers. The rules of both ways are in tests/benchmarks/records/cooperative.md.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from benchmarks.partition import communities, owners_of, random_order, seeds_of

from manyhop.files import open_graph
from manyhop.sampling import BatchKey, NeighborSpec, NodeRequest
from manyhop.sampling.engines import engine_for
from manyhop_tools.convert.renumber import metis_order

FANOUTS, BATCH_SIZE, STEPS, WIDTH, HIDDEN = (10, 10), 1024, 8, 128, 128


class Ranks:
    """Exchanges of this rank, and the bytes that it has received from others."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.received = dict.fromkeys(("ids", "features", "hidden rows", "gradients"), 0)

    def exchange(self, parts, kind):
        """Send a part to each rank; return what each has sent."""
        counts = torch.tensor([len(part) for part in parts])
        got = torch.empty_like(counts)
        dist.all_to_all_single(got, counts)
        out = parts[0].new_empty((int(got.sum()), *parts[0].shape[1:]))
        dist.all_to_all_single(out, torch.cat(parts), got.tolist(), counts.tolist())
        parts = out.split(got.tolist())
        self.received[kind] += sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        return parts

    def ask(self, nodes, owner):
        """Send nodes to their owners. Return the nodes that others ask of this rank, and how many it asks of each."""
        asked = [nodes[owner[nodes] == rank] for rank in range(self.size)]
        return self.exchange(asked, "ids"), [len(part) for part in asked]


class Sampler:
    """Samples hops around nodes of all types, which are numbered one type after the other."""

    def __init__(self, graph):
        self.types, counts = list(graph.num_nodes), list(graph.num_nodes.values())
        self.begin = dict(zip(self.types, [0, *torch.tensor(counts).cumsum(0).tolist()], strict=False))
        self.count = graph.num_nodes
        specs = [{t: fanouts for t in graph.edge_types} for fanouts in (*[(k,) for k in FANOUTS], FANOUTS)]
        self.engines = [engine_for(graph, NeighborSpec(fanouts=spec, expand="all")) for spec in specs]

    def __call__(self, hop, nodes, key):
        """Return the nodes of a sample of one hop; of all, where ``hop`` is -1."""
        seeds = {}
        for t in self.types:
            own = nodes[(nodes >= self.begin[t]) & (nodes < self.begin[t] + self.count[t])] - self.begin[t]
            if len(own):
                seeds[t] = own
        sample = self.engines[hop].sample(NodeRequest(key=key, seeds=seeds))
        return torch.cat([sample.node[t] + self.begin[t] for t in self.types]).unique()


def alone(ranks, sampler, owner, rows, seeds, key):
    """One step of a rank that samples around its own seeds: features of all nodes that others hold."""
    nodes = sampler(-1, seeds, key)
    wanted, _ = ranks.ask(nodes[owner[nodes] != ranks.rank], owner)
    ranks.exchange([rows[part] for part in wanted], "features")


def together(ranks, sampler, owner, rows, seeds, key):
    """One step of all ranks: each samples for its own nodes, and has the rows of others' nodes sent."""
    got, _ = ranks.ask(seeds, owner)
    known, layers = torch.cat(list(got)).unique(), []
    for hop in range(len(FANOUTS)):
        nodes = sampler(hop, known, key._replace(seed=hop * ranks.size + ranks.rank))
        mine = owner[nodes] == ranks.rank
        layers.append(ranks.ask(nodes[~mine], owner))
        known = torch.cat([known, nodes[mine], *layers[-1][0]]).unique()
    wanted, _ = layers.pop()
    ranks.exchange([rows[part] for part in wanted], "features")
    for wanted, asked in reversed(layers):
        ranks.exchange([rows.new_zeros(len(part), HIDDEN) for part in wanted], "hidden rows")
        ranks.exchange([rows.new_zeros(number, HIDDEN) for number in asked], "gradients")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = Ranks()
    with tempfile.TemporaryDirectory() as scratch:
        for folder in [communities(Path(scratch) / "communities", 200_000), *sys.argv[1:]]:
            stored = open_graph(folder)
            sampler, metis = Sampler(stored.build()), metis_order(stored, ranks.size, lambda line: None)
            for title, order, own in (
                ("random", random_order(stored), False),
                ("METIS", metis, False),
                ("METIS", metis, True),
            ):
                owners = owners_of(stored, order, ranks.size)
                owner = torch.cat([torch.from_numpy(owners[t]) for t in sampler.types])
                rows = torch.zeros(len(owner), WIDTH)
                seeds = [
                    ids + sampler.begin[t]
                    for rank, t, ids in seeds_of(owners, own, BATCH_SIZE, STEPS)
                    if rank == ranks.rank
                ]
                for way in (alone, together):
                    measure(
                        ranks, way, (sampler, owner, rows), seeds, f"{Path(folder).name}, {title}, own seeds: {own}"
                    )
    dist.destroy_process_group()


def measure(ranks, way, arguments, seeds, title):
    """Print what steps take, on average over the ranks."""
    steps = torch.tensor(len(seeds))
    dist.all_reduce(steps, dist.ReduceOp.MIN)  # in which all ranks have seeds
    seconds, ranks.received = [], dict.fromkeys(ranks.received, 0)
    for number in range(int(steps)):
        dist.barrier()
        begin = time.perf_counter()
        way(ranks, *arguments, seeds[number], BatchKey(0, 0, number * ranks.size + ranks.rank))
        seconds.append(time.perf_counter() - begin)
    total = torch.tensor([*ranks.received.values()]) / int(steps) / ranks.size
    dist.all_reduce(total)
    if ranks.rank == 0:
        sizes = dict(zip(ranks.received, (8, 4 * WIDTH, 4 * HIDDEN, 4 * HIDDEN), strict=True))
        parts = ", ".join(f"{n / sizes[kind]:,.0f} {kind}" for kind, n in zip(sizes, total.tolist(), strict=True) if n)
        print(
            f"{title}, {way.__name__}: {parts}; {total.sum() / 1e6:.2f} MB; {1e3 * statistics.median(seconds):.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
