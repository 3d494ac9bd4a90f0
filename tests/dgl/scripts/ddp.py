"""GraphSAGE by two processes that share a graph, the gradients averaged (DistributedDataParallel)."""

import os
import socket

import dgl
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from dgl.nn import SAGEConv
from small_graphs import communities
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(8, 16, "mean"), SAGEConv(16, 4, "mean")

    def forward(self, blocks, x):
        return self.second(blocks[1], F.relu(self.first(blocks[0], x)))


def run(rank, world_size, g, seeds):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dgl.seed(rank)
    model = DistributedDataParallel(SAGE())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    sampler = NeighborSampler([6, 6], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    train, test = seeds
    loader = DataLoader(g, train, sampler, use_ddp=True, batch_size=32, shuffle=True, drop_last=False)
    for _ in range(6):
        for _, _, blocks in loader:
            loss = F.cross_entropy(model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = torch.zeros(2)
    with torch.no_grad():
        for _, _, blocks in DataLoader(g, test, sampler, use_ddp=True, batch_size=50):
            hit = model.module(blocks, blocks[0].srcdata["feat"]).argmax(1) == blocks[-1].dstdata["label"]
            right += torch.tensor([hit.sum(), len(hit)])
    dist.all_reduce(right)
    if rank == 0:
        print(f"accuracy {right[0] / right[1]:.3f}")
    dist.barrier()
    dist.destroy_process_group()


def main():
    g = communities()
    g.create_formats_()
    train, test = (g.ndata[name].nonzero().view(-1) for name in ("train_mask", "test_mask"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    mp.spawn(run, args=(2, g, (train, test)), nprocs=2)


if __name__ == "__main__":
    main()
