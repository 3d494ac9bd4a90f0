"""Loaders over one graph with its topology in each place; cuGraph's memory, and loaders that share its calls.

``PYTHONPATH=tests torchrun --nproc-per-node 2 tests/benchmarks/records/topologies.py``, or ``python`` for one GPU. The
graph is that of ``python tests/benchmarks gpu --quick``; rows are on each GPU.
"""

import argparse
import statistics
import time

import torch
from benchmarks.gpu.graphs import GPUGraph, draw_features, draw_labels, draw_seeds, rmat
from benchmarks.gpu.hardware import Ranks

import manyhop
from manyhop_cugraph.engine import CuGraphSampler
from manyhop_cugraph.graph import SpreadGraph
from manyhop_cugraph.scheduler import Scheduler
from manyhop_pyg import FeatureStore, GraphStore, NeighborLoader

FANOUTS, BATCH, ROUNDS = ([15, 10, 5], [10, 10]), 1024, 3
PLACES = {
    "on each GPU": ("device", {}),
    "sharded over the GPUs": ("sharded", {}),
    "pinned": ("pinned", {}),
    "cuGraph": ("process", {"engine": "cugraph"}),
}


def stores(graph, place):
    features, edges = FeatureStore(), GraphStore(placement=place)
    size, device = (graph.num_nodes, graph.num_nodes), graph.row.device
    edges.put_edge_index((graph.row.cpu(), graph.colptr.cpu()), edge_type=None, layout="csc", size=size)
    rows = {
        "x": draw_features(graph.num_nodes, 128, torch.float32, device),
        "y": draw_labels(graph.num_nodes, 172, device),
    }
    for name, tensor in rows.items():
        features.put_tensor(tensor, group_name=None, attr_name=name, index=None)
    return features, edges


def loader(data, fanout, seeds, options):
    return NeighborLoader(
        data,
        fanout,
        input_nodes=seeds.flatten().cpu(),
        batch_size=BATCH,
        shuffle=True,
        device="cuda",
        distributed=True,
        **options,
    )


def median_ms(ranks, epoch):
    epoch()
    return 1e3 * statistics.median(ranks.seconds(epoch) for _ in range(ROUNDS))


def run_through(*loaders):
    for one in loaders:
        for _ in one:
            pass


def validate_meanwhile(train, validate):
    """One batch of the second loader after every two of the first."""
    other = iter(validate)
    for i, _ in enumerate(train):
        if i % 2:
            next(other)
    run_through(other)


def measure_build(ranks, graph, say):
    host = GPUGraph(num_nodes=graph.num_nodes, colptr=graph.colptr.cpu(), row=graph.row.cpu()).engine
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    built = SpreadGraph(host, ranks.device, timeout=60)
    peak, held = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    peak, held = ranks.slowest(peak), ranks.slowest(held)  # of the GPU with most
    per_edge = ranks.size / graph.num_edges
    say(f"cuGraph: {peak * per_edge:.1f} bytes per edge while the graph is built, {held * per_edge:.1f} afterwards")
    del built


def compare_places(ranks, graph, say, batches):
    for name, (place, options) in PLACES.items():
        if place == "sharded" and ranks.size == 1:
            continue
        data = stores(graph, place)
        seeds = draw_seeds(graph.num_nodes, batches * ranks.size, BATCH, graph.row.device)
        for fanout in FANOUTS:
            one = loader(data, fanout, seeds, options)
            ms = median_ms(ranks, lambda one=one: run_through(one)) / batches
            say(f"topology {one.placement.topology.place} ({name}), {fanout}: {ms:.3f} ms per batch")


def compare_calls(ranks, graph, say, train, validate):
    data, alone, call, calls = stores(graph, "process"), Scheduler._same_caller, CuGraphSampler.call, []
    CuGraphSampler.call = lambda self, works: calls.append(len(works)) or call(self, works)
    for fanout in FANOUTS:
        seeds = draw_seeds(graph.num_nodes, (train + validate) * ranks.size, BATCH, graph.row.device)
        cut = train * ranks.size
        both = [loader(data, fanout, part, {"engine": "cugraph"}) for part in (seeds[:cut], seeds[cut:])]
        for name, epoch, shares in (
            ("one after the other", run_through, True),
            ("in turns", validate_meanwhile, True),
            ("in turns, each request a call of its own", validate_meanwhile, False),
        ):
            Scheduler._same_caller = alone if shares else lambda self, needed: []
            ms = median_ms(ranks, lambda epoch=epoch, both=both: epoch(*both))
            del calls[:]
            epoch(*both)
            say(f"{train} and {validate} batches, {fanout}, {name}: {ms:.1f} ms, {len(calls)} calls")
        Scheduler._same_caller = alone


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1 << 20)
    parser.add_argument("--edges", type=int, default=1 << 24)
    parser.add_argument("--batches", type=int, default=128, help="of an epoch and rank")
    args = parser.parse_args()
    began, world = time.monotonic(), manyhop.init()
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    ranks = Ranks(world.rank, world.world_size, device)
    graph = rmat(args.nodes, args.edges, device)

    def say(text):
        if ranks.rank == 0:
            print(f"{time.monotonic() - began:5.1f} s  {text}", flush=True)

    if ranks.on_gpu:
        measure_build(ranks, graph, say)
    compare_calls(ranks, graph, say, 2 * args.batches, args.batches)
    compare_places(ranks, graph, say, args.batches)


if __name__ == "__main__":
    main()
