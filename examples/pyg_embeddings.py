"""Learned embeddings of people, trained with GraphSAGE: rows of a table that no process holds twice.

    python examples/pyg_embeddings.py                         # 1 process, on the GPU if there is one
    torchrun --nproc-per-node 4 examples/pyg_embeddings.py    # 4 processes, one table

Predicts the genre of a film from what it is and from its people, who have no features of their own. Each batch reads
the rows of its people, and updates them; with --no-embeddings, people are all the same. --placement says where the
table and the optimizer's states reside.
"""

import argparse

import datasets
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import manyhop
from manyhop_pyg import NeighborLoader, share

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--no-embeddings", action="store_true", help="people are all the same")
parser.add_argument("--placement", default="shared", help="shared, pinned, device, sharded or distributed")
parser.add_argument("--width", type=int, default=32, help="numbers of a person")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--fanout", type=int, nargs="+", default=[20], help="neighbours per node, hop by hop")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)

data = share(lambda: datasets.load("movies").to_pyg())  # once per node
rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
data.edge_index = data.edge_index.flip(0)  # from people to films
num_films, num_classes = int(data.x[:, 0].sum()), int(data.y.max()) + 1  # films come first, people after them
shared = {"num_neighbors": args.fanout, "batch_size": 256 // world_size, "distributed": True, "device": args.device}
train_loader = NeighborLoader(data, input_nodes=data.train_mask, shuffle=True, **shared)
test_loader = NeighborLoader(data, input_nodes=data.test_mask, **shared)

people = manyhop.Embedding(data.num_nodes - num_films, args.width, placement=args.placement, seed=args.seed)
model = GraphSAGE(data.num_features + args.width, 64, num_layers=len(args.fanout), out_channels=num_classes)
model = DistributedDataParallel(model.to(args.device)) if world_size > 1 else model.to(args.device)
optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), manyhop.optim.Adam(people, lr=0.03)]


def predict(batch):
    is_person = batch.n_id >= num_films
    rows = batch.x.new_zeros(len(batch.x), args.width)
    if not args.no_embeddings:
        rows[is_person] = people(batch.n_id[is_person] - num_films)
    return model(torch.cat([batch.x, rows], dim=1), batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]


@torch.no_grad()
def accuracy(loader):
    counts = torch.zeros(2, device=args.device)  # right ones, and all
    for batch in loader:
        out, y = predict(batch)
        right = (out.argmax(dim=1) == y)[~batch.is_padding]
        counts += torch.stack([right.sum(), torch.ones_like(right).sum()])
    if world_size > 1:
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


for epoch in range(1, args.epochs + 1):
    for batch in train_loader:
        out, y = predict(batch)
        loss = F.cross_entropy(out, y)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    score = accuracy(test_loader)
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f} in the last batch, test accuracy {score:.3f}")
