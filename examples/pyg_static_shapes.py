"""GraphSAGE on batches of fixed sizes: on a GPU, the training step is captured as a CUDA graph and replayed.

    python examples/pyg_static_shapes.py                         # on the GPU if there is one
    python examples/pyg_static_shapes.py --device cpu            # the same batches; every step runs eagerly

With pad="auto" batches have one of few sizes: padding edges join padding nodes only, and masks mark real entries. The
step is captured once per size, on static tensors, and replayed after a batch has been copied into them.
"""

import argparse
import time

import datasets
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from manyhop_pyg import NeighborLoader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=datasets.NAMES, default="movies")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10], help="neighbours per node, hop by hop")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args()
torch.manual_seed(0)
if on_gpu := args.device.startswith("cuda"):
    torch.cuda.set_stream(stream := torch.cuda.Stream(args.device))  # the default stream cannot be captured

data = datasets.show_classes(datasets.load(args.dataset)).to_pyg()
num_classes, batch_size = int(data.y.max()) + 1, 256
shared = {"num_neighbors": args.fanout, "batch_size": batch_size, "device": args.device, "num_workers": 1}
train_loader = NeighborLoader(data, input_nodes=data.train_mask, shuffle=True, pad="auto", **shared)
test_loader = NeighborLoader(data, input_nodes=data.test_mask, **shared)
model = GraphSAGE(data.num_features, 64, len(args.fanout), num_classes).to(args.device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=on_gpu)


def step(x, edge_index, y, seed_mask):
    x[:batch_size, -num_classes:] = 0  # hide the classes that are asked for
    loss = F.cross_entropy(model(x, edge_index)[:batch_size], y[:batch_size], reduction="none")
    optimizer.zero_grad()
    ((loss * seed_mask).sum() / seed_mask.sum()).backward()  # the last batch may have fewer seeds
    optimizer.step()


graphs, eager = {}, []  # size -> static tensors and the graph; the sizes of batches whose steps were run eagerly
for _ in range(args.epochs):
    for batch in train_loader:
        inputs = [batch.x, batch.edge_index, batch.y, batch.seed_mask]
        size = tuple(value.shape for value in inputs)
        if not on_gpu or eager.count(size) < 3:  # the first steps make what the optimizer keeps
            eager.append(size)
            step(*inputs)
            continue
        if size not in graphs:
            graphs[size] = [value.clone() for value in inputs], torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[size][1], stream=stream, capture_error_mode="thread_local"):
                step(*graphs[size][0])
        torch._foreach_copy_(graphs[size][0], inputs)
        graphs[size][1].replay()
steps = args.epochs * len(train_loader)
print(train_loader.stats(), f"{steps - len(eager)} of {steps} steps replayed, {len(graphs)} CUDA graphs", sep="\n")

right = 0
with torch.no_grad():
    for batch in test_loader:
        batch.x[: batch.batch_size, -num_classes:] = 0
        out = model(batch.x, batch.edge_index)
        right += (out.argmax(dim=1) == batch.y)[: batch.batch_size].sum().item()
print(f"test accuracy {right / data.test_mask.sum():.3f}")
if graphs:
    static, graph = next(iter(graphs.values()))
    for name, run in (("eagerly", lambda: step(*static)), ("replayed", graph.replay)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            run()
        torch.cuda.synchronize()
        print(f"a step takes {(time.perf_counter() - start) * 10:.2f} ms {name}")
