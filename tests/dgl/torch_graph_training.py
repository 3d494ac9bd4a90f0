"""The models of DGL's examples, trained on manyhop's loaders: the loss of each step, on any device, also as ranks."""

import faulthandler
import itertools
import time
from contextlib import nullcontext

import manyhop_dgl  # isort: skip  # lets DGL be imported, also in ranks that import this first
import dgl
import dgl.nn.pytorch as dnn
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyhop
import manyhop_dgl.graphbolt as gb
from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too

CLASSES, WIDTH, HIDDEN, NODES, RELATIONS = 3, 8, 16, 160, 3
FREE = {"allow_zero_in_degree": True}


def plain_graph():
    """Edges of three relations among nodes of three classes, which the features hint at."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, CLASSES, (NODES,), generator=generator)
    src, dst = torch.randint(0, NODES, (2, 1200), generator=generator)
    near = label[src] == label[dst]
    g = dgl.graph((torch.cat([src[near], src[:200]]), torch.cat([dst[near], dst[:200]])), num_nodes=NODES)
    g.ndata["label"] = label
    g.ndata["feat"] = F.one_hot(label, WIDTH).float() + torch.randn(NODES, WIDTH, generator=generator)
    g.edata["relation"] = torch.arange(g.num_edges()) % RELATIONS
    return g


def typed_graph():
    """Users, and films of three classes that the users' features hint at."""
    g = plain_graph()
    src, dst = g.edges()
    user, film = src % 60, dst % 50
    typed = dgl.heterograph(
        {("user", "rates", "film"): (user, film), ("film", "rated", "user"): (film, user)}, {"user": 60, "film": 50}
    )
    typed.nodes["film"].data["label"] = g.ndata["label"][:50]
    typed.nodes["film"].data["feat"], typed.nodes["user"].data["feat"] = g.ndata["feat"][:50], g.ndata["feat"][:60]
    return typed


class Stack(nn.Module):
    """Two layers, and the loss of a batch of seed nodes."""

    def __init__(self, make):
        super().__init__()
        self.layers = nn.ModuleList([make(WIDTH, HIDDEN), make(HIDDEN, CLASSES)])

    def encode(self, blocks, h):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = self.message(layer, block, F.relu(h) if i > 0 else h)
        return h

    def message(self, layer, block, h):
        out = layer(block, h)
        return out.mean(1) if out.dim() > 2 else out

    def forward(self, batch):
        blocks = batch[-1]
        return F.cross_entropy(self.encode(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])


class Relations(Stack):
    """R-GCN over the relations of edges."""

    def message(self, layer, block, h):
        return layer(block, h, block.edata["relation"])[: block.num_dst_nodes()]


class Types(Stack):
    """R-GCN over edge types."""

    def message(self, layer, block, h):
        return layer(block, h)

    def encode(self, blocks, h):
        h = self.layers[0](blocks[0], h)
        return self.layers[1](blocks[1], {kind: F.relu(rows) for kind, rows in h.items()})["film"]

    def forward(self, batch):
        blocks = batch[-1]
        loss = F.cross_entropy(self.encode(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"]["film"])
        return loss + 0 * sum(p.sum() for p in self.parameters())  # DDP: all of them have gradients


class Links(Stack):
    """Which pairs are edges."""

    def forward(self, batch):
        _, pairs, negatives, blocks = batch
        h = self.encode(blocks, blocks[0].srcdata["feat"])
        scores = [dgl.ops.u_dot_v(graph, h, h) for graph in (pairs, negatives)]
        return F.softplus(-scores[0]).mean() + F.softplus(scores[1]).mean()


class MiniBatches(Stack):
    """GraphSAGE on GraphBolt's minibatches."""

    def forward(self, batch):
        return F.cross_entropy(self.encode(batch.blocks, batch.node_features["feat"]), batch.labels)


def sage(n, m):
    return dnn.SAGEConv(n, m, "mean")


def of_types(n, m):
    return dnn.HeteroGraphConv({t: dnn.GraphConv(n, m, norm="right", **FREE) for t in ("rates", "rated")}, "sum")


MODELS = {
    "SAGE": lambda: Stack(sage),
    "GAT": lambda: Stack(lambda n, m: dnn.GATConv(n, m, 2, **FREE)),
    "RelGraphConv": lambda: Relations(lambda n, m: dnn.RelGraphConv(n, m, RELATIONS, "basis", 2)),
    "HeteroGraphConv": lambda: Types(of_types),
    "link prediction": lambda: Links(sage),
    "GraphBolt": lambda: MiniBatches(sage),
}


def make_loader(name, device, *, ddp=False, placement=None, idtype=torch.int64, batch_size=32, **options):
    """A loader of two layers for a model; ``placement``: where a GPU reads edges and features."""
    placed = {} if placement is None else {"placement": placement}
    if name == "GraphBolt":
        return graphbolt_loader(device, batch_size, ddp, placed)
    g = (typed_graph() if name == "HeteroGraphConv" else plain_graph()).astype(idtype)
    feats = {"user": ["feat"], "film": ["feat"]} if len(g.ntypes) > 1 else ["feat"]
    labels = {"film": ["label"]} if len(g.ntypes) > 1 else ["label"]
    relation = ["relation"] if name == "RelGraphConv" else []
    sampler = manyhop_dgl.NeighborSampler(
        [6, 4], prefetch_node_feats=feats, prefetch_labels=labels, prefetch_edge_feats=relation, seed=1
    )
    seeds = {"film": torch.arange(50)} if len(g.ntypes) > 1 else torch.arange(NODES)
    if name == "link prediction":
        sampler = manyhop_dgl.NeighborSampler([6, 4], prefetch_node_feats=feats, seed=1)
        negatives = manyhop_dgl.Uniform(1)
        sampler = manyhop_dgl.as_edge_prediction_sampler(sampler, exclude="self", negative_sampler=negatives)
        seeds = torch.arange(NODES)
    seeds = {t: ids.to(idtype) for t, ids in seeds.items()} if isinstance(seeds, dict) else seeds.to(idtype)
    ranks = {"use_ddp": True} if ddp else {}
    return manyhop_dgl.DataLoader(
        g, seeds, sampler, batch_size=batch_size, shuffle=True, seed=3, device=device, **ranks, **placed, **options
    )


def graphbolt_loader(device, batch_size, ddp, placed):
    g = plain_graph()
    indptr, indices, _ = g.adj_tensors("csc")
    graph = gb.fused_csc_sampling_graph(indptr, indices)
    features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(g.ndata["feat"])})
    items = gb.ItemSet((torch.arange(NODES), g.ndata["label"]), names=("seeds", "labels"))
    if ddp:  # DDP waits for ever for ranks that have fewer batches
        pipe = gb.DistributedItemSampler(items, batch_size, shuffle=True, drop_uneven_inputs=True, seed=3)
    else:
        pipe = gb.ItemSampler(items, batch_size, shuffle=True, seed=3)
    pipe = pipe.copy_to(device)
    pipe = pipe.sample_neighbor(graph, [6, 4]).fetch_feature(features, node_feature_keys=["feat"])
    return gb.DataLoader(pipe, **placed)


def train(
    name,
    device="cpu",
    *,
    epochs=2,
    wrap=lambda model: model,
    convert=lambda batch: batch,
    scaler=None,
    dtype=None,
    **options,
):
    """Return the loss of each step, and the model.

    With ``scaler``, by torch.amp; with ``dtype``, under autocast; ``convert``: a batch to what the model gets.
    """
    torch.manual_seed(0)
    model = wrap(MODELS[name]().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = make_loader(name, device, **options)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None):
                loss = model(convert(batch))
            optimizer.zero_grad()
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            losses.append(loss.item())
    return losses, model


def train_on_ranks(kind, placement=None, limit=100.0):
    """Train each model for an epoch as one of several ranks, on a ``kind`` of device.

    Returns losses and parameters by model, and where the features are.
    """
    faulthandler.dump_traceback_later(0.9 * limit, exit=True)
    world, found = manyhop.init(), {}
    device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    ids = [device.index] if kind == "cuda" else None
    for name in MODELS:
        begin = time.perf_counter()
        # DGL's C++ makes the graphs of pairs on the host.
        with nullcontext() if kind == "cuda" or name == "link prediction" else graphs_of_cpu_too():
            losses, model = train(
                name,
                device,
                epochs=1,
                wrap=lambda model: nn.parallel.DistributedDataParallel(model, device_ids=ids),
                ddp=True,
                placement=placement,
            )
        found[name] = losses, [p.detach().cpu() for p in model.parameters()]
        print(f"rank {world.rank}: {name} {time.perf_counter() - begin:.1f} s", flush=True)
    chosen = make_loader("SAGE", device, ddp=True, placement=placement).placement
    faulthandler.cancel_dump_traceback_later()
    return found, {choice.place for choice in chosen.features} if kind == "cuda" else set()


def check_ranks(name, ranks):
    """Assert that two ranks have learned the same, from the first batches of a run of one process."""
    (losses, parameters), (others, other_parameters) = (found[name] for found, _ in ranks)
    assert all(map(torch.equal, parameters, other_parameters))
    assert losses != others  # each has batches of its own
    torch.manual_seed(0)
    model = MODELS[name]()
    alone = [model(batch).item() for batch in itertools.islice(make_loader(name, "cpu"), 2)]
    assert [losses[0], others[0]] == pytest.approx(alone, rel=1e-2)
