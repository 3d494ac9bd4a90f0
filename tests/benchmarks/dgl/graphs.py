"""The graphs of ``benchmarks dgl``, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import dgl
import torch

CLASSES = 47
FEATURES = 128
FANOUTS = [5, 10, 15]
"""Of three layers, the input layer first."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    name: str
    scale: int
    """The graph has ``2 ** scale`` nodes."""
    num_edges: int
    rounds: int
    batches: int
    """Batches of a loader's epoch."""


STANDARD = Size(name="dgl", scale=20, num_edges=15_000_000, rounds=9, batches=32)
ON_GPU = replace(STANDARD, rounds=4)
QUICK = Size(name="dgl-quick", scale=17, num_edges=1_500_000, rounds=3, batches=4)


def rmat(scale: int, num_edges: int, device: torch.device | str = "cpu") -> dgl.DGLGraph:
    """A ``DGLGraph`` by R-MAT (Chakrabarti, Zhan and Faloutsos, 2004) with the probabilities 0.57, 0.19, 0.19, 0.05.

    It is drawn on ``device``, and is on the CPU.
    """
    ends = torch.zeros(2, num_edges, dtype=torch.int64, device=device)
    for _ in range(scale):
        quarter = torch.rand(num_edges, device=device)
        ends <<= 1
        ends[0] += quarter >= 0.76
        ends[1] += ((quarter >= 0.57) & (quarter < 0.76)) | (quarter >= 0.95)
    src, dst = ends.cpu()
    return dgl.graph((src, dst), num_nodes=1 << scale)


def with_data(g: dgl.DGLGraph) -> dgl.DGLGraph:
    """Give every node features ``feat [FEATURES] float32`` and a label below ``CLASSES``."""
    g.ndata["feat"] = torch.rand(g.num_nodes(), FEATURES)
    g.ndata["label"] = torch.arange(g.num_nodes()) % CLASSES
    return g
