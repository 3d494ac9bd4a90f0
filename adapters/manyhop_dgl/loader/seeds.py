"""Seeds of a loader: its ``indices``, and their copy for a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from manyhop.arguments import as_ids
from manyhop.errors import InputError
from manyhop.graph import NodeType
from manyhop.loading.pipeline import BatchPlan
from manyhop.system.arrays import from_array, is_map_style, version_of

Indices: TypeAlias = Tensor | dict[Any, Tensor]


class Seeds(IterableDataset[Indices]):
    """Indices that a loader cuts into batches: a tensor, or one tensor for each type.

    Args:
        indices: ``[num_seeds, ...]``, or type -> the same.
    """

    def __init__(self, indices: Indices) -> None:
        self.indices = indices
        tensors = list(indices.values()) if isinstance(indices, dict) else [indices]
        self.types = [None] if isinstance(indices, Tensor) else list(indices)
        """The types of seeds; ``None`` if they have none."""
        self._ends = torch.tensor([tensor.shape[0] for tensor in tensors], dtype=torch.int64).cumsum(0)
        self.num_seeds = int(self._ends[-1]) if tensors else 0

    def __iter__(self) -> Iterator[Indices]:
        """The seeds one by one, in their own order."""
        return (self.at(torch.tensor([i])) for i in range(self.num_seeds))

    def on_host(self) -> Seeds:
        """Return the seeds in host memory."""
        if isinstance(self.indices, Tensor):
            return Seeds(self.indices.cpu()) if self.indices.is_cuda else self
        there = any(tensor.is_cuda for tensor in self.indices.values())
        return Seeds({kind: tensor.cpu() for kind, tensor in self.indices.items()}) if there else self

    def at(self, positions: Tensor) -> Indices:
        """Return the indices at positions ``[count] int64``; with multiple types, by type, if any occur."""
        if isinstance(self.indices, Tensor):
            return self.indices[positions]
        if len(self.indices) == 1:
            return {kind: tensor[positions] for kind, tensor in self.indices.items()}
        place = torch.searchsorted(self._ends, positions, right=True)
        found = {}
        for i, (kind, tensor) in enumerate(self.indices.items()):
            mine = positions[place == i]
            if mine.numel():
                found[kind] = tensor[mine - (self._ends[i] - tensor.shape[0])]
        return found


class GivenBatches(IterableDataset[Any]):
    """Indices by batch.

    Args:
        dataset: an iterable of the indices of batches, or something with ``__len__`` and ``__getitem__``.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        """The indices of one batch after the other."""
        dataset = self.dataset
        if isinstance(dataset, Iterable):
            return iter(dataset)
        return (dataset[i] for i in range(len(dataset)))

    def number(self) -> int | None:
        """Return how many batches there are; ``None``: not known."""
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError):
            return None


def as_seeds(indices: object) -> Seeds | GivenBatches:
    """Convert the argument ``indices``.

    Raises:
        InputError: an object without indices.
    """
    if isinstance(indices, Mapping):
        return Seeds({kind: as_ids(f"indices[{kind!r}]", value) for kind, value in indices.items()})
    if isinstance(indices, Tensor | np.ndarray):
        return Seeds(as_ids("indices", indices))
    if is_map_style(indices) and not _has_ids(indices):
        return GivenBatches(indices)
    try:
        tensor = from_array(indices)
    except (TypeError, ValueError, RuntimeError):
        tensor = None
    if tensor is not None:
        return Seeds(as_ids("indices", tensor))
    if isinstance(indices, Iterable) and not isinstance(indices, str | bytes):
        return GivenBatches(indices)
    raise InputError(
        "Expected indices to be a tensor, a dictionary of tensors by type, or a dataset of the indices of batches, got "
        f"a {type(indices).__name__}."
    )


def _has_ids(dataset: Any) -> bool:
    """Return whether the items of a map-style dataset are single ids, by the first one."""
    return len(dataset) > 0 and torch.as_tensor(dataset[0]).dim() == 0


MOST = 8 << 20
"""Maximum number of seeds on the GPU; more are looked up on the host."""


class GPUSeeds:
    """Seed nodes of one type.

    Args:
        node_type: their type.
        ids: ``[num_seeds]`` integers in host memory. Changes in place are followed.
        device: the GPU.
    """

    def __init__(self, node_type: NodeType, ids: Tensor, device: torch.device) -> None:
        from manyhop.loading.pipeline.gpu import GPUPositions  # imports triton

        self._node_type, self._ids, self._device = node_type, ids, device
        self._positions = GPUPositions(device)
        self._copy()

    def of(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> SeedsOfBatches:
        """Return the seeds of some batches of an epoch, enqueued on the current stream."""
        if version_of(self._ids) != self._version:
            self._copy()
        (_, ids), sizes = self._positions(plan, epoch, batches, [self._there])
        return SeedsOfBatches(self._node_type, ids, sizes)

    def _copy(self) -> None:
        self._version = version_of(self._ids)
        self._there = self._ids.to(self._device, torch.int64, copy=True).contiguous()


class SeedsOfBatches(Sequence["SeedsOfBatches"]):
    """The seeds of some batches, one behind the other on the GPU."""

    def __init__(self, node_type: NodeType, ids: Tensor, sizes: list[int]) -> None:
        self.node_type, self.ids, self.sizes = node_type, ids, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int | slice) -> SeedsOfBatches:
        first, end, _ = (slice(i, i + 1) if isinstance(i, int) else i).indices(len(self))
        ends = list(accumulate(self.sizes, initial=0))
        return SeedsOfBatches(self.node_type, self.ids[ends[first] : ends[max(first, end)]], self.sizes[first:end])
