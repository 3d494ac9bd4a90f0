"""Ranks that mp.spawn starts, without torch.cuda.set_device: graph, features and batches go where the model is."""

import os
import socket
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch_geometric.data import Data

from manyhop_pyg import NeighborLoader

pytestmark = pytest.mark.multigpu


def load(rank, port, to_own, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.Linear(16, 4).to(rank if to_own else 0)
    edges = torch.randint(0, 1000, (2, 20_000), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.rand(1000, 16), edge_index=edges)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = NeighborLoader(data, [5, 5], batch_size=100, shuffle=True, num_workers=1)
        batches = list(loader)
    dist.barrier()
    own = next(model.parameters()).device
    on_own = {tensor.device for batch in batches for tensor in (batch.x, batch.edge_index)} == {own}
    elsewhere = sum(torch.cuda.memory_allocated(k) for k in range(torch.cuda.device_count()) if k != own.index)
    messages = [str(warning.message) for warning in caught if "same GPU" in str(warning.message)]
    queue.put((rank, on_own, elsewhere, len(messages)))
    dist.destroy_process_group()


def spawn(to_own):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(load, (port, to_own, queue), nprocs=2)
    return sorted(queue.get() for _ in range(2))


def test_batches_go_to_the_gpu_of_the_model():
    assert spawn(to_own=True) == [(0, True, 0, 0), (1, True, 0, 0)]


def test_ranks_that_share_a_gpu_are_warned_once():
    found = spawn(to_own=False)
    assert [row[:3] for row in found] == [(0, True, 0), (1, True, 0)]
    assert sum(row[3] for row in found) == 1
