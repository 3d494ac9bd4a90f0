"""GraphSAGE by two processes that share a graph, the gradients averaged (DistributedDataParallel)."""

import os
import socket

import dgl
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from dgl.dataloading import DataLoader, MultiLayerFullNeighborSampler, NeighborSampler
from dgl.multiprocessing import shared_tensor
from dgl.nn import SAGEConv
from small_graphs import communities
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(8, 16, "mean"), SAGEConv(16, 4, "mean")])

    def forward(self, blocks, x):
        return self.layers[1](blocks[1], F.relu(self.layers[0](blocks[0], x)))

    @torch.no_grad()
    def inference(self, g):
        """Each process computes some of the nodes, layer by layer, into memory that both see."""
        g.ndata["h"] = g.ndata["feat"]
        sampler = MultiLayerFullNeighborSampler(1, prefetch_node_feats=["h"])
        for i, layer in enumerate(self.layers):
            loader = DataLoader(g, torch.arange(g.num_nodes()), sampler, batch_size=100, use_ddp=True)
            y = shared_tensor((g.num_nodes(), layer._out_feats))
            for _, output_nodes, blocks in loader:
                h = layer(blocks[0], blocks[0].srcdata["h"])
                y[output_nodes] = F.relu(h) if i < len(self.layers) - 1 else h
            dist.barrier()
            g.ndata["h"] = y
        g.ndata.pop("h")
        return y


def run(rank, world_size, g, train_idx):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dgl.seed(rank)
    model = DistributedDataParallel(SAGE())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    sampler = NeighborSampler([6, 6], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = DataLoader(g, train_idx, sampler, use_ddp=True, batch_size=32, shuffle=True, drop_last=False)
    for _ in range(6):
        for _, _, blocks in loader:
            loss = F.cross_entropy(model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = model.module.inference(g).argmax(1) == g.ndata["label"]
    if rank == 0:
        print(f"accuracy {right[g.ndata['test_mask']].float().mean():.3f}")
    dist.barrier()
    del model  # as the last owner of the group, it may hang
    dist.destroy_process_group()


def main():
    g = communities()
    g.create_formats_()
    with socket.socket() as reserved:  # as long as it is bound, nobody is given its port who asks for any
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(reserved.getsockname()[1]))
        mp.spawn(run, args=(2, g, g.ndata["train_mask"].nonzero().view(-1)), nprocs=2)


if __name__ == "__main__":
    main()
