"""Loaders of ranks that do not share batches: PyG's meaning, and draws of their own."""

import itertools
import os

import pytest
import torch
import torch.distributed as dist
from rank_loaders import LOADERS, digest, graph, homogeneous, one_process
from torch_geometric.sampler import NodeSamplerInput

from manyhop.errors import InputError
from manyhop.ranks import world
from manyhop_pyg import NeighborLoader, NeighborSampler


def draw():
    """No group is needed: torchrun's variables tell the rank."""
    batches = {name: [[digest(b) for b in loader] for _ in range(2)] for name, loader in make_all()}
    loader = homogeneous(seed=5)
    seen = [digest(batch) for batch in itertools.islice(loader, 3)]
    state = loader.state_dict()
    again = homogeneous(seed=0)
    again.load_state_dict(state)
    seen += [digest(batch) for batch in again]
    torch.manual_seed(1)
    outside = NeighborSampler(graph(), [3]).sample_from_nodes(NodeSamplerInput(None, torch.arange(20))).node
    called = homogeneous(seed=5)(list(range(20))).n_id
    return batches, seen, state, outside, called, dist.is_initialized()


def make_all():
    return [(name, LOADERS[name](seed=5)) for name in LOADERS]


@pytest.mark.slow
def test_each_rank_has_draws_of_its_own(launcher):
    seen = launcher.run(draw, world_size=3)
    here = draw()
    for name in LOADERS:
        ranks = [rank[0][name] for rank in seen]
        assert ranks[0] == here[0][name] == one_process(name, 2), "rank 0 is as a process alone"
        assert len({tuple(epoch) for epochs in ranks for epoch in epochs}) == 3 * 2
    for batches, resumed, state, outside, called, initialized in seen:
        assert resumed == batches["homogeneous"][0]
        assert state == here[2]
        assert torch.equal(outside, here[3]), "outside of loaders, torch's generator decides, as ever"
        assert torch.equal(called, here[4])
        assert not initialized


def use_group_of_the_user(folder):
    rank = int(os.environ.pop("RANK"))
    loader = homogeneous(seed=5)  # made before the group is
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mine = digest(next(iter(loader)))
    only_here = [digest(batch) for batch in homogeneous(seed=9)] if rank == 0 else []
    dist.destroy_process_group()
    return mine, only_here, world.current().world_size


def test_the_rank_of_a_group(launcher, tmp_path):
    (first, only_here, size), (second, nothing, _) = launcher.run(use_group_of_the_user, str(tmp_path))
    assert first == one_process("homogeneous")[0][0] != second
    assert (len(only_here), nothing, size) == (8, [], 1)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"uneven": "drop"}, "uneven only with distributed=True"),
        ({"rank_timeout": 9.0}, "rank_timeout only with distributed=True"),
        ({"distributed": True, "uneven": "both"}, "'pad', 'drop' or 'error', got 'both'"),
        ({"distributed": True, "rank_timeout": 0}, "rank_timeout in seconds, more than 0"),
        ({"distributed": True, "sampler": [1, 2]}, "no sampler with distributed=True"),
        ({"distributed": True, "batch_sampler": [[1, 2]], "batch_size": 1}, "no batch_sampler with distributed=True"),
    ],
)
def test_arguments_that_make_no_sense(kwargs, message):
    with pytest.raises(InputError, match=message):
        NeighborLoader(graph(), [2], **kwargs)
