"""Positive and negative pairs of a minibatch of links, in the form that losses take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def negative_pairs(pairs: Any, srcs: Any, dsts: Any) -> Any:
    """``(src, dst)``, each ``[num_pairs, negative_ratio]``; the end that was not drawn is that of the positive pair.

    Args:
        pairs: positive pairs ``(src, dst)``, each ``[num_pairs]``; by edge type or not.
        srcs: drawn sources ``[num_pairs, negative_ratio]``, or ``None``.
        dsts: drawn destinations, or ``None``.
    """
    drawn = srcs if srcs is not None else dsts
    if drawn is None or (pairs is None and (srcs is None or dsts is None)):
        return None
    if isinstance(drawn, dict):
        return {
            name: negative_pairs(pairs and pairs[name], srcs and srcs.get(name), dsts and dsts.get(name))
            for name in drawn
        }
    ends = []
    for i, end in enumerate((srcs, dsts)):
        ends.append(end if end is not None else pairs[i].repeat_interleave(drawn.shape[1]).view(drawn.shape))
    return tuple(ends)


def pairs_with_labels(positive: Any, negative: Any, labels: Any) -> Any:
    """Pairs and labels to compute a loss with; ``None`` where there are none."""
    if labels is not None:
        return None if positive is None else (positive, labels)
    if positive is None or negative is None:
        return None
    if not isinstance(positive, dict):
        pairs, marks = _labelled(positive, negative)
        return pairs, marks.float()
    both = {name: _labelled(positive[name], negative[name]) for name in positive}
    return {name: pairs for name, (pairs, _) in both.items()}, {name: marks for name, (_, marks) in both.items()}


def _labelled(positive: tuple[Tensor, Tensor], negative: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Positive pairs, then negative ones, and ``[num_pos + num_neg]`` ones and zeros."""
    ends = tuple(torch.cat((yes, no.reshape(-1))) for yes, no in zip(positive, negative, strict=True))
    marks = torch.zeros_like(ends[0])
    marks[: positive[0].numel()] = 1
    return ends, marks
