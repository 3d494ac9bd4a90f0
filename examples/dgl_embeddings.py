"""Learned embeddings of people, trained with GraphSAGE: rows of a table that no process holds twice.

    python examples/dgl_embeddings.py                         # 1 process; a GPU if there is one
    torchrun --nproc-per-node 4 examples/dgl_embeddings.py    # 4 processes, one table

Predicts the genre of a film from what it is and from its people, who have no features of their own. Each batch reads
the rows of its people, and updates them; with --no-embeddings, people are all the same. --placement says where the
table and the optimizer's states reside.
"""

import argparse

from manyhop_dgl import DataLoader, NeighborSampler, share  # isort: skip  # first: with it, DGL works on any torch
import datasets
import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import manyhop

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--no-embeddings", action="store_true", help="people are all the same")
parser.add_argument("--placement", default="shared", help="shared, pinned, device, sharded or distributed")
parser.add_argument("--width", type=int, default=32, help="numbers of a person")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--fanout", type=int, default=20, help="people per film")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)

data = share(lambda: datasets.load("movies"))  # once per node
rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
films, people_of_films = data.edge_index
graph = dgl.graph((people_of_films, films), num_nodes=data.num_nodes)
graph.ndata["feat"], graph.ndata["label"] = data.x, data.y
num_films, num_classes = int(data.x[:, 0].sum()), int(data.y.max()) + 1  # films come first, people after them
sampler = NeighborSampler([args.fanout], prefetch_node_feats=["feat"], prefetch_labels=["label"], seed=args.seed)
shared = {"batch_size": 256 // world_size, "use_ddp": world_size > 1, "seed": args.seed, "device": args.device}
train_loader = DataLoader(graph, data.train_mask.nonzero().view(-1), sampler, shuffle=True, **shared)
test_loader = DataLoader(graph, data.test_mask.nonzero().view(-1), sampler, **shared)

people = manyhop.Embedding(data.num_nodes - num_films, args.width, placement=args.placement, seed=args.seed)
model = dgl.nn.SAGEConv(data.num_features + args.width, num_classes, "mean").to(args.device)
model = DistributedDataParallel(model) if world_size > 1 else model
optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), manyhop.optim.Adam(people, lr=0.03)]


def predict(nodes, block):
    is_person, x = nodes >= num_films, block.srcdata["feat"]
    rows = x.new_zeros(len(nodes), args.width)
    if not args.no_embeddings:
        rows[is_person] = people(nodes[is_person] - num_films)
    return model(block, torch.cat([x, rows], dim=1))


for epoch in range(1, args.epochs + 1):
    for input_nodes, _output_nodes, (block,) in train_loader:
        loss = F.cross_entropy(predict(input_nodes, block), block.dstdata["label"])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    counts = torch.zeros(2, device=args.device)  # right ones, and all; with several ranks a few seeds come twice
    for input_nodes, _output_nodes, (block,) in test_loader:
        with torch.no_grad():
            right = predict(input_nodes, block).argmax(dim=1) == block.dstdata["label"]
        counts += torch.stack([right.sum(), right.new_tensor(len(right), dtype=torch.int64)])
    if world_size > 1:
        dist.all_reduce(counts)
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f} in the last batch, test accuracy {counts[0] / counts[1]:.3f}")
