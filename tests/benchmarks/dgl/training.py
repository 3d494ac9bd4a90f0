"""``benchmarks dgl --gpu``: loaders that feed a GPU, and training steps of DGL's layers beside PyG's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import GATConv, SAGEConv
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GraphSAGE

from benchmarks.common.measure import MANYHOP, Contender
from benchmarks.dgl.graphs import CLASSES
from manyhop_dgl import DataLoader, NeighborSampler
from manyhop_pyg import NeighborLoader

_HIDDEN, _HEADS = 256, 4
DGLS_LAYERS, PYGS_LAYERS = "DGL's layers", "PyG's layers"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all contenders do: neighbourhoods of the same seeds of the same graph, on the same device."""

    g: dgl.DGLGraph
    """On the CPU, with ``feat [num_nodes, width] float32`` and ``label [num_nodes] int64``."""
    seeds: Tensor
    fanouts: list[int]
    """DGL's order: the input layer first."""
    batch_size: int
    device: torch.device
    workers: int
    """Processes of DGL's own loader."""

    @property
    def num_batches(self) -> int:
        """Of an epoch."""
        return -(-len(self.seeds) // self.batch_size)


def loaders(work: Work) -> list[Contender]:
    """Whole loaders, ours and DGL's own, which samples and gathers on the CPU, up to blocks and rows on the device."""
    theirs = _dgls_loader(work, dgl.dataloading.NeighborSampler, dgl.dataloading.DataLoader, num_workers=0)
    workers = _dgls_loader(
        work, dgl.dataloading.NeighborSampler, dgl.dataloading.DataLoader, num_workers=work.workers,
        persistent_workers=True,
    )  # fmt: skip
    return [
        _epochs(work, "loader", name, loader, lambda batch: batch[-1][0].srcdata["feat"])
        for name, loader in (
            (MANYHOP, _ours(work)),
            ("DGL", theirs),
            (f"DGL, {work.workers} workers", workers),
        )
    ]


def steps(works: Sequence[Work]) -> list[Contender]:
    """Training with DGL's layers and with PyG's, both on loaders of ours, for works on one graph."""
    g = works[0].g
    graph = Data(x=g.ndata["feat"], y=g.ndata["label"], edge_index=torch.stack(g.edges()))
    return [contender for work in works for contender in _steps(work, graph)]


def _steps(work: Work, graph: Data) -> list[Contender]:
    width = graph.num_features
    ours = _ours(work)
    theirs = NeighborLoader(
        graph, work.fanouts[::-1], work.seeds, batch_size=work.batch_size, shuffle=True, device=work.device
    )
    layers = len(work.fanouts)
    models: list[tuple[str, nn.Module, nn.Module]] = [
        ("SAGE", Layers(sage(width, layers)), GraphSAGE(width, _HIDDEN, layers, CLASSES)),
        (
            "GAT",
            Layers(_gat(width, layers)),
            GAT(width, _HIDDEN, layers, CLASSES, heads=_HEADS, add_self_loops=False, act="relu"),
        ),
    ]
    found = []
    for name, dgls, pygs in models:
        workload = f"step of {name}, {layers} x {_HIDDEN}"
        found.append(_epochs(work, workload, DGLS_LAYERS, ours, train(dgls, work.device, of_blocks)))
        found.append(_epochs(work, workload, PYGS_LAYERS, theirs, train(pygs, work.device, _of_pyg)))
    return found


class Layers(nn.Module):
    """Layers of DGL, with ReLUs between them."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, blocks: list[dgl.DGLGraph], h: Tensor) -> Tensor:
        """Return ``[num_seeds, num_classes]`` for ``[num_src, num_features]`` of the first block."""
        last = len(self.layers) - 1
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, h)
            if h.dim() > 2:  # heads
                h = h.flatten(1) if i < last else h.mean(1)
            h = F.relu(h) if i < last else h
        return h


def sage(width: int, num_layers: int) -> list[nn.Module]:
    """Return layers of GraphSAGE."""
    sizes = [width, *[_HIDDEN] * (num_layers - 1), CLASSES]
    return [SAGEConv(sizes[i], sizes[i + 1], "mean") for i in range(num_layers)]


def _gat(width: int, num_layers: int) -> list[nn.Module]:
    sizes = [width, *[_HIDDEN] * (num_layers - 1)]
    outs = [*[_HIDDEN // _HEADS] * (num_layers - 1), CLASSES]
    return [GATConv(sizes[i], outs[i], _HEADS, allow_zero_in_degree=True) for i in range(num_layers)]


def of_blocks(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return outputs and labels of a batch of DGL's kind."""
    blocks = batch[-1]
    return model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"]


def _of_pyg(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    out = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    return out[: batch.batch_size], batch.y[: batch.batch_size]


def train(
    model: nn.Module, device: torch.device, call: Callable[..., tuple[Tensor, Tensor]]
) -> Callable[[Any], Tensor]:
    """Return a step of training on a batch, which gives the loss; ``call``: outputs and labels of a batch."""
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda" or None)

    def step(batch: Any) -> Tensor:
        loss = F.cross_entropy(*call(model, batch))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        optimizer.step()
        return loss.detach()

    return step


def _ours(work: Work) -> Iterable[Any]:
    return _dgls_loader(work, NeighborSampler, DataLoader)


def _dgls_loader(work: Work, sampler: Callable[..., Any], loader: Callable[..., Any], **options: Any) -> Iterable[Any]:
    made: Iterable[Any] = loader(
        work.g,
        work.seeds,
        sampler(work.fanouts, prefetch_node_feats=["feat"], prefetch_labels=["label"]),
        batch_size=work.batch_size,
        shuffle=True,
        device=work.device,
        **options,
    )
    return made


def _epochs(work: Work, workload: str, name: str, loader: Iterable[Any], use: Callable[[Any], object]) -> Contender:
    """A contender whose turn is an epoch, up to the GPU's last kernel."""

    def run(num_batches: int) -> int:
        edges = 0
        for batch in loader:
            use(batch)
            edges += batch.num_edges if isinstance(batch, Data) else sum(block.num_edges() for block in batch[-1])
        if work.device.type == "cuda":
            torch.cuda.synchronize()
        return edges

    return Contender(workload=workload, name=name, threads=1, run=run, turn=work.num_batches)
