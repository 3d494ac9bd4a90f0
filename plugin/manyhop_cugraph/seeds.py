"""The seeds of several batches, as one call of cuGraph takes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhop.sampling.contract import NodeRequest
from manyhop.sampling.gpu.launch.seeds import SeedGroup
from manyhop_cugraph.numbering import Numbering


@dataclass(frozen=True)
class Seeds:
    """Seeds of several batches. A label is what cuGraph keeps apart: a batch or, if disjoint, the tree of a seed."""

    key: Tensor
    """``[num_seeds] int64``: ``label * num_vertices + vertex``, batch by batch, in the order of the requests."""

    unique: Tensor
    """``[num_unique] int64``: the same, ascending, each once: what cuGraph is asked for."""

    batch_of_label: Tensor
    """``[num_labels] int64``."""

    first_label: Tensor
    """``[num_batches] int64``: the first label of each batch."""

    time: tuple[Tensor, Tensor] | None
    """``[num_unique] int64`` each: earliest and latest time of the edges of each of ``unique``; disjoint only."""

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return self.first_label.numel()

    @property
    def num_labels(self) -> int:
        """Number of labels."""
        return self.batch_of_label.numel()

    @property
    def is_empty(self) -> bool:
        """Whether no batch has any."""
        return self.key.numel() == 0

    @property
    def has_copies(self) -> bool:
        """Whether a batch has a seed more than once; not if disjoint."""
        return self.key.numel() > self.unique.numel()

    def tensors(self) -> list[Tensor]:
        """Return all that there are."""
        return [self.key, self.unique, self.batch_of_label, self.first_label, *(self.time or ())]

    def offsets(self, numbering: Numbering) -> Tensor:
        """Return ``[num_labels + 1] int64``: where each label begins in ``unique``."""
        labels = torch.arange(self.num_labels + 1, device=self.unique.device)
        return torch.searchsorted(self.unique, labels * numbering.num_vertices)


EARLIEST = -(1 << 62)
"""Before all times: where no limit is given."""


def gather_seeds(
    requests: Sequence[NodeRequest], numbering: Numbering, device: torch.device, *, disjoint: bool
) -> Seeds:
    """Return the seeds of batches.

    Args:
        requests: the batches, checked; tensors on the CPU or on ``device``.
        numbering: of the graph.
        device: where the result is.
        disjoint: whether each seed has a tree of its own.
    """
    vertex, sizes = _vertices(requests, numbering, device)
    batch = torch.repeat_interleave(torch.tensor(sizes, device=device), output_size=sum(sizes))
    if disjoint:  # a label per seed: no label has a seed twice
        label = torch.arange(sum(sizes), device=device)
        key = label * numbering.num_vertices + vertex
        ends = torch.tensor(sizes, device=device).cumsum(0)
        return Seeds(key, key, batch, ends - torch.tensor(sizes, device=device), _times(requests, device))
    key = batch * numbering.num_vertices + vertex
    every = torch.arange(len(sizes), device=device)
    return Seeds(key, torch.unique(key), every, every, None)


def join_seeds(parts: Sequence[Seeds], numbering: Numbering) -> Seeds:
    """Return the seeds of several works as those of one; all have times, or none."""
    if len(parts) == 1:
        return parts[0]
    labels = list(itertools.accumulate((part.num_labels for part in parts), initial=0))
    batches = list(itertools.accumulate((part.num_batches for part in parts), initial=0))
    every = list(zip(parts, labels, batches, strict=False))
    times = [part.time for part in parts if part.time is not None]
    return Seeds(
        torch.cat([part.key + label * numbering.num_vertices for part, label, _ in every]),
        torch.cat([part.unique + label * numbering.num_vertices for part, label, _ in every]),
        torch.cat([part.batch_of_label + batch for part, _, batch in every]),
        torch.cat([part.first_label + label for part, label, _ in every]),
        (torch.cat([first for first, _ in times]), torch.cat([last for _, last in times])) if times else None,
    )


def no_seeds(num_batches: int, device: torch.device, *, disjoint: bool, timed: bool) -> Seeds:
    """Return batches without seeds, with which a rank takes part in a call of the others."""
    none, every = torch.empty(0, dtype=torch.int64, device=device), torch.arange(num_batches, device=device)
    return Seeds(none, none, none if disjoint else every, torch.zeros_like(every), (none, none) if timed else None)


def _vertices(requests: Sequence[NodeRequest], numbering: Numbering, device: torch.device) -> tuple[Tensor, list[int]]:
    """Return ``[num_seeds] int64`` vertices of all batches, and the number of seeds of each."""
    if isinstance(requests, SeedGroup):
        return numbering.vertices(requests.node_type, requests.seeds.to(device)), list(requests.sizes)
    parts = [numbering.vertices(t, seeds) for request in requests for t, seeds in request.seeds.items()]
    sizes = [sum(seeds.numel() for seeds in request.seeds.values()) for request in requests]
    return _joined(parts, device), sizes


def _times(requests: Sequence[NodeRequest], device: torch.device) -> tuple[Tensor, Tensor] | None:
    if isinstance(requests, SeedGroup) or requests[0].time_max is None:
        return None
    latest = [times for request in requests for times in (request.time_max or {}).values()]
    earliest: list[Tensor] = []
    for request in requests:
        given = request.time_min
        for node_type, times in (request.time_max or {}).items():
            earliest.append(torch.full_like(times, EARLIEST) if given is None else given[node_type])
    return _joined(earliest, device), _joined(latest, device)


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return tensors as one, on the device, by one copy if they are all on the CPU."""
    if not parts:
        return torch.empty(0, dtype=torch.int64, device=device)
    if len({part.device for part in parts}) > 1:
        parts = [part.to(device) for part in parts]
    return torch.cat(list(parts)).to(device)
