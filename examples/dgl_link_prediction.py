"""Link prediction on sampled neighbourhoods: plain DGL and DDP, with one import changed.

    python examples/dgl_link_prediction.py                         # 1 process; a GPU if there is one
    torchrun --nproc-per-node 4 examples/dgl_link_prediction.py    # 4 processes

Predicts who plays in which film (--dataset: what needs or cites what). A negative joins ends of two true edges."""

import argparse

from manyhop_dgl import DataLoader, NeighborSampler, as_edge_prediction_sampler, share  # isort: skip  # before dgl
import datasets
import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--fanout", type=int, nargs="+", default=[5, 10], help="neighbours per node, input layer first")
parser.add_argument("--workers", type=int, default=0, help="threads that sample ahead of the training step")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args()
torch.manual_seed(0)
data, links = share(lambda: datasets.split_links(datasets.load(args.dataset)))  # once per node
rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
graph = dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes)
graph.ndata["feat"] = data.x
reverse = torch.arange(graph.num_edges()).roll(graph.num_edges() // 2)  # half of the edges are the others' reverses


def negatives(graph, edges):  # sources with the destination of the edge before; the shuffle has drawn both
    return graph.find_edges(edges)[0], graph.find_edges(edges.roll(1))[1]


nodes = NeighborSampler(args.fanout, prefetch_node_feats=["feat"], seed=0)
pairs = as_edge_prediction_sampler(nodes, exclude="reverse_id", reverse_eids=reverse, negative_sampler=negatives)
shared = {"num_workers": args.workers, "batch_size": 1024 // ranks, "use_ddp": ranks > 1, "device": args.device}
train_loader = DataLoader(graph, torch.arange(links["train"].edges.size(1)), pairs, shuffle=True, **shared)
node_loader = DataLoader(graph, torch.arange(graph.num_nodes()), nodes, **shared)


class Model(torch.nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.embedding = torch.nn.Parameter(0.1 * torch.randn(data.num_nodes, channels))
        inputs = [data.num_features + channels, *[channels for _ in args.fanout[1:]]]
        self.layers = torch.nn.ModuleList(dgl.nn.SAGEConv(n, channels, "mean") for n in inputs)

    def forward(self, blocks):
        embedded = F.dropout(self.embedding[blocks[0].srcdata[dgl.NID]], 0.5, self.training)
        h = torch.cat([blocks[0].srcdata["feat"], embedded], dim=1)
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, F.dropout(F.relu(h), 0.3, self.training) if i > 0 else h)
        return h


model = Model().to(args.device)
model = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for epoch in range(1, args.epochs + 1):
    model.train()
    for _input_nodes, pair_graph, negative_graph, blocks in train_loader:
        h = model(blocks)
        true, false = ((h[src] * h[dst]).sum(dim=1) for src, dst in (pair_graph.edges(), negative_graph.edges()))
        loss = (F.softplus(-true) + F.softplus(false)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    h = torch.full((data.num_nodes, 32), -torch.inf, device=args.device)
    for _input_nodes, output_nodes, blocks in node_loader:
        h[output_nodes] = model(blocks).detach()
    if ranks > 1:
        dist.all_reduce(h, op=dist.ReduceOp.MAX)  # each node's row from the rank that has it
    src, dst = links["test"].edges
    true, false = ((h[src] * h[other]).sum(dim=1) for other in (dst, dst.roll(1)))
    auc = torch.searchsorted(false.sort().values, true).float().mean() / len(false)
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f} in the last batch, test AUC {auc:.3f}; guessing: 0.500")
