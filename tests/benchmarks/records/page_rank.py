"""Personalised PageRank: numbers of pushes, first in first out and last in first out; times of ``get_ppr``."""

import time

import numba
import numpy as np
import torch
import torch_geometric.utils

import manyhop_pyg

ALPHA = 0.2


@numba.njit
def pushes(rowptr, col, seed, eps, fifo):
    """Return how many nodes are pushed, and how many edges that reads."""
    residual, waits = np.zeros(rowptr.size - 1), np.zeros(rowptr.size - 1, np.bool_)
    queue, first, length, nodes, edges = np.empty(rowptr.size, np.int64), 0, 1, 0, 0
    queue[0], residual[seed] = seed, ALPHA
    while length > 0:
        length -= 1
        u = queue[first] if fifo else queue[length]
        first = (first + 1) % rowptr.size if fifo else 0
        mass, residual[u], waits[u] = residual[u], 0.0, False
        nodes, edges = nodes + 1, edges + rowptr[u + 1] - rowptr[u]
        for v in col[rowptr[u] : rowptr[u + 1]]:
            residual[v] += (1 - ALPHA) * mass / (rowptr[u + 1] - rowptr[u])
            if not waits[v] and residual[v] >= ALPHA * eps * (rowptr[v + 1] - rowptr[v]):
                waits[v], queue[(first + length) % rowptr.size] = True, v
                length += 1
    return nodes, edges


def main():
    for n, m in ((60, 400), (2000, 20_000), (100_000, 2_000_000)):
        g = torch.Generator().manual_seed(0)
        src, dst = (torch.rand(m, generator=g) ** 3 * n).long(), torch.randint(0, n, (m,), generator=g)
        edge_index = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
        edge_index = edge_index[:, edge_index[0].argsort(stable=True)]
        rowptr = torch.cat([torch.zeros(1).long(), edge_index[0].bincount(minlength=n).cumsum(0)]).numpy()
        few, target = range(5, n, max(1, n // 20)), torch.arange(0, n, max(1, n // 500))
        for eps in (1e-4, 1e-5):
            counts = [
                np.mean([pushes(rowptr, edge_index[1].numpy(), s, eps, x) for s in few], 0) for x in (True, False)
            ]
            seconds = []
            for get_ppr in (manyhop_pyg.get_ppr, torch_geometric.utils.get_ppr):
                get_ppr(edge_index, ALPHA, eps, target[:4], n)
                begin = time.perf_counter()
                get_ppr(edge_index, ALPHA, eps, target, n)
                seconds.append(time.perf_counter() - begin)
            print(
                f"{n} nodes, {2 * m} edges, eps {eps}: pushes {counts[0][0]:.0f} and {counts[1][0]:.0f}, edges "
                f"{counts[0][1]:.0f} and {counts[1][1]:.0f}; {target.numel()} seeds in {seconds[0]:.3f} and "
                f"{seconds[1]:.3f} s",
                flush=True,
            )
            if torch.cuda.is_available():
                on_gpu(edge_index, eps, n)


def on_gpu(edge_index, eps, n):
    """Print the time of many seeds on a GPU, and of as many on the CPU; their bits are compared."""
    there, target, few = edge_index.cuda(), torch.arange(0, n, max(1, n // 50_000)), 500
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        found = manyhop_pyg.get_ppr(there, ALPHA, eps, target, n, top_k=32)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    manyhop_pyg.get_ppr(edge_index, ALPHA, eps, target[:1], n, top_k=32)  # compiles
    begin = time.perf_counter()
    expected = manyhop_pyg.get_ppr(edge_index, ALPHA, eps, target[:few], n, top_k=32)
    of_cpu = (time.perf_counter() - begin) * target.numel() / min(few, target.numel())
    same = all(torch.equal(a.cpu()[..., : b.size(-1)], b) for a, b in zip(found, expected, strict=True))
    print(
        f"    {target.numel()} seeds, the 32 best: GPU {seconds:.3f} s, CPU with {torch.get_num_threads()} threads "
        f"{of_cpu:.2f} s by {few} seeds; same bits: {same}",
        flush=True,
    )


if __name__ == "__main__":
    main()
