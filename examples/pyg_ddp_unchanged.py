"""DDP as in PyG's own examples, without manyhop: each rank has its part of the seeds, rank 0 evaluates.

    torchrun --nproc-per-node 2 examples/pyg_ddp_unchanged.py                   # with PyG's loaders
    torchrun --nproc-per-node 2 -m manyhop_pyg examples/pyg_ddp_unchanged.py    # with manyhop's

Predicts the genre of a film, as pyg_node_classification.py does.
"""

import argparse

import datasets
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=6)
args = parser.parse_args()
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
data = datasets.show_classes(datasets.load("movies")).to_pyg()
num_classes = int(data.y.max()) + 1
train_index = data.train_mask.nonzero().flatten()
train_index = train_index.split(len(train_index) // world_size)[rank]
shared = {"num_neighbors": [10, 10], "batch_size": 256 // world_size}
train_loader = NeighborLoader(data, input_nodes=train_index, shuffle=True, **shared)
if rank == 0:
    val_loader = NeighborLoader(data, input_nodes=data.val_mask, **shared)

model = DistributedDataParallel(GraphSAGE(data.num_features, 64, num_layers=2, out_channels=num_classes, dropout=0.5))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def predict(model, batch):
    batch.x[: batch.batch_size, -num_classes:] = 0  # hide the classes that are asked for
    return model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]


for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        out, y = predict(model, batch)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            right = [out.argmax(dim=1) == y for out, y in (predict(model.module, batch) for batch in val_loader)]
        print(f"epoch {epoch}: accuracy {torch.cat(right).float().mean():.3f} on validation nodes")
    dist.barrier()
dist.destroy_process_group()
