"""Steps that train embeddings: rows are read by the forward, or come with the batch."""

import statistics
import sys
import time

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import manyhop
import manyhop_pyg

on_gpu = torch.cuda.is_available()
nodes, edges, width, steps = (2_000_000, 20_000_000, 64, 64) if on_gpu else (20_000, 200_000, 16, 16)
device = "cuda" if on_gpu else "cpu"
again, read = [], []


def main(placement):
    draw = torch.Generator().manual_seed(0)
    rank = torch.randperm(nodes, generator=draw)
    ends = [rank[(torch.rand(edges, generator=draw) ** 2 * nodes).long()] for _ in range(2)]  # some are read often
    seeds, label = rank[torch.randperm(nodes, generator=draw)[: steps * 1024]], torch.arange(nodes) % 16
    runs = {name: Run(name, placement, ends, seeds, label) for name in ("by the forward", "with the batch")}
    seconds = {name: [] for name in runs}
    for number in range(7):
        for name, run in runs.items():
            settle()
            begin = time.perf_counter()
            run.epoch()
            settle()
            if number > 1:
                seconds[name].append((time.perf_counter() - begin) / steps)
    for name, found in seconds.items():
        print(
            f"{placement}, {name}: {1e3 * statistics.median(found):.3f} ms a step, of {len(found)} epochs", flush=True
        )
    low, middle, high = statistics.quantiles([b / a for a, b in zip(*seconds.values(), strict=True)], n=4)
    runs["with the batch"].count()
    rows = statistics.mean(read)
    print(
        f"{placement}: with the batch / by the forward {middle:.2f} ({low:.2f}-{high:.2f}); {rows:,.0f} rows a batch, "
        f"{sum(again) / sum(read):.0%} of them read again",
        flush=True,
    )


class Run:
    def __init__(self, name, placement, ends, seeds, label):
        self.table = manyhop.Embedding(nodes, width, placement=placement, seed=0)
        self.ahead = name == "with the batch"
        data = Data(edge_index=torch.stack(ends), y=label, num_nodes=nodes)
        if self.ahead:
            data.emb = self.table
        self.loader = manyhop_pyg.NeighborLoader(
            data, [10, 10], input_nodes=seeds, batch_size=1024, shuffle=True, seed=0, device=device
        )
        torch.manual_seed(0)
        self.model = GraphSAGE(width, 128, 2, 16).to(device)
        self.optimizers = [
            torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=on_gpu or None),
            manyhop.optim.Adam(self.table, lr=0.01),
        ]

    def epoch(self):
        for batch in self.loader:
            rows = batch.emb if self.ahead else self.table(batch.n_id)
            out = self.model(rows, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()

    def count(self):
        """Run one more epoch; count which rows are read again."""
        versions, refresh = self.table.versions, self.table.versions.refresh

        def counted(ids, latest, rows):
            stamps = versions._stamps.own.view(-1)
            again.append(int((stamps[ids.to(stamps.device)] > latest).sum()))
            read.append(len(ids))
            refresh(ids, latest, rows)

        versions.refresh = counted
        self.epoch()


def settle():
    if on_gpu:
        torch.cuda.synchronize()


for chosen in sys.argv[1:] or ["device", "pinned"]:
    again.clear()
    read.clear()
    main(chosen)
