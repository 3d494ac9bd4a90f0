"""Stages that draw negative edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.pipes import functional_datapipe
from manyhop_graphbolt.stages.stage import MiniBatchTransformer
from manyhop_graphbolt.types import Pairs, Pipe


@functional_datapipe("sample_negative")
class NegativeSampler(MiniBatchTransformer):
    """The base of samplers of negative edges. A subclass defines :meth:`_sample_with_etype`.

    A minibatch with ``node_pairs`` gets ``negative_srcs`` and ``negative_dsts``, ``[num_pairs, negative_ratio]`` each
    (``None`` for the end that is not drawn). In one with ``seeds`` the negative pairs follow the positive ones,
    ``labels`` tell them apart (1: positive, 0: negative), and ``indexes`` which positive pair each belongs to.

    Functional name: ``sample_negative``.

    Args:
        datapipe: minibatches of links.
        negative_ratio: negative edges per positive edge, at least 1.

    Raises:
        InputError: ``negative_ratio`` is below 1; (at a batch) there are no links.
    """

    def __init__(self, datapipe: Pipe, negative_ratio: int) -> None:
        if not _is_number_of_edges(negative_ratio):
            raise InputError(f"Expected a negative_ratio that is an integer of at least 1, got {negative_ratio!r}.")
        super().__init__(datapipe, self._sample)
        self.negative_ratio = int(negative_ratio)

    def _sample(self, minibatch: MiniBatch) -> MiniBatch:
        pairs = minibatch.node_pairs
        if pairs is not None:
            drawn = _by_type(pairs, lambda some, etype: self._drawn(some, etype))
            minibatch.negative_srcs = _by_type(drawn, lambda ends, _: ends[0])
            minibatch.negative_dsts = _by_type(drawn, lambda ends, _: ends[1])
            return minibatch
        if minibatch.seeds is None:
            raise InputError(
                "Expected a minibatch with seed edges (node_pairs or seeds) to draw negatives for, got none."
            )
        drawn = _by_type(minibatch.seeds, lambda some, etype: self._sample_with_etype(some, etype, use_seeds=True))
        minibatch.seeds = _by_type(drawn, lambda parts, _: parts[0])
        minibatch.labels = _by_type(drawn, lambda parts, _: parts[1])
        minibatch.indexes = _by_type(drawn, lambda parts, _: parts[2])
        return minibatch

    def _drawn(self, pairs: Pairs, etype: str | None) -> tuple[Tensor | None, Tensor | None]:
        src, dst = self._sample_with_etype(pairs, etype)
        shape = (-1, self.negative_ratio)
        return None if src is None else src.view(shape), None if dst is None else dst.view(shape)

    def _sample_with_etype(self, node_pairs: object, etype: str | None = None, use_seeds: bool = False) -> Any:
        """Draw negative edges of one type.

        Args:
            node_pairs: positive edges: a pair ``(src, dst)`` of ``[num_pairs]``; with ``use_seeds`` ``[num_pairs, 2]``.
            etype: their type, ``"src:rel:dst"``; ``None`` for a graph with one type.
            use_seeds: what is returned.

        Returns:
            ``(src, dst)``, each ``[num_pairs * negative_ratio]`` or ``None``. With ``use_seeds``: pairs ``[num_pairs *
            (1 + negative_ratio), 2]``, positive ones first, their labels, and the positive pair that each belongs to.
        """
        raise NotImplementedError


def _is_number_of_edges(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and bool(int(value) == value >= 1)
    except (TypeError, ValueError):
        return False


def _by_type(values: object, function: Callable[[Any, str | None], Any]) -> Any:
    """``function(value, type)`` of each type's value, or of the value of the only one."""
    if isinstance(values, dict):
        return {etype: function(value, etype) for etype, value in values.items()}
    return function(values, None)


@functional_datapipe("sample_uniform_negative")
class UniformNegativeSampler(NegativeSampler):
    """Draws negative edges. Functional name: ``sample_uniform_negative``.

    The destination is drawn uniformly among all nodes; the source is that of the positive edge. Some of the pairs may
    be edges of the graph.

    Args:
        datapipe: minibatches of links.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its ``sample_negative_edges_uniform``.
        negative_ratio: negative edges per positive edge, at least 1.

    Raises:
        InputError: ``negative_ratio`` is below 1; (at a batch) there are no links.
    """

    def __init__(self, datapipe: Pipe, graph: Any, negative_ratio: int) -> None:
        if not callable(getattr(graph, "sample_negative_edges_uniform", None)):
            raise InputError(
                "Expected a FusedCSCSamplingGraph, or an object with its sample_negative_edges_uniform, got a "
                f"{type(graph).__name__}."
            )
        super().__init__(datapipe, negative_ratio)
        self.graph = graph

    def _sample_with_etype(self, node_pairs: Any, etype: str | None = None, use_seeds: bool = False) -> Any:
        if not use_seeds:
            return self.graph.sample_negative_edges_uniform(etype, node_pairs, self.negative_ratio)
        if node_pairs.dim() != 2 or node_pairs.shape[1] != 2:
            raise InputError(
                f"Expected seeds of shape [num_pairs, 2] to draw negatives for, got {list(node_pairs.shape)}"
                + (f" of type '{etype}'." if etype else ".")
            )
        draw = getattr(self.graph, "sample_negative_edges_uniform_2", self.graph.sample_negative_edges_uniform)
        seeds = draw(etype, node_pairs, self.negative_ratio)
        positive = torch.arange(node_pairs.shape[0], device=seeds.device)
        indexes = torch.cat((positive, positive.repeat_interleave(self.negative_ratio)))
        labels = torch.zeros(seeds.shape[0], device=seeds.device)  # floats, as losses take them
        labels[: node_pairs.shape[0]] = 1
        return seeds, labels, indexes
