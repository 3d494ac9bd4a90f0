"""From what a minibatch is about (nodes or links) to the nodes that sampling begins with, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import as_tensor, check_no_mask
from manyhop.errors import InputError
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.items.sets import UNSIGNED
from manyhop_graphbolt.stages.functional import unique_and_compact
from manyhop_graphbolt.types import Nodes, etype_str_to_tuple

Added: TypeAlias = tuple[str, int, torch.Size]
"""Where nodes are among the collected ones: their type, their part, the shape that they had."""


def begin_nodes(minibatch: MiniBatch) -> tuple[Nodes, Nodes | None]:
    """The nodes that sampling begins with, and their times (``None`` where the minibatch has no ``timestamp``).

    The minibatch gets the positions of its ``seeds`` among those nodes. Seeds that are nodes are taken as they are,
    repetitions included, so that the last layer has a column for each of them; nodes of pairs are taken once each.
    Where there are times, all repetitions are nodes of their own.

    Args:
        minibatch: one with ``seeds``.

    Returns:
        ``[num_nodes]`` each; by node type or not.

    Raises:
        InputError: there is nothing to begin with, or seeds that are neither ``[n]`` nor ``[n, 2]``.
    """
    if not isinstance(minibatch, MiniBatch):
        raise InputError(
            f"Expected a MiniBatch to sample for, got a {type(minibatch).__name__}. Name the items of the ItemSet: "
            "ItemSet(nodes, names='seeds')."
        )
    if minibatch.seeds is None:
        raise InputError("Expected a minibatch with seeds, got one without. Name the items of the ItemSet so.")
    return _of_seeds(minibatch, minibatch.seeds, getattr(minibatch, "timestamp", None))


class _Nodes:
    """Nodes that are collected from several tensors, by type."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self._nodes: dict[str, list[Tensor]] = {}
        self._times: dict[str, list[Tensor]] = {}
        self._places: dict[str, Sequence[Tensor]] = {}
        self._mixed: set[str] = set()

    def add(self, ntype: str, nodes: Tensor, times: Tensor | None, *, as_they_are: bool = False) -> Added:
        """Collect ``nodes``, of any shape, with a time for each of their rows. Returns what :meth:`place` asks for.

        Those that are wanted ``as_they_are``, and are all of their type, are not looked through for repetitions.
        """
        if not as_they_are or ntype in self._nodes:
            self._mixed.add(ntype)
        parts = self._nodes.setdefault(ntype, [])
        parts.append(nodes.reshape(-1))
        if times is not None:
            copies = nodes.numel() // max(1, times.size(0))
            self._times.setdefault(ntype, []).append(times.repeat_interleave(copies, dim=0))
        return ntype, len(parts) - 1, nodes.shape

    def finish(self) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """All nodes, each once unless they have times, and their times."""
        if not self._timed:
            found, self._places = unique_and_compact({ntype: self._nodes[ntype] for ntype in self._mixed})
            for ntype in self._nodes.keys() - self._mixed:
                (found[ntype],) = (only,) = self._nodes[ntype]
                self._places[ntype] = [torch.arange(only.numel(), dtype=only.dtype, device=only.device)]
            return {ntype: found[ntype] for ntype in self._nodes}, None
        nodes = {ntype: torch.cat(parts) for ntype, parts in self._nodes.items()}
        for ntype, parts in self._nodes.items():
            each = torch.arange(nodes[ntype].numel(), dtype=parts[0].dtype, device=parts[0].device)
            self._places[ntype] = torch.split(each, [part.numel() for part in parts])
        return nodes, {ntype: torch.cat(parts) for ntype, parts in self._times.items()}

    def place(self, added: Added) -> Tensor:
        """Where the nodes that were added are, in the shape that they had."""
        ntype, i, shape = added
        return self._places[ntype][i].view(shape)


_ONLY = "_N"


def _of_seeds(minibatch: MiniBatch, seeds: Nodes, times: Nodes | None) -> tuple[Nodes, Nodes | None]:
    hetero = isinstance(seeds, dict)
    nodes = _Nodes(times is not None)
    added: dict[Any, Any] = {}
    for name, given in seeds.items() if isinstance(seeds, dict) else [(_ONLY, seeds)]:
        what = f"seeds of type '{name}'" if hetero else "seeds"
        some = as_tensor(what, given)
        if some.dim() != 1 and (some.dim() != 2 or some.shape[1] != 2):
            raise InputError(
                f"Expected seeds of shape [n] (nodes) or [n, 2] (edges), got {list(some.shape)}"
                + (f" of type '{name}'." if hetero else ".")
                + " Cut hyperlinks into pairs of nodes."
            )
        check_no_mask(what, some)
        if some.is_floating_point() or some.is_complex():
            raise InputError(f"Expected {what} as ids, got {some.dtype}.")
        if some.dtype in UNSIGNED:
            some = some.long()
        when = None if times is None else _of_all(times[name] if isinstance(times, dict) else times, some.shape[0])
        if not hetero:
            added[name] = nodes.add(_ONLY, some, when, as_they_are=some.dim() == 1)
        elif some.dim() == 1:
            added[name] = nodes.add(name, some, when, as_they_are=True)
        else:
            src, _, dst = etype_str_to_tuple(name)
            added[name] = nodes.add(src, some[:, 0], when), nodes.add(dst, some[:, 1], when)
    found, found_times = nodes.finish()
    compacted = {
        name: torch.stack([nodes.place(end) for end in slot], dim=1)
        if isinstance(slot[0], tuple)
        else nodes.place(slot)
        for name, slot in added.items()
    }
    minibatch.compacted_seeds = compacted if hetero else compacted[_ONLY]
    return _unwrapped(hetero, found, found_times)


def _of_all(given: object, num_seeds: int) -> Tensor:
    """Times of positive pairs, then those of the negative pairs that follow: as many for each positive one."""
    times = as_tensor("timestamp", given)
    number = times.size(0) if times.dim() else 0
    if times.shape not in ((number,), (number, 2)) or num_seeds % max(1, number):
        raise InputError(
            "Expected a time, or the beginning and the end of a window, for each seed or each positive pair, got "
            f"{list(times.shape)} for {num_seeds} seeds."
        )
    if number in (0, num_seeds):
        return times
    return torch.cat((times, times.repeat_interleave(num_seeds // number - 1, dim=0)))


def _unwrapped(hetero: bool, nodes: dict[str, Tensor], times: dict[str, Tensor] | None) -> tuple[Nodes, Nodes | None]:
    return (nodes, times) if hetero else (nodes[_ONLY], times and times[_ONLY])
