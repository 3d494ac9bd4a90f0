"""Measures what Python does for a batch of a loader on a GPU, the PyG object and all: on a CPU, without any kernel and
without CUDA's calls. Memory is that of the CPU, streams and events are left out, launches always say the same sizes.

python tests/pyg/measure_python_part.py
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # the CPU stands for the GPU
os.environ["OMP_NUM_THREADS"] = "1"

import time
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from gpu_stand_ins import CPU, MEMORY, NoStreams
from torch import Tensor

import manyhop_pyg
from manyhop.features._gpu.gather import gather_on_gpu
from manyhop.pipeline._gpu import GPUPositions
from manyhop.sampling._gpu.workspace import Workspace

NODES, BATCH_SIZE, BATCHES, EPOCHS = 1 << 16, 1024, 128, 40


class NoKernel:
    def prepare(self, device: torch.device) -> None: ...
    def __call__(self, *arguments: Any) -> None: ...


def positions(self: Any, plan: Any, epoch: int, batches: Any, tables: Any = ()) -> tuple[list[Tensor], list[int]]:
    """Some inputs, and how many."""
    index = torch.arange(len(batches) * BATCH_SIZE)
    return [index, *(table[: len(index)] for table in tables)], [BATCH_SIZE] * len(batches)


def wait(self: Workspace, really: Any = Workspace.wait) -> Any:
    """Each batch has added 15, 10 and 5 edges, and as many nodes."""
    self._nodes[:] = [[1024], [1039], [1049], [1054]]
    self._edges[:] = [[0], [15], [25], [30]]
    self._failed[:] = 0
    return really(self)


def needed(self: Workspace) -> Any:
    return self.capacity.nodes * 0 + 1100, self.capacity.edges * 0 + 31


def gather(requests: Any, *, checks: Any, **others: Any) -> list[Any]:
    return gather_on_gpu(requests, CPU, checks=checks)


def main() -> None:
    torch.set_num_threads(1)
    features, graph = manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    edge_index = torch.randint(0, NODES, (2, 4 * NODES))
    graph.put_edge_index(edge_index, edge_type=None, layout="coo", size=(NODES, NODES))
    features.put_tensor(torch.randn(NODES, 17), group_name=None, attr_name="x", index=None)
    features.put_tensor(torch.randint(0, 5, (NODES,)), group_name=None, attr_name="y", index=None)
    with (
        patch("manyhop_pyg._loader.find_device", lambda wanted, data: CPU),
        patch("manyhop_pyg._on_gpu.decide_memory", lambda *args, **kwargs: MEMORY),
        patch("manyhop_pyg._on_gpu.Streams", NoStreams),
        patch("manyhop_pyg._on_gpu.gather", gather),
        patch("manyhop.graph.placed.place_graph", lambda graph, *others: graph),
        patch("manyhop.features._gpu.plan._kernel", lambda *args: NoKernel()),
        patch.object(GPUPositions, "__call__", positions),
        patch.multiple(Workspace, wait=wait, needed=needed, _run=lambda self: None, _write=lambda self, outs: None),
    ):
        seeds = torch.randint(0, NODES, (BATCHES * BATCH_SIZE,))
        loader = manyhop_pyg.NeighborLoader(
            (features, graph), [15, 10, 5], input_nodes=seeds, batch_size=BATCH_SIZE, shuffle=True, seed=1, device="cpu"
        )
        times = []
        for _ in range(EPOCHS):
            begin = time.thread_time()
            count = sum(1 for _ in loader)
            times.append(1e6 * (time.thread_time() - begin) / count)
    print(f"{median(times):.1f} us per batch (least {min(times):.1f})")


if __name__ == "__main__":
    main()
