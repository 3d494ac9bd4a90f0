"""What a loader on a GPU needs is compiled side by side when it is made: one kernel takes about a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.sampler import NodeSamplerInput

from manyhop.pipeline import BatchPlan
from manyhop.sampling import BatchKey, SampledSubgraph
from manyhop_pyg._join import join_all

if TYPE_CHECKING:
    from manyhop_pyg._on_gpu import OnGPU


@contextmanager
def compiling_samplers(loader: Any, gpu: OnGPU) -> Iterator[None]:
    """In the body, which finds the inputs of batches, the kernels that sample around nodes are compiled."""
    with _beside(gpu, lambda: _begin(loader, gpu), asked=type(loader.input_data) is NodeSamplerInput):
        yield


@contextmanager
def compiling_gathers(loader: Any, gpu: OnGPU, most: int) -> Iterator[None]:
    """In the body, the kernels that gather rows are compiled, those of up to ``most`` batches at once."""
    own = not gpu.memory.exchanges and gpu.joins_groups(loader)
    with _beside(gpu, lambda: _gather(loader, gpu, most), asked=own):
        yield


@contextmanager
def _beside(gpu: OnGPU, work: Callable[[], None], *, asked: bool) -> Iterator[None]:
    """In the body, a thread works, if asked. What fails there does so again, and is said, when batches are made."""

    def run() -> None:
        with suppress(Exception), gpu.streams.here():
            work()

    thread = threading.Thread(target=run, name="manyhop-compile", daemon=True)
    if asked:
        thread.start()
    try:
        yield
    finally:
        if asked:
            thread.join()


def _begin(loader: Any, gpu: OnGPU) -> None:
    """Begin to sample a group, around inputs that need no kernel to be found. Nobody learns from that."""
    assert gpu.sampling is not None
    plan: BatchPlan = loader._plan()
    size, batches = plan.batch_size, range(min(len(plan), gpu.group_size))
    positions = [torch.arange(k * size, min((k + 1) * size, plan.num_items)) for k in batches]
    keys = [BatchKey(0, 0, batch) for batch in batches]
    loader._begin_on_gpu(gpu.sampling, [loader._inputs(index) for index in positions], keys)


def _gather(loader: Any, gpu: OnGPU, most: int) -> None:
    """Gather the rows of batches without nodes."""
    for count in sorted({1, max(1, most // 4), most}):
        join_all(loader, [_nothing(loader, gpu.device) for _ in range(count)], [])


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
