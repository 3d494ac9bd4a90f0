"""What an optimizer's step does with the gradients of rows: one object for the CPU's kernels and the GPU's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from manyhop_embedding.hot import Hot
from manyhop_embedding.rules import Rule, Stamps


@dataclass(frozen=True)
class Change:
    """What happens to the rows that have gradients."""

    rule: Rule
    """What to do with the sum of the gradients of a row."""

    weight: Tensor
    """``[rows, width]`` float32 or bfloat16, contiguous: in GPU memory or pinned, if the gradients are on a GPU. The
    gradients are of these rows only."""

    states: Sequence[Tensor] = ()
    """As many as the rule has, each ``[rows, width] float32``."""

    first: int = 0
    """The number of the first row of ``weight``."""

    scale: float = 1.0
    """What sums are multiplied by."""

    stamps: Stamps | None = None
    """Marks the rows that are updated."""

    hot: Sequence[Hot] = ()
    """Rows of ``weight`` and of each state that reside elsewhere, the same of all; of one GPU."""

    apart: Tensor | None = None
    """``[2] int64`` on a GPU: positions of gradients, which the host does not know. Those from the first to the
    last are left out; none of their rows has others."""
