"""Link prediction on sampled neighbourhoods: ordinary PyG, but for the import of the loader.

    python examples/pyg_link_prediction.py                      # who plays in which film (movies.db)
    python examples/pyg_link_prediction.py --no-graph           # the same model without the graph
    python examples/pyg_link_prediction.py --dataset debian     # which package needs which
    python examples/pyg_link_prediction.py --dataset ogbn-arxiv # which paper cites which

Negatives are drawn in proportion to degree: who plays in many films does not play in all.
"""

import argparse

import datasets
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NegativeSampling

from manyhop_pyg import LinkNeighborLoader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--no-graph", action="store_true", help="sample no neighbours")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 5], help="neighbours per node, hop by hop")
parser.add_argument("--workers", type=int, default=0, help="threads that sample ahead of the training step")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)

data, links = datasets.split_links(datasets.load(args.dataset))
fanout = args.fanout
if args.no_graph:  # train on the edges that the graph would show, too
    fanout, links["train"] = [0 for _ in fanout], torch.cat([links["train"], links["known"]], dim=1)

negatives = NegativeSampling("binary", src_weight=data.src_weight, dst_weight=data.dst_weight)
shared = {"data": data, "num_neighbors": fanout, "batch_size": 512, "num_workers": args.workers}
train_loader = LinkNeighborLoader(edge_label_index=links["train"], shuffle=True, neg_sampling=negatives, **shared)
val_loader = LinkNeighborLoader(edge_label_index=links["val"], neg_sampling=negatives, **shared)
test_loader = LinkNeighborLoader(edge_label_index=links["test"], neg_sampling=negatives, **shared)


class Model(torch.nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(0.1 * torch.randn(data.num_nodes, channels), freeze=False)
        self.gnn = GraphSAGE(data.num_features + channels, channels, num_layers=len(fanout), dropout=0.3)

    def forward(self, batch):
        h = self.gnn(torch.cat([batch.x, self.embedding(batch.n_id)], dim=1), batch.edge_index)
        return h[batch.edge_label_index].prod(dim=0).sum(dim=1)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


@torch.no_grad()
def auc(loader):
    """The probability that a true edge scores higher than a negative."""
    model.eval()
    scores, labels = map(torch.cat, zip(*[(model(batch), batch.edge_label) for batch in loader], strict=True))
    true, false = scores[labels == 1], scores[labels == 0].sort().values
    return torch.searchsorted(false, true).float().mean().item() / len(false)


best = (0.0, 0.0)
for epoch in range(1, args.epochs + 1):
    model.train()
    total = 0
    for batch in train_loader:
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.edge_label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / len(train_loader)
    best = max(best, scores := (auc(val_loader), auc(test_loader)))
    print(f"epoch {epoch}: loss {total:.3f}, AUC {scores[0]:.3f} on validation edges")
print(train_loader.stats())
print(f"test AUC {best[1]:.3f} in the best epoch; guessing: 0.500")
