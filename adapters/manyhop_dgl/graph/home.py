"""Where the ranks of a run hold what they put into a graph together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from manyhop.control import DEFAULT_TIMEOUT
from manyhop.errors import InputError
from manyhop.features import ShardedRows
from manyhop.stores import NodeRows

Placement = Literal["process", "shared", "sharded"]


@dataclass(frozen=True)
class Home:
    """Puts tensors where the ranks of a node, or the nodes of a run, hold them. All ranks make it and call it."""

    whole: NodeRows
    """Every node holds all rows."""

    spread: NodeRows
    """For data of two or more dimensions: every node holds all rows, or a part of them."""

    @staticmethod
    def of(placement: Placement, timeout: float | None) -> Home | None:
        """``None`` for what is this process's own.

        Raises:
            InputError: an unknown placement, a timeout that does not make sense.
        """
        if placement not in get_args(Placement):
            raise InputError(f"Expected placement to be one of {get_args(Placement)}, got {placement!r}.")
        if timeout is not None and (placement == "process" or not timeout > 0):
            raise InputError(
                f"Expected rank_timeout only where ranks share a graph, in seconds, more than 0, got {timeout!r}."
            )
        if placement == "process":
            return None
        whole = NodeRows(False, timeout or DEFAULT_TIMEOUT)
        return Home(whole, whole if placement == "shared" else NodeRows(True, timeout or DEFAULT_TIMEOUT))

    def put(self, tensor: Any, begin: int | None, name: str) -> Tensor | ShardedRows:
        """A tensor that all ranks have whole (``begin`` is ``None``), or of which this one has rows from ``begin`` on.

        Raises:
            FeatureError: the parts do not fit together.
            RankError: the ranks do not put the same, or are late.
        """
        index = None if begin is None else slice(begin, begin + len(tensor))
        return (self.spread if getattr(tensor, "ndim", 0) > 1 else self.whole).put(tensor, index, name)
