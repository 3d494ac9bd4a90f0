"""GraphSAGE on sampled neighbourhoods: plain PyG and DDP, with one import changed.

    python examples/pyg_node_classification.py                         # 1 process, on the GPU if there is one
    torchrun --nproc-per-node 4 examples/pyg_node_classification.py    # 4 processes, each with its GPU
    torchrun --nnodes 2 --node-rank 0|1 --master-addr HOST --nproc-per-node 2 examples/pyg_node_classification.py

Predicts the genre of a film (--dataset ogbn-arxiv: the subject of a paper). The features include the classes of
training nodes, except those of the seeds; with --no-graph, no neighbours are sampled.
"""

import argparse

import datasets
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from manyhop_pyg import NeighborLoader, share

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--no-graph", action="store_true", help="sample no neighbours")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10], help="neighbours per node, hop by hop")
parser.add_argument("--workers", type=int, default=0, help="threads that sample ahead of the training step")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)

data = share(lambda: datasets.show_classes(datasets.load(args.dataset)).to_pyg())  # once per node
rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
num_classes, fanout = int(data.y.max()) + 1, [0 for _ in args.fanout] if args.no_graph else args.fanout
shared = {"num_neighbors": fanout, "batch_size": 256 // world_size, "num_workers": args.workers}
shared |= {"distributed": True, "device": args.device}
train_loader = NeighborLoader(data, input_nodes=data.train_mask, shuffle=True, **shared)
val_loader = NeighborLoader(data, input_nodes=data.val_mask, **shared)
test_loader = NeighborLoader(data, input_nodes=data.test_mask, **shared)

model = GraphSAGE(data.num_features, hidden_channels=64, num_layers=len(fanout), out_channels=num_classes, dropout=0.5)
model = DistributedDataParallel(model.to(args.device)) if world_size > 1 else model.to(args.device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def predict(batch):
    batch.x[: batch.batch_size, -num_classes:] = 0  # hide the classes that are asked for
    return model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]


@torch.no_grad()
def accuracy(loader):
    model.eval()
    counts = torch.zeros(2, device=args.device)  # right ones, and all
    for batch in loader:
        out, y = predict(batch)
        right = (out.argmax(dim=1) == y)[~batch.is_padding]
        counts += torch.stack([right.sum(), torch.ones_like(right).sum()])
    if world_size > 1:
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


best = (0.0, 0.0)
for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        out, y = predict(batch)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    best = max(best, scores := (accuracy(val_loader), accuracy(test_loader)))
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f} in the last batch, accuracy {scores[0]:.3f} on validation nodes")
majority = (data.y[data.test_mask] == data.y[data.train_mask].mode().values).float().mean()
if rank == 0:
    print(train_loader.stats())
    print(f"test accuracy {best[1]:.3f} in the best epoch; always the largest class: {majority:.3f}")
