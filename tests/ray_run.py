"""A script under Ray Train, where Ray is installed, on two ranks of the CPU."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def run_on_two(train: Callable[[dict[str, str]], None], folder: Path) -> list[Any]:
    """Return what ``train(config)`` has saved in ``config['folder']`` as ``RANK.pt``, of both ranks."""
    ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'ray[train]')")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environ})
    try:
        TorchTrainer(
            train,
            train_loop_config={"folder": str(folder)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(folder / "runs")),
        ).fit()
    finally:
        ray.shutdown()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]
