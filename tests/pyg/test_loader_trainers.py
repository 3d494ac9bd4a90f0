"""Libraries that make loaders of their own out of ours: Accelerate, Ray Train."""

import os
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from manyhop.errors import InputError
from manyhop_pyg import NeighborLoader


def test_a_loader_made_of_its_dataset_is_refused(data):
    """As Ray Train makes it: its batches would be samples without features, of keys of their own."""
    loader = NeighborLoader(data, [3, 2], batch_size=8)
    assert list(loader.dataset[2:4]) == [2, 3]
    with pytest.raises(InputError, match=r"prepare_data_loader.*distributed=True"):
        next(iter(DataLoader(loader.dataset, batch_size=8, collate_fn=loader.collate_fn)))


@pytest.mark.slow
def test_accelerate_leaves_a_single_rank_as_it_is(data, monkeypatch):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=5)
    loader = NeighborLoader(data, [3, 2], batch_size=8, num_workers=1)
    try:
        assert accelerator.prepare(loader) is loader
        states = []
        for _ in range(2):
            states.append([accelerator.gradient_state.end_of_dataloader for _ in loader])
        assert states == [[False] * 7 + [True]] * 2
        assert not accelerator.gradient_state.in_dataloader
        for _ in loader:
            break
        assert not accelerator.gradient_state.in_dataloader
        with pytest.raises(InputError, match="load_state_dict"):
            next(iter(accelerate.skip_first_batches(loader, 2)))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(InputError, match="distributed=True"):
            accelerator.prepare(loader)
    finally:
        accelerator.free_memory()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


def train(config):
    import ray.train.torch
    from torch_geometric.data import Data

    data = Data(edge_index=torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(1)), num_nodes=60)
    loader = NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, distributed=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    seeds = torch.cat([batch.input_id[~batch.is_padding] for batch in loader])
    rank = ray.train.get_context().get_world_rank()
    torch.save(seeds, f"{config['folder']}/{rank}.pt")


@pytest.mark.filterwarnings("ignore")
def test_ray_train(tmp_path):
    ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'ray[train]')")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environ})
    try:
        TorchTrainer(
            train,
            train_loop_config={"folder": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        ).fit()
    finally:
        ray.shutdown()
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert all(part.numel() for part in parts)
    assert torch.cat(parts).sort().values.tolist() == list(range(60))
