"""Link prediction on sampled neighbourhoods: ordinary PyG, but for the import of the loader.

    python examples/pyg_link_prediction.py                      # who plays in which film (movies.db)
    python examples/pyg_link_prediction.py --no-graph           # the same model without the graph
    python examples/pyg_link_prediction.py --dataset debian     # which package needs which
    python examples/pyg_link_prediction.py --dataset ogbn-arxiv # which paper cites which

A negative joins the ends of two edges of the same split: how often either was seen does not tell it from a true edge.
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
parser.add_argument("--epochs", type=int, help="default: 5; without the graph 15")
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 5], help="neighbours per node, hop by hop")
parser.add_argument("--workers", type=int, default=0, help="threads that sample ahead of the training step")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)

data, links = datasets.split_links(datasets.load(args.dataset))
fanout = [0 for _ in args.fanout] if args.no_graph else args.fanout
epochs, batch_size, dropout = (15, 512, 0.0) if args.no_graph else (5, 1024, 0.5)  # each chosen on validation edges
shared = {"data": data, "num_neighbors": fanout, "batch_size": batch_size, "num_workers": args.workers}
loaders = {}
for split, edges in links.items():
    src_weight, dst_weight = (torch.bincount(end, minlength=data.num_nodes).float() for end in edges)
    negatives = NegativeSampling("binary", src_weight=src_weight, dst_weight=dst_weight)
    arguments = {"edge_label_index": edges, "neg_sampling": negatives, "shuffle": split == "train"}
    loaders[split] = LinkNeighborLoader(**shared, **arguments)


class Model(torch.nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(0.1 * torch.randn(data.num_nodes, channels), freeze=False)
        self.gnn = GraphSAGE(data.num_features + channels, channels, num_layers=len(fanout), dropout=0.3)

    def forward(self, batch):
        asked = torch.isin(batch.e_id % (data.num_edges // 2), batch.input_id) & self.training  # hide these edges
        x = torch.cat([batch.x, F.dropout(self.embedding(batch.n_id), dropout, self.training)], dim=1)
        return self.gnn(x, batch.edge_index[:, ~asked])[batch.edge_label_index].prod(dim=0).sum(dim=1)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)


@torch.no_grad()
def auc(loader):
    """The probability that a true edge scores higher than a negative."""
    model.eval()
    scores, labels = map(torch.cat, zip(*[(model(batch), batch.edge_label) for batch in loader], strict=True))
    true, false = scores[labels == 1], scores[labels == 0].sort().values
    return torch.searchsorted(false, true).float().mean().item() / len(false)


best = (0.0, 0.0)
for epoch in range(1, (args.epochs or epochs) + 1):
    model.train()
    for batch in loaders["train"]:
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.edge_label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    best = max(best, scores := (auc(loaders["val"]), auc(loaders["test"])))
    print(f"epoch {epoch}: loss {loss:.3f} in the last batch, AUC {scores[0]:.3f} on validation edges")
print(loaders["train"].stats())
print(f"test AUC {best[1]:.3f} in the best epoch; guessing: 0.500")
