"""Helpers for groups of samples: sizes of groups, small tensors, copies to a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from manyhop.graph import Graph
from manyhop.sampling import SampledSubgraph

MOST_ALONE = 32, 16384
"""The most batches, and seeds, of a launch; more are hardly faster."""

MOST_TOGETHER = 64
"""The most batches per call of all ranks, which takes milliseconds for any number."""

_GROUP_OF_UNKNOWN = 4
BACKLOG = 4  # batches in the caller's stream, enough to keep it busy
BACKLOG_TOGETHER = 8  # the same while the host is held by a call of all ranks


def group_size(batch_size: int | None, most: tuple[int, int]) -> int:
    """Return the number of batches per launch.

    ``most`` is the most batches, and seeds. An unknown ``batch_size`` is ``None``.
    """
    if batch_size is None:
        return _GROUP_OF_UNKNOWN
    return max(1, min(most[0], most[1] // batch_size))


def empty_sample(graph: Graph, device: torch.device) -> SampledSubgraph:
    """Return a sample of one hop without nodes and edges, to compile kernels with."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    nodes, edges = dict.fromkeys(graph.node_types, none), dict.fromkeys(graph.edge_types, none)
    return SampledSubgraph(
        node=nodes,
        row=edges,
        col=dict(edges),
        edge_id=dict(edges),
        tree=None,
        num_sampled_nodes={node_type: [0, 0] for node_type in nodes},
        num_sampled_edges={edge_type: [0] for edge_type in edges},
    )


_AT_ONCE = 64
_MOST = 1 << 16  # entries made at once
_KINDS = 64


class TensorPool:
    """A pool of equal tensors, created many at once, since a launch for each would cost much. Thread-safe.

    Args:
        device: the GPU.
        one: ``one(n, device=device)`` creates a tensor, ``[n]``, such as ``torch.arange``.
    """

    def __init__(self, device: torch.device, one: Callable[..., Tensor]) -> None:
        self._device, self._one = device, one
        self._spare: dict[tuple[int, int], list[Tensor]] = {}  # by length, and by the stream that made them

    def take(self, n: int) -> Tensor:
        """Return an unshared tensor of length ``n``, allocated on the current stream."""
        on_gpu = self._device.type == "cuda"
        key = n, torch._C._cuda_getCurrentRawStream(self._device.index) if on_gpu else 0
        spare = self._spare.get(key)
        if spare is None:
            if len(self._spare) == _KINDS:
                self._spare = {}
            spare = self._spare.setdefault(key, [])
        try:
            return spare.pop()
        except IndexError:
            made = self._make(n)
            spare += made[1:]
            return made[0]

    def _make(self, n: int) -> list[Tensor]:
        copies = max(1, min(_AT_ONCE, _MOST // max(n, 1)))
        with torch.inference_mode(False):  # the next batch may be outside of it
            together = self._one(n, device=self._device).repeat(copies)
            # Unlike results of split(), these are not views: a change of one does not count as a change of all.
            return list(together.unsafe_split_with_sizes([n] * copies))


def upload(tensors: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Copy tensors to the device, by one asynchronous copy per dtype."""
    results = list(tensors)
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor is not None and tensor.device != device:
            by_dtype.setdefault(tensor.dtype, []).append(i)
    for dtype, positions in by_dtype.items():
        parts = [tensor for i in positions if (tensor := tensors[i]) is not None]
        sizes = [part.numel() for part in parts]
        staging = torch.empty(sum(sizes), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")
        torch.cat([part.reshape(-1) for part in parts], out=staging)
        sent = torch.split(staging.to(device, non_blocking=True), sizes)
        for i, part, flat in zip(positions, parts, sent, strict=True):
            results[i] = flat.view(part.shape)
    return results
