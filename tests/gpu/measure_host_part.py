"""Measures what the host does for a step of a captured training loop on a GPU, with all of CUDA's calls: the time of
asking for a batch and of calling the step, without the waiting for the GPU.

python tests/gpu/measure_host_part.py [--seeds 256] [--fanout 10 10]
"""

import argparse
import time
from statistics import median

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, accelerate, capture

NODES, EDGES, FEATURES, CLASSES = 1 << 17, 1 << 20, 128, 16
EPOCHS, BATCHES = 12, 128


class Waiting:
    """The seconds that the host has waited for events of the GPU."""

    def __init__(self) -> None:
        self.seconds = 0.0
        really = torch.cuda.Event.synchronize

        def synchronize(event: torch.cuda.Event) -> None:
            begin = time.perf_counter()
            really(event)
            self.seconds += time.perf_counter() - begin

        torch.cuda.Event.synchronize = synchronize  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=256)
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10])
    options = parser.parse_args()
    torch.manual_seed(0)
    device, waiting = torch.device("cuda"), Waiting()
    data = Data(
        x=torch.randn(NODES, FEATURES, device=device),
        y=torch.randint(0, CLASSES, (NODES,), device=device),
        edge_index=torch.randint(0, NODES, (2, EDGES), device=device),
    )
    loader = NeighborLoader(
        data,
        options.fanout,
        input_nodes=torch.randint(0, NODES, (BATCHES * options.seeds,)),
        batch_size=options.seeds,
        shuffle=True,
        seed=1,
        device=device,
        pad="auto",
    )
    model = GraphSAGE(FEATURES, 64, len(options.fanout), CLASSES).to(device)
    accelerate(model, trim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @capture
    def step(batch: Data) -> torch.Tensor:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="none")
        loss = masked_mean(loss, batch.seed_mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    times: dict[str, list[float]] = {"batch": [], "step": [], "both": [], "both, with waiting": []}
    for epoch in range(EPOCHS):
        batches, sums = iter(loader), [0.0, 0.0]
        waiting.seconds, begin = 0.0, time.perf_counter()
        for _ in range(BATCHES):
            before, waited = time.perf_counter(), waiting.seconds
            batch = next(batches)
            between = time.perf_counter()
            sums[0] += between - before - (waiting.seconds - waited)
            step(batch)
            sums[1] += time.perf_counter() - between
        whole = time.perf_counter() - begin
        torch.cuda.synchronize()
        if epoch >= 2:
            for name, seconds in zip(times, (*sums, sum(sums), whole), strict=True):
                times[name].append(1e6 * seconds / BATCHES)
    print(f"{torch.cuda.get_device_name()}, {options.seeds} seeds, {options.fanout}: {step.replayed} replays")
    for name, us in times.items():
        print(f"{name}: {median(us):.1f} us (least {min(us):.1f})", flush=True)


if __name__ == "__main__":
    main()
