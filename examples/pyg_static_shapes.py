"""GraphSAGE on batches of fixed sizes: on a GPU, the training step is captured as a CUDA graph and replayed.

    python examples/pyg_static_shapes.py                         # on the GPU if there is one
    python examples/pyg_static_shapes.py --device cpu            # the same batches; every step runs eagerly

With pad="auto" batches have one of few sizes: padding edges join padding nodes only, and masks mark real entries.
`capture` records the step once per size; `accelerate` lets the layers aggregate without atomics, and only what the
seeds' rows need.
"""

import argparse
import time

import datasets
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from manyhop_pyg import NeighborLoader, accelerate, capture

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10], help="neighbours per node, hop by hop")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args()
torch.manual_seed(0)

data = datasets.show_classes(datasets.load(args.dataset)).to_pyg()
num_classes, batch_size = int(data.y.max()) + 1, 256
shared = {"num_neighbors": args.fanout, "batch_size": batch_size, "device": args.device, "num_workers": 1}
train_loader = NeighborLoader(data, input_nodes=data.train_mask, shuffle=True, pad="auto", **shared)
test_loader = NeighborLoader(data, input_nodes=data.test_mask, **shared)
model = GraphSAGE(data.num_features, 64, len(args.fanout), num_classes).to(args.device)
print("layers that aggregate without atomics:", *accelerate(model, trim=True).reached)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def hide_classes(batch):
    batch.x[: batch.batch_size, -num_classes:] = 0  # those that are asked for


@capture
def step(batch):
    hide_classes(batch)
    out = model(batch.x, batch.edge_index)[:batch_size]
    loss = F.cross_entropy(out, batch.y[:batch_size], reduction="none")
    loss = (loss * batch.seed_mask).sum() / batch.seed_mask.sum()  # the last batch may have fewer seeds
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


for epoch in range(args.epochs):
    losses = [step(batch) for batch in train_loader]
    print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}")
steps = args.epochs * len(train_loader)
print(train_loader.stats(), f"{step.replayed} of {steps} steps replayed, {step.graphs} CUDA graphs", sep="\n")

right = 0
with torch.no_grad():
    for batch in test_loader:
        hide_classes(batch)
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        right += (out.argmax(dim=1) == batch.y[: batch.batch_size]).sum().item()
print(f"test accuracy {right / data.test_mask.sum():.3f}")
if step.replayed:
    batch = next(iter(train_loader))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(100):
        step(batch)
    torch.cuda.synchronize()
    print(f"a step takes {(time.perf_counter() - start) * 10:.2f} ms replayed")
