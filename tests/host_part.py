"""A loader on a "GPU" that is the CPU, with all that Python does for a batch and without any kernel or call of CUDA;
and a captured step.

Memory is that of the CPU, streams and events are left out, launches always report the same sizes.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gpu_stand_ins import CPU, Patch, exchange_nothing, pyg_works_on, stand_for_gpu
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import manyhop_pyg
from manyhop.capture import CapturedStep, arguments, copies, step
from manyhop.features.gathering import gpu_plan
from manyhop.features.gathering.gpu import gather_on_gpu
from manyhop.graph import PlacedGraph
from manyhop.loading.gpu import runtime
from manyhop.pipeline.gpu import GPUPositions
from manyhop.pipeline.gpu import pad as gpu_pad
from manyhop.sampling.engines import placed_engine
from manyhop.sampling.gpu.launch.sequence import KernelSequence
from manyhop.sampling.gpu.launch.workspace import Workspace
from manyhop.system import triton_compiler

NODES, BATCH_SIZE = 1 << 16, 1024


class NoKernel:
    def prepare(self, device: torch.device) -> None: ...
    def __call__(self, *arguments: Any) -> None: ...


def positions(self: Any, plan: Any, epoch: int, batches: Any, tables: Any = ()) -> tuple[list[Tensor], list[int]]:
    """Some inputs, and how many."""
    index = torch.arange(len(batches) * BATCH_SIZE)
    return [index, *(table[: len(index)] for table in tables)], [BATCH_SIZE] * len(batches)


def wait(self: Workspace, really: Any = Workspace.wait) -> Any:
    """Each batch has added 15, 10 and 5 edges, and as many nodes."""
    self.host.node_counts[:] = [[1024], [1039], [1049], [1054]]
    self.host.edge_counts[:] = [[0], [15], [25], [30]]
    self.host.failed_array[:] = 0
    return really(self)


def required(self: Workspace) -> Any:
    return self.capacity.nodes * 0 + 1100, self.capacity.edges * 0 + 31


def gather(requests: Any, *, checks: Any, **others: Any) -> list[Any]:
    return gather_on_gpu(requests, CPU, checks=checks)


@contextlib.contextmanager
def without_kernels() -> Iterator[pytest.MonkeyPatch]:
    """Let loaders that take the way of GPUs work on the CPU inside the context."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_for_gpu(monkeypatch.setattr)
        for owner, name, value in (
            (runtime, "gather", gather),
            (gpu_plan, "_kernel", lambda *_: NoKernel()),
            (gpu_pad, "_pad", NoKernel),
            (gpu_pad, "_clear", lambda size: NoKernel()),
            (triton_compiler, "runs_on", lambda device: True),
            (GPUPositions, "__call__", positions),
            (Workspace, "wait", wait),
            (Workspace, "required", required),
            (KernelSequence, "run", lambda self: None),
            (KernelSequence, "write", lambda self, out: None),
        ):
            monkeypatch.setattr(owner, name, value)
        yield monkeypatch


@contextlib.contextmanager
def loader_without_kernels(
    batches: int, *, of_data: bool = False, **options: Any
) -> Iterator[manyhop_pyg.NeighborLoader]:
    """Make a loader of ``batches`` batches, of stores or ``of_data``, which works inside the context."""
    features, graph = manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    edge_index = torch.randint(0, NODES, (2, 4 * NODES))
    graph.put_edge_index(edge_index, edge_type=None, layout="coo", size=(NODES, NODES))
    x, y = torch.randn(NODES, 17), torch.randint(0, 5, (NODES,))
    features.put_tensor(x, group_name=None, attr_name="x", index=None)
    features.put_tensor(y, group_name=None, attr_name="y", index=None)
    data = Data(x=x, y=y, edge_index=edge_index) if of_data else (features, graph)
    with without_kernels() as monkeypatch:
        pyg_works_on(monkeypatch.setattr, CPU)
        seeds = torch.randint(0, NODES, (batches * BATCH_SIZE,))
        fixed: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 1, "device": "cpu"}
        yield manyhop_pyg.NeighborLoader(data, [15, 10, 5], input_nodes=seeds, **fixed, **options)


@contextlib.contextmanager
def in_step(made: contextlib.AbstractContextManager[Any]) -> Iterator[Any]:
    """A loader that makes batches as where ranks exchange rows on GPUs, in the caller's thread."""
    with pytest.MonkeyPatch.context() as monkeypatch, made as loader:
        exchange_nothing(monkeypatch.setattr, loader)
        monkeypatch.setattr(loader, "distributed", True)
        yield loader


@contextlib.contextmanager
def dgl_loader_without_kernels(batches: int, **options: Any) -> Iterator[Any]:
    """Make a loader of DGL's kind of ``batches`` batches, which works inside the context."""
    import manyhop_dgl  # first, so that DGL can be imported
    from manyhop_dgl.samplers import cut, plan
    from manyhop_dgl.torch_graphs.where import graphs_of_cpu_too

    src, dst = torch.randint(0, NODES, (2, 4 * NODES))
    g = manyhop_dgl.Graph((src, dst), NODES)
    g.ndata["x"], g.ndata["y"] = torch.randn(NODES, 17), torch.randint(0, 5, (NODES,))
    sampler = manyhop_dgl.NeighborSampler([5, 10, 15], prefetch_node_feats=["x"], prefetch_labels=["y"])

    def engine(graph: Any, spec: Any, empty: Any) -> Any:
        return placed_engine(PlacedGraph.of(graph, CPU, "device"), spec)

    with without_kernels() as monkeypatch, graphs_of_cpu_too():
        monkeypatch.setattr(manyhop_dgl.DataLoader, "samples_on_gpu", lambda self: True)
        monkeypatch.setattr(plan, "engine_for", engine)
        monkeypatch.setattr(cut, "_fill", lambda table, device: None)
        seeds = torch.randint(0, NODES, (batches * BATCH_SIZE,))
        yield manyhop_dgl.DataLoader(g, seeds, sampler, batch_size=BATCH_SIZE, shuffle=True, seed=1, **options)


@contextlib.contextmanager
def graphbolt_loader_without_kernels(batches: int) -> Iterator[Any]:
    """Make a loader of GraphBolt's kind of ``batches`` minibatches, which works inside the context."""
    import manyhop_dgl.graphbolt as gb
    from manyhop_dgl.graphbolt.loader import loader
    from manyhop_dgl.samplers import cut

    src, dst = torch.randint(0, NODES, (2, 4 * NODES))
    counts = torch.bincount(dst, minlength=NODES)
    graph = gb.fused_csc_sampling_graph(torch.cat([counts[:0].new_zeros(1), counts.cumsum(0)]), src)
    values = {"x": torch.randn(NODES, 17), "y": torch.randint(0, 5, (NODES, 1))}
    features = {("node", None, name): gb.TorchBasedFeature(value) for name, value in values.items()}
    items = gb.ItemSet(torch.randint(0, NODES, (batches * BATCH_SIZE,)), names="seeds")
    pipe = gb.ItemSampler(items, batch_size=BATCH_SIZE, shuffle=True, seed=1).copy_to("cuda")
    pipe = pipe.sample_neighbor(graph, [5, 10, 15]).fetch_feature(
        gb.BasicFeatureStore(features), node_feature_keys=["x", "y"]
    )
    with without_kernels() as monkeypatch:
        monkeypatch.setattr(loader, "gpu_of", lambda pipe: CPU)
        monkeypatch.setattr(gb.CopyTo, "step", lambda self, item: item)
        monkeypatch.setattr(cut, "_fill", lambda table, device: None)
        yield gb.DataLoader(pipe)


class NoRecorder:
    """Runs what is to be recorded, and nothing when it is replayed."""

    def run(self, function: Callable[[], Any]) -> Any:
        return function()

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        return (lambda: None), function()

    def between(self, function: Callable[[], None]) -> None: ...


def step_without_kernels(patch: Patch, capture: Any = manyhop_pyg.capture) -> CapturedStep[Any, Tensor]:
    """Return a captured step of a GraphSAGE of three layers and Adam, without forward and backward passes.

    Args:
        patch: see ``gpu_stand_ins.py``.
        capture: that of an adapter.
    """
    patch(step, "recorder_of", lambda device: NoRecorder())
    patch(copies, "_kernel", lambda size, out: NoKernel())
    patch(arguments, "_fetch", lambda width: NoKernel())
    model = GraphSAGE(17, 8, 3, 5)
    optimizer = torch.optim.Adam(model.parameters())

    def update(batch: Any) -> Tensor:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return torch.zeros(())

    return capture(update)
