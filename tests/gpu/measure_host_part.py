"""Measures what the host does for a step of a captured training loop on a GPU, with all of CUDA's calls: the time of
asking for a batch and of calling the step, without the waiting for the GPU; and what parts of the step take of it.

python tests/gpu/measure_host_part.py [--dgl] [--seeds 256] [--fanout 10 10]
"""

import argparse
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from manyhop.masks import masked_mean
from manyhop_train.capture.ends import Ends

NODES, EDGES, FEATURES, HIDDEN, CLASSES = 1 << 17, 1 << 20, 128, 64, 16
EPOCHS, BATCHES = 6, 512


class Timed:
    """The seconds that calls of a function have taken."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds = 0.0
        really = getattr(owner, name)

        def call(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return really(*args)
            finally:
                self.seconds += time.perf_counter() - begin

        setattr(owner, name, call)


def pyg(x: Tensor, y: Tensor, edges: Tensor, options: argparse.Namespace) -> tuple[Iterable[Any], Any]:
    """A loader and a captured step of a GraphSAGE of PyG."""
    from torch_geometric.data import Data
    from torch_geometric.nn import GraphSAGE

    import manyhop_pyg

    seeds = torch.randint(0, NODES, (BATCHES * options.seeds,))
    loader = manyhop_pyg.NeighborLoader(
        Data(x=x, y=y, edge_index=edges),
        options.fanout,
        input_nodes=seeds,
        batch_size=options.seeds,
        shuffle=True,
        seed=1,
        device=x.device,
        pad="auto",
    )
    model = GraphSAGE(FEATURES, HIDDEN, len(options.fanout), CLASSES).to(x.device)
    manyhop_pyg.accelerate(model, trim=True)

    def loss(batch: Data) -> Tensor:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        found = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="none")
        return masked_mean(found, batch.seed_mask)

    return loader, manyhop_pyg.capture(updating(model, loss))


def dgl(x: Tensor, y: Tensor, edges: Tensor, options: argparse.Namespace) -> tuple[Iterable[Any], Any]:
    """The same of DGL's layers on blocks."""
    import manyhop_dgl  # first, so that DGL can be imported

    from dgl.nn.pytorch import SAGEConv  # isort: skip

    g = manyhop_dgl.Graph(tuple(edges.cpu()), NODES)
    g.ndata["x"], g.ndata["y"] = x.cpu(), y.cpu()  # where the graph is; the loader brings both to the GPU
    sampler = manyhop_dgl.NeighborSampler(options.fanout, prefetch_node_feats=["x"], prefetch_labels=["y"])
    seeds = torch.randint(0, NODES, (BATCHES * options.seeds,))
    loader = manyhop_dgl.DataLoader(
        g, seeds, sampler, batch_size=options.seeds, shuffle=True, seed=1, device=x.device, pad="auto"
    )
    sizes = [FEATURES, *[HIDDEN] * (len(options.fanout) - 1), CLASSES]
    model = torch.nn.ModuleList([SAGEConv(n, m, "mean") for n, m in pairwise(sizes)]).to(x.device)

    def loss(batch: Any) -> Tensor:
        _, _, blocks = batch
        h = blocks[0].srcdata["x"]
        for layer, block in zip(model, blocks, strict=True):
            h = F.relu(layer(block, h))
        found = F.cross_entropy(h, blocks[-1].dstdata["y"], reduction="none")
        return masked_mean(found, blocks[-1].dstdata["node_mask"])

    return loader, manyhop_dgl.capture(updating(model, loss))


def updating(model: torch.nn.Module, loss: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """A training step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(batch: Any) -> Tensor:
        value = loss(batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dgl", action="store_true", help="DGL's layers on blocks, in place of PyG's")
    parser.add_argument("--seeds", type=int, default=256)
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10])
    options = parser.parse_args()
    torch.manual_seed(0)
    device, waiting = torch.device("cuda"), Timed(torch.cuda.Event, "synchronize")
    parts = {
        "step: addresses of the batch and its results": Timed(Ends, "write"),
        "step: replay": Timed(torch.cuda.CUDAGraph, "replay"),
    }
    x, y = torch.randn(NODES, FEATURES, device=device), torch.randint(0, CLASSES, (NODES,), device=device)
    edges = torch.randint(0, NODES, (2, EDGES), device=device)
    loader, step = (dgl if options.dgl else pyg)(x, y, edges, options)
    times: dict[str, list[float]] = {
        name: [] for name in ("batch", "step", "both", "both, with waiting", "batch: first of an epoch", *parts)
    }
    for epoch in range(EPOCHS):
        start = time.perf_counter()
        batches, sums, first = iter(loader), [0.0, 0.0], 0.0
        for timed in (waiting, *parts.values()):
            timed.seconds = 0.0
        begin = time.perf_counter()
        for _ in range(BATCHES):
            before, waited = time.perf_counter(), waiting.seconds
            batch = next(batches)
            between = time.perf_counter()
            sums[0] += between - before - (waiting.seconds - waited)
            first = first or between - start - (waiting.seconds - waited)
            step(batch)
            sums[1] += time.perf_counter() - between
        whole = time.perf_counter() - begin
        torch.cuda.synchronize()
        if epoch >= 2:
            found = [*sums, sum(sums), whole, first * BATCHES, *[timed.seconds for timed in parts.values()]]
            for name, seconds in zip(times, found, strict=True):
                times[name].append(1e6 * seconds / BATCHES)
    print(f"{torch.cuda.get_device_name()}, {options.seeds} seeds, {options.fanout}: {step.replayed} replays")
    for name, us in times.items():
        print(f"{name}: {median(us):.1f} us (least {min(us):.1f})", flush=True)


if __name__ == "__main__":
    main()
