"""Loaders of ranks that do not share batches: PyG's meaning, and draws of their own."""

import itertools
import os
import subprocess

import forks
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


PYG_ALONE = """
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE


def run(rank, world_size, data):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", sys.argv[1])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    train_idx = data.train_mask.nonzero().view(-1)
    train_idx = train_idx.split(train_idx.size(0) // world_size)[rank]
    kwargs = dict(batch_size=32, num_workers=2, persistent_workers=True)
    train_loader = NeighborLoader(data, [5, 3], input_nodes=train_idx, shuffle=True, drop_last=True, **kwargs)
    if rank == 0:  # evaluation on a single rank
        test_loader = NeighborLoader(data, input_nodes=None, num_neighbors=[-1], shuffle=False, **kwargs)
    torch.manual_seed(12345)
    model = DistributedDataParallel(GraphSAGE(8, 16, num_layers=2, out_channels=3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = 0
    for epoch in range(2):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
            seen += batch.batch_size
        dist.barrier()
        if rank == 0:
            model.eval()
            assert sum(batch.batch_size for batch in test_loader) == data.num_nodes
        dist.barrier()
    weights = torch.cat([p.detach().view(-1) for p in model.parameters()])
    first = weights.clone()
    dist.broadcast(first, 0)
    assert torch.equal(weights, first)
    del model  # as the last owner of the group, it may hang
    sys.stdout.write(f"rank {rank}: {seen} seeds from {type(train_loader).__module__}\\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    g = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.randn(400, 8, generator=g),
        y=torch.randint(0, 3, (400,), generator=g),
        edge_index=torch.randint(0, 400, (2, 3000), generator=g),
        train_mask=torch.arange(400) < 256,
    )
    run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), data)
"""


@pytest.mark.slow
def test_a_script_for_pyg_alone(tmp_path):
    """Seeds split by hand, evaluation on rank 0: as in PyG's examples, under `python -m manyhop_pyg`.

    For ranks that the script spawns, see ``tests/pyg/test_install_main.py``.
    """
    from launch import reserve_port

    script = tmp_path / "train.py"
    script.write_text(PYG_ALONE)
    env = {k: v for k, v in forks.environment().items() if k not in ("RANK", "WORLD_SIZE")}
    with reserve_port() as one, reserve_port() as other:
        ports = [reserved.getsockname()[1] for reserved in (one, other)]
        command = ["torch.distributed.run", f"--master-port={ports[0]}", "--nproc-per-node=2", "-m"]
        command += ["manyhop_pyg", str(script), str(ports[1])]
        done = subprocess.run(
            [forks.python(), "-m", *command], env=env, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"rank {rank}: 256 seeds from manyhop_pyg.loaders.node" in done.stdout
