"""Link prediction on sampled neighbourhoods: plain PyG and DDP, with one import changed.

    python examples/pyg_link_prediction.py                         # 1 process, on the GPU if there is one
    torchrun --nproc-per-node 4 examples/pyg_link_prediction.py    # 4 processes, each with its GPU
    torchrun --nnodes 2 --node-rank 0|1 --master-addr HOST --nproc-per-node 2 examples/pyg_link_prediction.py

Predicts who plays in which film (--dataset: what needs or cites what). A negative joins ends of two true edges."""

import argparse

import datasets
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from manyhop_pyg import LinkNeighborLoader, share

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--no-graph", action="store_true", help="sample no neighbours")
parser.add_argument("--epochs", type=int, help="default: 5; without the graph 15")
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 5], help="neighbours per node, hop by hop")
parser.add_argument("--workers", type=int, default=0, help="threads that sample ahead of the training step")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
data, links = share(lambda: datasets.split_links(datasets.load(args.dataset)))  # once per node
data = data.to_pyg()
rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
epochs, size, dropout = (15, 512, 0.0) if args.no_graph else (5, 1024, 0.5)  # each chosen on validation edges
shared = {"num_neighbors": [0] * len(args.fanout) if args.no_graph else args.fanout, "batch_size": size // world_size}
shared |= {"num_workers": args.workers, "distributed": True, "device": args.device}
train_loader = LinkNeighborLoader(data, **links["train"].to_pyg(), shuffle=True, **shared)
val_loader, test_loader = (LinkNeighborLoader(data, **links[split].to_pyg(), **shared) for split in ("val", "test"))


class Model(torch.nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(0.1 * torch.randn(data.num_nodes, channels), freeze=False)
        self.gnn = GraphSAGE(data.num_features + channels, channels, num_layers=len(args.fanout), dropout=0.3)
        self.to(args.device)

    def forward(self, batch):
        asked = torch.isin(batch.e_id % (data.num_edges // 2), batch.input_id) & self.training  # hide these edges
        x = torch.cat([batch.x, F.dropout(self.embedding(batch.n_id), dropout, self.training)], dim=1)
        return self.gnn(x, batch.edge_index[:, ~asked])[batch.edge_label_index].prod(dim=0).sum(dim=1)


model = torch.nn.parallel.DistributedDataParallel(Model()) if world_size > 1 else Model()
optimizer, best = torch.optim.Adam(model.parameters(), lr=0.005), (0.0, 0.0)


@torch.no_grad()
def auc(loader):
    """The probability that a true edge scores higher than a negative."""
    model.eval()
    parts = [(model(batch).cpu(), batch.edge_label.cpu()) for batch in loader if not batch.is_padding.any()]
    if world_size > 1:
        dist.all_gather_object(gathered := [None] * world_size, parts)
        parts = [part for of_rank in gathered for part in of_rank]
    scores, labels = map(torch.cat, zip(*parts, strict=True))
    true, false = scores[labels == 1], scores[labels == 0].sort().values
    return torch.searchsorted(false, true).float().mean().item() / len(false)


for epoch in range(1, (args.epochs or epochs) + 1):
    model.train()
    for batch in train_loader:
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.edge_label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    best = max(best, scores := (auc(val_loader), auc(test_loader)))
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f} in the last batch, AUC {scores[0]:.3f} on validation edges")
if rank == 0:
    print(train_loader.stats(), f"test AUC {best[1]:.3f} in the best epoch; guessing: 0.500", sep="\n")
