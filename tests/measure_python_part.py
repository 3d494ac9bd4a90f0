"""Measures what Python does for a batch of loaders on a GPU, objects of PyG and DGL and all: on a CPU, without any
kernel and without CUDA's calls (``host_part.py``). The loaders take turns. Batches "one by one" are completed alone, as
where ranks exchange rows; others several at a time. "And replays": of captured steps, on batches of fixed sizes.

PYTHONPATH=tests python tests/measure_python_part.py
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # the CPU stands for the GPU
os.environ["OMP_NUM_THREADS"] = "1"

import contextlib
import time
from itertools import accumulate
from statistics import median

import host_part
import pytest
import torch
from host_part import (
    dgl_loader_without_kernels,
    graphbolt_loader_without_kernels,
    in_step,
    loader_without_kernels,
    step_without_kernels,
)

import manyhop_dgl
import manyhop_pyg
from manyhop_dgl import BlockTensors

BATCHES, EPOCHS, TURNS = 128, 20, 3


@contextlib.contextmanager
def of_seeds(seeds, make):
    """Let the batches of a loader have so many seeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_part, "BATCH_SIZE", seeds)
        with make() as loader:
            yield loader


LOADERS = {
    "PyG": lambda: loader_without_kernels(BATCHES),
    "PyG, edges of which are read": lambda: loader_without_kernels(BATCHES),
    "PyG, one by one": lambda: in_step(loader_without_kernels(BATCHES)),
    "DGL, tensors, one by one": lambda: in_step(dgl_loader_without_kernels(BATCHES, output="tensors")),
    "DGL, tensors": lambda: dgl_loader_without_kernels(BATCHES, output="tensors"),
    "DGL, tensors, edges of which are read": lambda: dgl_loader_without_kernels(BATCHES, output="tensors"),
    "DGL, tensors, edges of which are read, 17 batches a launch": lambda: of_seeds(
        944, lambda: dgl_loader_without_kernels(BATCHES, output="tensors")
    ),
    "DGL, tensors of which all is read": lambda: dgl_loader_without_kernels(BATCHES, output="tensors"),
    "DGL, blocks": lambda: dgl_loader_without_kernels(BATCHES),
    "DGL, blocks of which all is read": lambda: dgl_loader_without_kernels(BATCHES),
    "GraphBolt": lambda: graphbolt_loader_without_kernels(BATCHES),
    "PyG, and replays": lambda: loader_without_kernels(BATCHES, pad="auto"),
    "DGL, tensors, and replays": lambda: dgl_loader_without_kernels(BATCHES, pad="auto", output="tensors"),
    "DGL, blocks, and replays": lambda: dgl_loader_without_kernels(BATCHES, pad="auto"),
}


def read_edges(batch):
    """Read the edges of each layer, as layers do."""
    if isinstance(batch, BlockTensors):
        _ = [(block.indptr, block.indices) for block in batch.blocks]
    else:
        _ = [batch.edge_index.narrow(1, 0, end) for end in accumulate(batch.num_sampled_edges)]


def read(batch):
    """Have all parts of the blocks made."""
    if isinstance(batch, BlockTensors):
        _ = [block.ids for block in batch.blocks]
        return
    for block in batch[2]:
        _ = block._graph, block._node_frames, block._edge_frames


def main() -> None:
    torch.set_num_threads(1)
    times = {name: [] for name in LOADERS}
    for _ in range(TURNS):
        for name, make in LOADERS.items():
            capture = manyhop_pyg.capture if name.startswith("PyG") else manyhop_dgl.capture
            step = step_without_kernels(setattr, capture) if name.endswith("replays") else None
            with make() as loader:
                for batch in loader:
                    if step is not None:
                        step(batch)
                for _ in range(EPOCHS):
                    begin, count = time.thread_time(), 0
                    for batch in loader:
                        count += 1
                        if step is not None:
                            step(batch)
                        elif "edges" in name:
                            read_edges(batch)
                        elif name.endswith("read"):
                            read(batch)
                    times[name].append(1e6 * (time.thread_time() - begin) / count)
    for name, us in times.items():
        print(f"{name}: {median(us):.1f} us per batch (least {min(us):.1f})")


if __name__ == "__main__":
    main()
