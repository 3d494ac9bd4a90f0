"""Which GPU is a process's own, and the messages where two ranks have the same."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from manyhop.loading.which_gpu import choose_gpu, own_gpu, warn_if_shared
from manyhop.ranks import cuda
from manyhop.system import triton_compiler


@pytest.mark.parametrize(
    ("data", "bound", "current", "holding", "expected"),
    [
        (2, 3, 1, [0], 2),  # the data's
        (None, 3, 1, [0], 3),  # the group's
        (None, 0, 1, [1], 0),
        (None, None, 0, [3], 3),  # the model's: mp.spawn without torch.cuda.set_device
        (None, None, 0, [], 0),
        (None, None, 0, [0], 0),
        (None, None, 0, [1, 2], 0),  # nobody knows
        (None, None, 2, [], 2),  # torch.cuda.set_device, torchrun
        (None, None, 2, [0], 2),
        (0, None, 2, [2], 0),
    ],
)
def test_the_gpu_is_that_of_data_group_model_or_torch(data, bound, current, holding, expected):
    assert choose_gpu(data=data, bound=bound, current=current, holding=holding) == expected


@pytest.fixture
def four_gpus(monkeypatch):
    """GPU 3 has tensors of this process."""
    monkeypatch.setattr(cuda, "initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda k: 1024 * (k == 3))


def test_facts_come_from_torch(four_gpus, monkeypatch):
    assert own_gpu() == own_gpu([torch.ones(1)]) == torch.device("cuda", 3)
    there = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 2))
    assert own_gpu([torch.ones(1), there]) == torch.device("cuda", 2)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for bound, expected in ((torch.device("cuda", 1), 1), (torch.device("cpu"), 3), (None, 3)):
        monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=bound)))
        assert own_gpu() == torch.device("cuda", expected)


def test_a_process_without_gpu_has_none():
    assert own_gpu() is None


def test_adapters_ask_for_it(four_gpus, monkeypatch):
    from torch_geometric.data import Data

    from manyhop_graphbolt import ItemSampler, ItemSet
    from manyhop_graphbolt.loader.chain import Chain, gpu_of
    from manyhop_pyg.loaders.options import find_device

    monkeypatch.setattr(triton_compiler, "usable", lambda: True)
    data = Data(x=torch.ones(3, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    assert find_device(None, data) == gpu_of(Chain(ItemSampler(ItemSet(torch.arange(3)), 1))) == torch.device("cuda", 3)
    assert find_device(torch.device("cuda"), data) == torch.device("cuda", 0)  # what torch means by it
    assert find_device(torch.device("cpu"), data) is None


def test_the_second_rank_on_a_gpu_gets_a_warning(monkeypatch):
    store, device = dist.HashStore(), torch.device("cuda", 0)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(cuda, "uuid_of", lambda device: "GPU-1")
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda: store)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    for _ in range(2):
        warn_if_shared(device)  # of the first one
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    with pytest.warns(UserWarning, match=r"Ranks 0 and 1 make their batches on the same GPU \(cuda:0 of rank 1\)"):
        warn_if_shared(device)
    warn_if_shared(torch.device("cpu"))
