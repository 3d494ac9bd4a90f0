"""Where a loader makes its batches: on a GPU, or on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from manyhop.errors import InputError
from manyhop.features import DistributedRows
from manyhop.loading import check_placement, own_gpu
from manyhop.system import triton_compiler
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.typing import PyGData


def check_device(device: torch.device | str | None, placement: object) -> torch.device | None:
    """The device that the user names; ``None``: where the process works already.

    Raises:
        InputError: no device, a GPU that is not there, or a placement that is none, or for a CPU.
    """
    check_placement(placement, None)
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise InputError(f"Expected device to be 'cuda', 'cuda:0', 'cpu' or None, got {device!r}.")
    check_placement(placement, found)
    if found.type == "cuda" and not (found.index or 0) < torch.cuda.device_count():
        raise InputError(
            f"Expected a device that is there, got {device!r}, and {torch.cuda.device_count()} CUDA devices are found. "
            "device='cpu' makes the batches on the CPU; device=None does where no GPU is in use."
        )
    return found


def find_device(wanted: torch.device | None, data: PyGData) -> torch.device | None:
    """The GPU for batches; ``None``: the CPU."""
    if wanted is not None:
        if wanted.type == "cpu":
            return None
        return torch.device("cuda", torch.cuda.current_device()) if wanted.index is None else wanted
    found = own_gpu(tensors_of(data))
    return found if found is not None and triton_compiler.usable() else None


def tensors_of(data: PyGData) -> Iterator[Tensor]:
    """The tensors among the attributes of data, or in a feature store of ours."""
    values: list[object] = []
    if isinstance(data, Data | HeteroData):
        values = [value for store in data.stores for value in store.values()]
    elif isinstance(data[0], FeatureStore):
        tensors = [column.tensor for column in data[0].columns()]
        values = [tensor.rows if isinstance(tensor, DistributedRows) else tensor for tensor in tensors]
    return (value for value in values if isinstance(value, Tensor))
