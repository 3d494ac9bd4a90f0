"""DGL's DataLoader and manyhop's for ``manyhop bench``: an entry point of ``manyhop.peers``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import dgl
import torch

from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.loader.loader import DataLoader
from manyhop_dgl.samplers.neighbor import NeighborSampler


def epochs(
    folder: Path, *, fanout: Sequence[int], batch_size: int, batches: int, threads: int, device: str
) -> dict[str, Callable[[], tuple[int, int]] | str]:
    """Return epochs of both loaders over the graph of a folder, with all features of its nodes."""
    graph = Graph.open(folder)
    node_type = graph.canonical_etypes[0][2]
    seeds: Any = torch.randperm(graph.num_nodes(node_type), generator=torch.Generator().manual_seed(0))
    seeds = seeds[: batches * batch_size]
    names: Any = {each: list(graph.nodes[each].data) for each in graph.ntypes}
    if len(graph.ntypes) == 1:
        names = names[node_type]
    else:
        seeds = {node_type: seeds}
    fanouts = list(fanout)[::-1]  # the outermost hop first
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "device": device}
    loader = DataLoader(
        graph,
        seeds,
        NeighborSampler(fanouts, prefetch_node_feats=names),
        num_workers=threads if threads > 1 else 0,
        output="blocks" if device == "cpu" else "tensors",
        **options,
    )
    found: dict[str, Callable[[], tuple[int, int]] | str] = {"manyhop": _epoch(loader)}
    if device != "cpu":
        return found
    sampler = dgl.dataloading.NeighborSampler(fanouts, prefetch_node_feats=names)
    peer = dgl.dataloading.DataLoader(graph.to_dgl(), seeds, sampler, num_workers=0, **options)

    def in_threads() -> tuple[int, int]:
        torch.set_num_threads(threads)  # of OpenMP within a batch: DGL's worker processes are slower
        dgl.utils.set_num_threads(threads)
        try:
            return _epoch(peer)()
        finally:
            torch.set_num_threads(1)

    return found | {"DGL": in_threads}


def _epoch(loader: Iterable[object]) -> Callable[[], tuple[int, int]]:
    def run() -> tuple[int, int]:
        count = edges = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DGL's advice about cores
            for batch in loader:
                count += 1
                edges += _edges_of(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return count, edges

    return run


def _edges_of(batch: Any) -> int:
    """Return the edges of all blocks, whose rows a model reads: DGL gathers features when they are requested."""
    if not isinstance(batch, tuple | list):
        blocks = [block.indices for block in batch.blocks]
        return sum(sum(t.numel() for t in b.values()) if isinstance(b, dict) else b.numel() for b in blocks)
    blocks = batch[2]
    for node_type in blocks[0].ntypes:
        for name in list(blocks[0].srcnodes[node_type].data):
            blocks[0].srcnodes[node_type].data[name]
    return sum(block.num_edges() for block in blocks)
