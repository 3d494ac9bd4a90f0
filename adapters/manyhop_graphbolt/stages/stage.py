"""Stages: pipes that process items one by one, in any thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils.data.datapipes.iter import Mapper

from manyhop.arguments import as_tensor, callables, flag, integer
from manyhop.errors import InputError
from manyhop.loading import BatchContext, current_batch
from manyhop_graphbolt.graph.subgraph import add_reverse_edges
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.types import DataPipe, Nodes, Pipe, as_given, by_type, check_hints, functional_datapipe, move

Step = Callable[[Any], Any]

FUNCTIONS = 1 << 15
"""The first draw of functions after the last stage of this package: more than the stages draw."""

_OURS = __name__.rpartition(".")[0]


class Stage(DataPipe):
    """A pipe that does something to each item of another pipe."""

    def __init__(self, datapipe: Pipe) -> None:
        super().__init__()
        self.datapipe = datapipe

    def step(self, item: object) -> object:
        """Apply the stage to one item."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        source, stages, functions = chain_of(self)
        for item in source:
            key = getattr(item, "key", None)
            for some, first in ((stages, 0), (functions, FUNCTIONS)):
                with nullcontext() if key is None else BatchContext(key, current_batch(), first):
                    for stage in some:
                        item = step(stage, item)
            yield item

    def __len__(self) -> int:
        """Return the number of items of the source."""
        return len(self.datapipe)


def chain_of(pipe: Pipe) -> tuple[Pipe, list[Pipe], list[Pipe]]:
    """Return the chain that ends with a pipe; torch's ``map`` is also a stage.

    Returns:
        The source, an item sampler or another pipe that is no stage; the stages up to the last one that samples,
        fetches, moves, ..., and functions of the user between those; functions of the user after them.
    """
    stages: list[Pipe] = []
    while isinstance(pipe, Stage) or _is_map(pipe):
        stages.insert(0, pipe)
        pipe = pipe.datapipe
    cut = max((i + 1 for i, stage in enumerate(stages) if is_ours(stage)), default=0)
    return pipe, stages[:cut], stages[cut:]


def _is_map(pipe: Pipe) -> TypeGuard[Mapper[object]]:
    """Return whether a pipe is torch's ``map``, or a user's subclass with its own function."""
    return isinstance(pipe, Mapper) and type(pipe).__iter__ is Mapper.__iter__


def is_ours(stage: Pipe) -> bool:
    """Return whether a stage is not a function of the user."""
    if not isinstance(stage, MiniBatchTransformer):
        return isinstance(stage, CopyTo)
    function: object = stage.transformer
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__module__", "")).startswith(_OURS)


def is_of_this_package(stage: Pipe) -> bool:
    """Return whether the class of a stage belongs to this package."""
    return type(stage).__module__.startswith(_OURS)


def step(stage: Any, item: Any) -> object:
    """Apply one stage to an item."""
    return stage.step(item) if isinstance(stage, Stage) else stage._apply_fn(item)


@functional_datapipe("transform")
class MiniBatchTransformer(Stage):
    """Applies a function to each minibatch. Functional name: ``transform``.

    Args:
        datapipe: minibatches.
        transformer: ``transformer(minibatch)`` returns a minibatch; ``None``: it is unchanged.

    Raises:
        InputError: no function, or (at a batch) one that returns something else.
    """

    def __init__(self, datapipe: Pipe, transformer: Step | None = None) -> None:
        super().__init__(datapipe)
        callables(transformer=transformer)
        self.transformer = transformer

    def step(self, item: object) -> object:
        """Apply the function."""
        if self.transformer is None:
            return item
        out = self.transformer(item)
        if not isinstance(out, MiniBatch):
            raise InputError(
                f"Expected {getattr(self.transformer, '__name__', self.transformer)!s} to return a MiniBatch, got a "
                f"{type(out).__name__}. Return the minibatch, or use map() to return something else."
            )
        if out is not item and out.key is None and isinstance(item, MiniBatch):
            out.key = item.key
        return out


@functional_datapipe("copy_to")
class CopyTo(Stage):
    """Moves each item to a device. Functional name: ``copy_to``.

    Args:
        datapipe: items of any kind: objects with ``to``, and containers of these, are moved.
        device: where to.
        extra_attrs: attributes of the items that are moved as well. (A bool is ``non_blocking``, as in later
            versions than DGL 2.1.)
        non_blocking: a hint; copies to a GPU never block.

    Raises:
        InputError: no device, or ``extra_attrs`` is a single name.
    """

    def __init__(
        self,
        datapipe: Pipe,
        device: torch.device | str,
        extra_attrs: Iterable[str] | bool | None = None,
        non_blocking: bool = False,
    ) -> None:
        super().__init__(datapipe)
        if isinstance(extra_attrs, bool):
            non_blocking, extra_attrs = extra_attrs, None
        check_hints(non_blocking=non_blocking)
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            raise InputError(f"Expected device to be 'cuda', 'cuda:0' or 'cpu', got {device!r}.") from None
        if isinstance(extra_attrs, str):
            raise InputError(f"Expected extra_attrs as a list of names, got {extra_attrs!r}. Pass a list.")
        self.extra_attrs = tuple(extra_attrs or ())

    def step(self, item: object) -> object:
        """Move it."""
        known: dict[int, object] = {}
        waits = self.device.type != "cuda"  # copies to a GPU are in order there; the host would read too early
        item = move(item, self.device, not waits, known)
        for name in self.extra_attrs:
            setattr(item, name, move(getattr(item, name), self.device, not waits, known))
        return item


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
