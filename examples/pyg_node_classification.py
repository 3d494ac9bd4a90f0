"""GraphSAGE on sampled neighbourhoods: ordinary PyG, but for the import of the loader.

    python examples/pyg_node_classification.py                      # the genre of a film (movies.db)
    python examples/pyg_node_classification.py --no-graph           # the same model without the graph
    python examples/pyg_node_classification.py --dataset debian     # the section of a Debian package
    python examples/pyg_node_classification.py --dataset ogbn-arxiv

The model sees the classes of the training nodes among a node's neighbours, never a node's own.
"""

import argparse

import datasets
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import to_undirected

from manyhop_pyg import NeighborLoader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--no-graph", action="store_true", help="sample no neighbours")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10], help="neighbours per node, hop by hop")
parser.add_argument("--workers", type=int, default=0, help="threads that sample ahead of the training step")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)

data = datasets.load(args.dataset)
num_classes = int(data.y.max()) + 1
known = F.one_hot(data.y.clamp(min=0), num_classes) * data.train_mask[:, None]
data.x = torch.cat([data.x, data.degree, known], dim=1)
data.edge_index = to_undirected(data.edge_index)
fanout = [0 for _ in args.fanout] if args.no_graph else args.fanout
shared = {"data": data, "num_neighbors": fanout, "batch_size": 256, "num_workers": args.workers}
train_loader = NeighborLoader(input_nodes=data.train_mask, shuffle=True, **shared)
val_loader = NeighborLoader(input_nodes=data.val_mask, **shared)
test_loader = NeighborLoader(input_nodes=data.test_mask, **shared)

model = GraphSAGE(data.num_features, hidden_channels=64, num_layers=len(fanout), out_channels=num_classes, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def predict(batch):
    batch.x[: batch.batch_size, -num_classes:] = 0  # hide the classes that are asked for
    return model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]


@torch.no_grad()
def accuracy(loader):
    model.eval()
    hits = [(out.argmax(dim=1) == y) for out, y in map(predict, loader)]
    return torch.cat(hits).float().mean().item()


best = (0.0, 0.0)
for epoch in range(1, args.epochs + 1):
    model.train()
    total = 0.0
    for batch in train_loader:
        out, y = predict(batch)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / len(train_loader)
    scores = accuracy(val_loader), accuracy(test_loader)
    best = max(best, scores)
    print(f"epoch {epoch}: loss {total:.3f}, accuracy {scores[0]:.3f} on validation nodes")
print(train_loader.stats())
majority = (data.y[data.test_mask] == data.y[data.train_mask].mode().values).float().mean()
print(f"test accuracy {best[1]:.3f} in the best epoch; always the largest class: {majority:.3f}")
