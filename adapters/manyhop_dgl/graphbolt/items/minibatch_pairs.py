"""Positive and negative pairs of a minibatch of links, in the form that losses take."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop_dgl.graphbolt.typing import Links, Nodes, Pairs

LabelledPairs: TypeAlias = tuple[Links, Nodes]
"""Pairs, and a label of each."""


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


def pairs_with_labels(positive: Links | None, negative: Links | None, labels: Nodes | None) -> LabelledPairs | None:
    """Pairs and labels to compute a loss with; ``None`` where there are none."""
    if labels is not None:
        return None if positive is None else (positive, labels)
    if positive is None or negative is None:
        return None
    if not isinstance(positive, dict) or not isinstance(negative, dict):
        assert not isinstance(positive, dict)
        assert not isinstance(negative, dict)
        pairs, marks = _labelled(positive, negative)
        return pairs, marks.float()
    both = {name: _labelled(positive[name], negative[name]) for name in positive}
    return {name: pairs for name, (pairs, _) in both.items()}, {name: marks for name, (_, marks) in both.items()}


def pairs_of_seeds(seeds: Nodes | None, labels: Nodes | None, *, negatives: bool) -> LabelledPairs | None:
    """Pairs and labels of ``seeds`` ``[num_pairs, 2]``, by type where they have types; ``None`` where there are none.

    Args:
        seeds: positions of both ends.
        labels: ``[num_pairs]``, or by type.
        negatives: whether labels tell positive pairs from negative ones; they are float32 then, where there are no
            types, as DGL's are.
    """
    parts = list(seeds.values()) if isinstance(seeds, dict) else [seeds]
    if labels is None or any(ends is None or ends.dim() != 2 for ends in parts):
        return None
    if isinstance(seeds, dict):
        return {name: (ends[:, 0], ends[:, 1]) for name, ends in seeds.items()}, labels
    assert seeds is not None
    assert not isinstance(labels, dict)
    return (seeds[:, 0], seeds[:, 1]), labels.float() if negatives else labels


def _labelled(positive: Pairs, negative: Pairs) -> tuple[Pairs, Tensor]:
    """Positive pairs, then negative ones, and ``[num_pos + num_neg]`` ones and zeros."""
    src, dst = (torch.cat((yes, no.reshape(-1))) for yes, no in zip(positive, negative, strict=True))
    marks = torch.zeros_like(src)
    marks[: positive[0].numel()] = 1
    return (src, dst), marks
