"""Stages that draw negative edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import InputError
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.pipes import functional_datapipe
from manyhop_graphbolt.stages.stage import MiniBatchTransformer
from manyhop_graphbolt.types import Pipe


@functional_datapipe("sample_negative")
class NegativeSampler(MiniBatchTransformer):
    """The base of samplers of negative edges. A subclass defines :meth:`_sample_with_etype`.

    Negative pairs follow the positive ones in ``seeds``; ``labels`` tell them apart (1: positive, 0: negative), and
    ``indexes`` which positive pair each belongs to.

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
        if minibatch.seeds is None:
            raise InputError("Expected a minibatch with seeds, pairs of nodes, to draw negatives for, got none.")
        drawn = _by_type(minibatch.seeds, self._checked)
        minibatch.seeds = _by_type(drawn, lambda parts, _: parts[0])
        minibatch.labels = _by_type(drawn, lambda parts, _: parts[1])
        minibatch.indexes = _by_type(drawn, lambda parts, _: parts[2])
        return minibatch

    def _checked(self, seeds: Any, etype: str | None) -> tuple[Tensor, Tensor, Tensor]:
        drawn = self._sample_with_etype(seeds, etype)
        if not isinstance(drawn, tuple | list) or len(drawn) != 3:
            raise InputError(
                f"Expected {type(self).__name__}._sample_with_etype to return seeds, labels and indexes, as after DGL "
                f"2.1, got {len(drawn) if isinstance(drawn, tuple | list) else 1} value(s). Return these."
            )
        seeds, labels, indexes = drawn
        return seeds, labels, indexes

    def _sample_with_etype(self, seeds: Tensor, etype: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Draw negative edges of one type.

        Args:
            seeds: ``[num_pairs, 2]`` positive edges.
            etype: their type, ``"src:rel:dst"``; ``None`` for a graph with one type.

        Returns:
            Pairs ``[num_pairs * (1 + negative_ratio), 2]``, positive ones first, their labels, and the positive pair
            that each belongs to.
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

    def _sample_with_etype(self, seeds: Tensor, etype: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        given = as_tensor("seeds" if etype is None else f"seeds of type '{etype}'", seeds)
        if given.dim() != 2 or given.shape[1] != 2:
            raise InputError(
                f"Expected seeds of shape [num_pairs, 2] to draw negatives for, got {list(given.shape)}"
                + (f" of type '{etype}'." if etype else ".")
            )
        all_seeds: Tensor = self.graph.sample_negative_edges_uniform(etype, given, self.negative_ratio)
        positive = torch.arange(given.shape[0], device=all_seeds.device)
        indexes = torch.cat((positive, positive.repeat_interleave(self.negative_ratio)))
        labels = torch.zeros(all_seeds.shape[0], device=all_seeds.device)  # floats, as losses take them
        labels[: given.shape[0]] = 1
        return all_seeds, labels, indexes
