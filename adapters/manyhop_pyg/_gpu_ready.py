"""Kernels that a loader on a GPU needs beside those that sample: compiled while these are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from manyhop.sampling import SampledSubgraph
from manyhop_pyg._join import join_all

if TYPE_CHECKING:
    from manyhop_pyg._on_gpu import OnGPU


@contextmanager
def compiling_gathers(loader: Any, gpu: OnGPU, most: int) -> Iterator[None]:
    """In the body, a thread compiles the kernels that gather the rows of one batch, and of ``most`` at once.

    What fails there does so again, and is said, when batches are made.
    """
    if gpu.memory.exchanges or not gpu.joins_groups(loader):
        yield
        return

    def work() -> None:
        with suppress(Exception), gpu.streams.here():
            for count in sorted({1, most}):
                join_all(loader, [_nothing(loader, gpu.device) for _ in range(count)], [])

    thread = threading.Thread(target=work, name="manyhop-compile", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _nothing(loader: Any, device: torch.device) -> Any:
    """A sample without nodes and edges, in PyG's terms."""
    sampler, _ = loader._sampler()
    graph = sampler.topology.graph
    none = torch.empty(0, dtype=torch.int64, device=device)
    nodes, edges = dict.fromkeys(graph.node_types, none), dict.fromkeys(graph.edge_types, none)
    return sampler.node_output(
        SampledSubgraph(
            node=nodes,
            row=edges,
            col=edges,
            edge_id=dict(edges),
            tree=None,
            num_sampled_nodes=None,
            num_sampled_edges=None,
        )
    )
