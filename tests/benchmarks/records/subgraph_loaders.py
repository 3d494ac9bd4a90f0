"""Times of loaders of subgraphs: manyhop's and PyG's, some of which need torch-sparse."""

import statistics
import time

import torch
import torch_geometric.loader
from torch_geometric.data import Data

import manyhop_pyg

torch.manual_seed(0)
n, m = 200_000, 3_000_000
rank = torch.randperm(n)
ends = [rank[(torch.rand(m) ** 2.5 * n).long()] for _ in range(2)]  # rank r in proportion to r ** -0.6
loops = torch.arange(n)  # torch-sparse does not walk from a node without edges
data = Data(x=torch.randn(n, 32), edge_index=torch.stack([torch.cat([end, loops]) for end in ends]))
parts = manyhop_pyg.ClusterData(data, 200, cluster=torch.randint(0, 200, (n,)))
cases = {
    "ShaDowKHopSampler": lambda of: of.ShaDowKHopSampler(data, 2, 10, rank[:20_000], batch_size=256),
    "GraphSAINTNodeSampler": lambda of: of.GraphSAINTNodeSampler(data, 6000, num_steps=20),
    "GraphSAINTRandomWalkSampler": lambda of: of.GraphSAINTRandomWalkSampler(data, 3000, 2, num_steps=20),
    "ClusterLoader": lambda of: of.ClusterLoader(parts, batch_size=10),
    "RandomNodeLoader": lambda of: of.RandomNodeLoader(data, 20),
}
for name, make in cases.items():
    loaders, seconds = {of: make(of) for of in (manyhop_pyg, torch_geometric.loader)}, []
    for _ in range(6):  # the first does not count
        seconds.append([])
        for loader in loaders.values():
            batches = iter(loader)
            next(batches)
            begin = time.perf_counter()
            for _ in range(8):
                next(batches)
            seconds[-1].append((time.perf_counter() - begin) / 8)
    ours, theirs = zip(*seconds[1:], strict=True)
    ratio = statistics.median(b / a for a, b in seconds[1:])
    print(
        f"{name}: {1e3 * statistics.median(ours):.1f} and {1e3 * statistics.median(theirs):.1f} ms, {ratio:.2f} x",
        flush=True,
    )
