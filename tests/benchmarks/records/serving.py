"""Times of ``loader.batch`` on a GPU: the batch of given seeds, with features, outside of any epoch."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch_geometric.data import Data

from manyhop_pyg import NeighborLoader

N, M, WIDTH = 1_000_000, 20_000_000, 128
BLOCKS, IN_A_ROW, FIRST = 20, 25, 5  # ways take turns; the first batches of a turn do not count


def make_loader(g: torch.Generator) -> NeighborLoader:
    """Return a loader of a random graph."""
    edge_index = torch.stack([torch.randint(0, N, (M,), generator=g), (torch.rand(M, generator=g) ** 2 * N).long()])
    data = Data(x=torch.randn(N, WIDTH, generator=g), y=torch.randint(0, 40, (N,), generator=g), edge_index=edge_index)
    return NeighborLoader(data, [10, 10], batch_size=1024, device="cuda", placement="cuda-cuda")


def measure(ways: Mapping[str, Callable[..., Any]], g: torch.Generator) -> None:
    """Print the times of each way to make a batch."""
    for number in (1, 64, 1024):
        seeds = [torch.randint(0, N, (number,), generator=g) for _ in range(IN_A_ROW)]
        for name, given in (
            ("a list", [each.tolist() for each in seeds]),
            ("on the CPU", seeds),
            ("on the GPU", [s.cuda() for s in seeds]),
        ):
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for block in range(BLOCKS):
                for way, make in ways.items():
                    for i, each in enumerate(given):
                        torch.cuda.synchronize()
                        begin = time.perf_counter()
                        batch = make(each, key=(1, block, i))
                        ready = time.perf_counter() - begin
                        torch.cuda.synchronize()
                        if block > 0 and i >= FIRST:
                            times[way].append((ready, time.perf_counter() - begin))
            for way, found in times.items():
                of_call, of_gpu = (1e6 * statistics.median(each) for each in zip(*found, strict=True))
                best = 1e6 * min(done for _, done in found)
                print(
                    f"{way}{number} seeds, {name}: call {of_call:.0f} us, until the GPU is done {of_gpu:.0f} us (best "
                    f"{best:.0f}); {batch.num_nodes} nodes, {batch.num_edges} edges",
                    flush=True,
                )


def main() -> None:
    g = torch.Generator().manual_seed(0)
    measure({"": make_loader(g).batch}, g)


if __name__ == "__main__":
    main()
