"""GraphSAGE on sampled neighbourhoods: plain GraphBolt and DDP, with one import changed.

    python examples/graphbolt_node_classification.py                         # 1 process; a GPU if there is one
    torchrun --nproc-per-node 4 examples/graphbolt_node_classification.py    # 4 processes

Predicts the genre of a film (--dataset ogbn-arxiv: the subject of a paper). The features include the classes of
training nodes, except those of the seeds; with --no-graph, no neighbours are sampled.
"""

import argparse
import os
from itertools import pairwise

import manyhop_dgl.graphbolt as gb  # isort: skip  # first: with it, DGL works on any torch
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
args = parser.parse_args()
torch.manual_seed(0)
alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
if args.device == "cuda" and torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
dist.init_process_group(**alone)  # NCCL for tensors on GPUs, gloo for others

data = datasets.show_classes(datasets.load(args.dataset))
num_classes, fanout = int(data.y.max()) + 1, [0 for _ in args.fanout] if args.no_graph else args.fanout
graph = gb.from_dglgraph(dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes), is_homogeneous=True)
features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(data.x)})


def make_loader(mask, **options):
    items = gb.ItemSet((mask.nonzero().view(-1), data.y[mask]), names=("seeds", "labels"))
    datapipe = gb.DistributedItemSampler(items, batch_size=256 // dist.get_world_size(), **options)
    datapipe = datapipe.sample_neighbor(graph, fanout).fetch_feature(features, node_feature_keys=["feat"])
    return gb.DataLoader(datapipe.copy_to(args.device), num_workers=args.workers)


class SAGE(torch.nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.layers = torch.nn.ModuleList(dgl.nn.SAGEConv(*pair, "mean") for pair in pairwise(sizes))

    def forward(self, batch):
        h = batch.node_features["feat"]
        h[: len(batch.labels), -num_classes:] = 0  # hide the classes that are asked for
        for i, (layer, block) in enumerate(zip(self.layers, batch.blocks, strict=True)):
            h = layer(block, F.dropout(F.relu(h), training=self.training) if i > 0 else h)
        return h


train_loader = make_loader(data.train_mask, shuffle=True, drop_uneven_inputs=True)
test_loader = make_loader(data.test_mask)
model = DistributedDataParallel(SAGE(data.num_features, *[64 for _ in fanout[1:]], num_classes).to(args.device))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        loss = F.cross_entropy(model(batch), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = torch.zeros((), device=args.device)
    for batch in test_loader:
        with torch.no_grad():
            right += (model.module.eval()(batch).argmax(dim=1) == batch.labels).sum()
    dist.all_reduce(right)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss:.3f} in the last batch, test accuracy {right / data.test_mask.sum():.3f}")
dist.destroy_process_group()
