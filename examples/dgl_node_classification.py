"""GraphSAGE on sampled neighbourhoods: plain DGL and DDP, with one import changed.

    python examples/dgl_node_classification.py                         # 1 process; a GPU if there is one
    torchrun --nproc-per-node 4 examples/dgl_node_classification.py    # 4 processes
    torchrun --nnodes 2 --node-rank 0|1 --master-addr HOST --nproc-per-node 2 examples/dgl_node_classification.py

Predicts the genre of a film (--dataset ogbn-arxiv: the subject of a paper). The features include the classes of
training nodes, except those of the seeds; with --no-graph, no neighbours are sampled.
"""

import argparse
from itertools import pairwise

from manyhop_dgl import DataLoader, NeighborSampler, share  # isort: skip  # first: with it, DGL works on any torch
import datasets
import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--no-graph", action="store_true", help="sample no neighbours")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10], help="neighbours per node, input layer first")
parser.add_argument("--workers", type=int, default=0, help="threads that sample ahead of the training step")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)

data = share(lambda: datasets.show_classes(datasets.load(args.dataset)))  # once per node
rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
graph = dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes)
graph.ndata["feat"], graph.ndata["label"] = data.x, data.y
num_classes, fanout = int(data.y.max()) + 1, [0 for _ in args.fanout] if args.no_graph else args.fanout
sampler = NeighborSampler(fanout, prefetch_node_feats=["feat"], prefetch_labels=["label"], seed=args.seed)
shared = {"batch_size": 256 // world_size, "num_workers": args.workers, "use_ddp": world_size > 1, "seed": args.seed}
shared["device"] = args.device
train_loader = DataLoader(graph, data.train_mask.nonzero().view(-1), sampler, shuffle=True, **shared)
test_loader = DataLoader(graph, data.test_mask.nonzero().view(-1), sampler, **shared)


class SAGE(torch.nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.layers = torch.nn.ModuleList(dgl.nn.SAGEConv(*pair, "mean") for pair in pairwise(sizes))

    def forward(self, blocks):
        h = blocks[0].srcdata["feat"].clone()
        h[: blocks[-1].num_dst_nodes(), -num_classes:] = 0  # hide the classes that are asked for
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, F.dropout(F.relu(h), training=self.training) if i > 0 else h)
        return h


model = SAGE(data.num_features, *[64 for _ in fanout[1:]], num_classes).to(args.device)
model = DistributedDataParallel(model) if world_size > 1 else model
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, args.epochs + 1):
    model.train()
    for _input_nodes, _output_nodes, blocks in train_loader:
        loss = F.cross_entropy(model(blocks), blocks[-1].dstdata["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    counts = torch.zeros(2, device=args.device)  # right ones, and all; with several ranks a few seeds come twice
    for _input_nodes, _output_nodes, blocks in test_loader:
        with torch.no_grad():
            right = model(blocks).argmax(dim=1) == blocks[-1].dstdata["label"]
        counts += torch.stack([right.sum(), right.new_tensor(len(right), dtype=torch.int64)])
    if world_size > 1:
        dist.all_reduce(counts)
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f} in the last batch, test accuracy {counts[0] / counts[1]:.3f}")
if rank == 0:
    print(train_loader.stats())
