"""Times of ``loader.batch`` on a GPU: the batch of given seeds, with features, outside of any epoch."""

import statistics
import time

import torch
from torch_geometric.data import Data

from manyhop_pyg import NeighborLoader

N, M, WIDTH, ROUNDS = 1_000_000, 20_000_000, 128, 400


def main():
    g = torch.Generator().manual_seed(0)
    edge_index = torch.stack([torch.randint(0, N, (M,), generator=g), (torch.rand(M, generator=g) ** 2 * N).long()])
    data = Data(x=torch.randn(N, WIDTH, generator=g), y=torch.randint(0, 40, (N,), generator=g), edge_index=edge_index)
    loader = NeighborLoader(data, [10, 10], batch_size=1024, device="cuda", placement="cuda-cuda")
    for number in (1, 64, 1024):
        seeds = [torch.randint(0, N, (number,), generator=g) for _ in range(ROUNDS)]
        for name, given in (
            ("a list", [each.tolist() for each in seeds]),
            ("on the CPU", seeds),
            ("on the GPU", [s.cuda() for s in seeds]),
        ):
            ready, done = [], []
            for i, each in enumerate(given):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                batch = loader.batch(each, key=(1, 0, i))
                ready.append(time.perf_counter() - begin)
                torch.cuda.synchronize()
                done.append(time.perf_counter() - begin)
            of_call, of_gpu = (1e6 * statistics.median(times[ROUNDS // 4 :]) for times in (ready, done))
            best = 1e6 * min(done)
            print(
                f"{number} seeds, {name}: call {of_call:.0f} us, until the GPU is done {of_gpu:.0f} us (best "
                f"{best:.0f}); {batch.num_nodes} nodes, {batch.num_edges} edges",
                flush=True,
            )


if __name__ == "__main__":
    main()
