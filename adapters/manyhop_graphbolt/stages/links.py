"""Stages for links: seed edges are excluded from layers, and negative edges drawn."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import as_tensor, flag, integer
from manyhop.errors import InputError
from manyhop_graphbolt.graph.layers import add_reverse_edges
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.stages.stage import MiniBatchTransformer, check_hints
from manyhop_graphbolt.types import Nodes, Pipe, as_given, by_type, functional_datapipe


@functional_datapipe("exclude_seed_edges")
class SeedEdgesExcluder(MiniBatchTransformer):
    """Removes the seed edges from all sampled layers. Functional name: ``exclude_seed_edges``.

    Args:
        datapipe: minibatches of links whose layers are sampled.
        include_reverse_edges: also exclude the reverses of the seed edges.
        reverse_etypes_mapping: edge type -> that of its reverses, for heterogeneous graphs.
        asynchronous: a hint; exclusion overlaps without it.

    Raises:
        InputError: (at a batch) see :func:`exclude_seed_edges`.
    """

    def __init__(
        self,
        datapipe: Pipe,
        include_reverse_edges: bool = False,
        reverse_etypes_mapping: dict[str, str] | None = None,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(datapipe, self._exclude)
        check_hints(asynchronous=asynchronous)
        self.include_reverse_edges = flag("include_reverse_edges", include_reverse_edges)
        self.reverse_etypes_mapping = reverse_etypes_mapping

    def _exclude(self, minibatch: MiniBatch) -> MiniBatch:
        if minibatch.padding is not None:  # without them since before it was padded
            return minibatch
        return exclude_seed_edges(minibatch, self.include_reverse_edges, self.reverse_etypes_mapping)


def exclude_seed_edges(
    minibatch: MiniBatch, include_reverse_edges: bool = False, reverse_etypes_mapping: dict[str, str] | None = None
) -> MiniBatch:
    """Remove the seed edges from all sampled layers of a minibatch.

    Args:
        minibatch: a minibatch of links whose layers are sampled, which is returned.
        include_reverse_edges: see :class:`SeedEdgesExcluder`, also for ``reverse_etypes_mapping``.

    Raises:
        InputError: no seed edges, no layers, or ``reverse_etypes_mapping`` without meaning or with unknown types.
    """
    layers = minibatch.sampled_subgraphs
    sampled = {name for layer in layers or () for name in by_type(layer.sampled_csc)}
    edges = edges_to_exclude(minibatch, include_reverse_edges, reverse_etypes_mapping, sampled - {None})
    if layers is None:
        raise InputError("Expected a minibatch whose layers are sampled, got one without. Sample before excluding.")
    minibatch.sampled_subgraphs = [layer.exclude_edges(edges) for layer in layers]
    return minibatch


def edges_to_exclude(
    minibatch: MiniBatch, include_reverse_edges: bool, mapping: dict[str, str] | None, sampled: Collection[str]
) -> Nodes:
    """Return the edges that :func:`exclude_seed_edges` removes; ``sampled`` are the names of the sampled edge types."""
    edges = minibatch.seeds
    if edges is None:
        raise InputError("Expected a minibatch with seed edges to exclude, got none.")
    if not include_reverse_edges:
        if mapping is not None:
            raise InputError("Expected reverse_etypes_mapping only with include_reverse_edges=True, got it without.")
        return edges
    # With a misspelt name, reverse edges would remain, and leak the labels.
    for name, reverse in (mapping or {}).items() if sampled and isinstance(edges, dict) else ():
        unknown = name if name not in sampled and name not in edges else reverse if reverse not in sampled else None
        if unknown is not None:
            raise InputError(
                f"Expected reverse_etypes_mapping between edge types of the graph, {sorted(sampled)}, got {unknown!r}."
            )
    return add_reverse_edges(edges, mapping)


@functional_datapipe("sample_negative")
class NegativeSampler(MiniBatchTransformer):
    """The base of samplers of negative edges. A subclass defines :meth:`_sample_with_etype`.

    Negative pairs follow the positive ones in ``seeds``; ``labels`` are 1 for positive and 0 for negative pairs, and
    ``indexes`` which positive pair each belongs to.

    Functional name: ``sample_negative``.

    Args:
        datapipe: minibatches of links.
        negative_ratio: negative edges per positive edge, at least 1.

    Raises:
        InputError: ``negative_ratio`` is below 1; (at a batch) no links.
    """

    def __init__(self, datapipe: Pipe, negative_ratio: int) -> None:
        super().__init__(datapipe, self._sample)
        self.negative_ratio = integer("negative_ratio", negative_ratio, 1)

    def _sample(self, minibatch: MiniBatch) -> MiniBatch:
        if minibatch.seeds is None:
            raise InputError("Expected a minibatch with seeds, pairs of nodes, to draw negatives for, got none.")
        parts: list[dict[str | None, Tensor]] = [{}, {}, {}]
        for etype, seeds in by_type(minibatch.seeds).items():
            drawn = self._sample_with_etype(seeds, etype)
            if not isinstance(drawn, tuple | list) or len(drawn) != 3:
                raise InputError(
                    f"Expected {type(self).__name__}._sample_with_etype to return seeds, labels and indexes, as after "
                    f"DGL 2.1, got {len(drawn) if isinstance(drawn, tuple | list) else 1} value(s). Return these."
                )
            for part, value in zip(parts, drawn, strict=True):
                part[etype] = value
        minibatch.seeds, minibatch.labels, minibatch.indexes = map(as_given, parts)
        return minibatch

    def _sample_with_etype(self, seeds: Tensor, etype: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Draw negative edges of one type."""
        raise NotImplementedError


@functional_datapipe("sample_uniform_negative")
class UniformNegativeSampler(NegativeSampler):
    """Draws negative edges. Functional name: ``sample_uniform_negative``.

    The destination is drawn uniformly among all nodes; the source is the positive edge's. Some of the pairs may
    be edges of the graph.

    Args:
        datapipe: see :class:`NegativeSampler`, also for ``negative_ratio`` and errors.
        graph: a :class:`FusedCSCSamplingGraph`, or an object with its ``sample_negative_edges_uniform``.
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
        what = "seeds" if etype is None else f"seeds of type '{etype}'"
        given = as_tensor(what, seeds)
        if given.dim() != 2 or given.shape[1] != 2:
            raise InputError(f"Expected {what} of shape [num_pairs, 2] to draw negatives for, got {list(given.shape)}.")
        all_seeds: Tensor = self.graph.sample_negative_edges_uniform(etype, given, self.negative_ratio)
        positive = torch.arange(given.shape[0], device=all_seeds.device)
        indexes = torch.cat((positive, positive.repeat_interleave(self.negative_ratio)))
        labels = torch.zeros(all_seeds.shape[0], device=all_seeds.device)  # floats, for losses
        labels[: given.shape[0]] = 1
        return all_seeds, labels, indexes
