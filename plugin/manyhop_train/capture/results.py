"""Results of replays: memory of the caller's, which graphs copy small results to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

R = TypeVar("R")

MOST: Final = 8
"""Tensors of a result that a graph copies, at most."""
_SMALL: Final = 256
"""Bytes of such a tensor, at most: results that a caller keeps also keep the memory of others."""
_AT_ONCE: Final = 64
_ALIGNED: Final = 16


def small_of(leaves: Sequence[object], device: torch.device) -> list[int]:
    """Return the numbers of those leaves of a result that a graph copies."""
    return [i for i, leaf in enumerate(leaves) if _is_small(leaf, device)][:MOST]


def copied(result: R) -> R:
    """Copy the tensors of a result."""
    if isinstance(result, Tensor):
        return result.clone()  # type: ignore[return-value]  # R is Tensor
    copies: R = pytree.tree_map_only(Tensor, torch.clone, result)
    return copies


class Results(Generic[R]):
    """The results of the replays of a graph.

    Args:
        result: what the graph writes.
        device: where the graph copies small tensors itself; ``None``: it copies none.
    """

    def __init__(self, result: R, device: torch.device | None) -> None:
        self._result = result
        self._leaves, self._spec = pytree.tree_flatten(result)
        self._numbers = [] if device is None else small_of(self._leaves, device)
        self._small: list[Tensor] = [self._leaves[i] for i in self._numbers]
        self._others = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor) and i not in self._numbers]
        self._addresses: list[tuple[int, ...]] = []  # of replays to come
        self._parts: list[tuple[Tensor, ...]] = []
        self._stream: object = None
        self._latest: tuple[Tensor, ...] = ()

    def place(self) -> tuple[int, ...]:
        """Return where the next replay copies its small results."""
        if not self._small:
            return ()
        device = self._small[0].device
        stream = torch._C._cuda_getCurrentStream(device.index) if device.type == "cuda" else None
        if not self._parts or stream != self._stream:
            self._stream = stream
            self._allocate(device)
        self._latest = self._parts.pop()
        return self._addresses.pop()

    def copies(self) -> R:
        """Return the results of the replay that was enqueued last, which are the caller's."""
        if self._small and self._result is self._small[0]:
            return self._latest[0]  # type: ignore[return-value]  # R is Tensor
        leaves = list(self._leaves)
        for i, part in zip(self._numbers, self._latest, strict=True):
            leaves[i] = part
        for i in self._others:
            leaves[i] = leaves[i].clone()
        whole: R = pytree.tree_unflatten(leaves, self._spec)
        return whole

    def _allocate(self, device: torch.device) -> None:
        """Get memory for many replays: an allocation for each would cost more than its use."""
        parts, addresses = list[list[Tensor]](), list[range]()
        for tensor in self._small:
            step = -(-tensor.nbytes // _ALIGNED) * _ALIGNED
            own, whole = tensor.numel(), step // tensor.element_size()
            memory = torch.empty(whole * _AT_ONCE, dtype=tensor.dtype, device=device)
            # These are no views of one tensor: a change of one does not count as a change of all.
            own_parts = memory.unsafe_split_with_sizes([own, whole - own] * _AT_ONCE)[::2]
            parts.append([part.view(tensor.shape) for part in own_parts])
            first = own_parts[0].data_ptr()
            addresses.append(range(first, first + step * _AT_ONCE, step))
        self._parts = list(zip(*parts, strict=True))
        self._addresses = list(zip(*addresses, strict=True))


def _is_small(tensor: object, device: torch.device) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.device == device
        and tensor.layout is torch.strided
        and 0 < tensor.nbytes <= _SMALL
        and not tensor.is_complex()
        and not tensor.is_neg()
        and tensor.is_contiguous()
    )
