"""Initial rows: a pure function of seed and row, so that ranks fill their parts of one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import real
from manyhop.errors import FeatureError, InputError
from manyhop.sampling.random import Use, make_key
from manyhop.system.progress import Progress

InitialRows: TypeAlias = Callable[[range], Tensor]
"""``init(rows)`` returns rows by their numbers, ``[len(rows), width]``."""

_PIECE_BYTES = 32 << 20  # of rows that are made at once


def initializer(init: float | InitialRows | None, width: int, seed: int) -> InitialRows:
    """Return what makes initial rows.

    Args:
        init: a function; or the bound ``b`` of a uniform distribution in ``[-b, b)``; ``None``: ``1 / sqrt(width)``.
        width: numbers of a row.
        seed: any integer.

    Raises:
        InputError: no function and no number.
    """
    if callable(init):
        return init
    if init is not None and (isinstance(init, bool) or not isinstance(init, Real)):
        raise InputError(
            f"Expected init to be a number, or a function of a range of rows, got {init!r}. Pass a bound b for uniform "
            "values in [-b, b), or a function that returns [len(rows), width]."
        )
    bound = 1 / math.sqrt(width) if init is None else real("init", init, "units of the embedding")
    key = make_key(Use.EMBEDDING, seed)

    def uniform(rows: range) -> Tensor:
        from manyhop_embedding.cpu_kernels import fill_uniform

        out = torch.empty(len(rows), width)
        fill_uniform(out.data_ptr(), rows.start, len(rows), width, key, bound)
        return out

    return uniform


def filler(initial: InitialRows) -> Callable[[range, Tensor], None]:
    """Return what writes initial rows to where they stay, a piece at a time."""

    def fill(rows: range, out: Tensor) -> None:
        width = out.shape[1]
        step = max(1, _PIECE_BYTES // (4 * width))
        with closing(Progress("Making initial rows", out.nbytes)) as bar:
            for begin in range(0, len(rows), step):
                piece = rows[begin : begin + step]
                made: Any = initial(piece)
                if not isinstance(made, Tensor) or tuple(made.shape) != (len(piece), width):
                    got = list(made.shape) if isinstance(made, Tensor) else f"a {type(made).__name__}"
                    raise FeatureError(
                        f"Expected init({piece}) to return a tensor of shape {[len(piece), width]}, got {got}. Return "
                        "a row for each number of the range."
                    )
                target = out[begin : begin + len(piece)]
                target.copy_(made.detach())
                bar.add(target.nbytes)

    return fill
