"""Stages: pipes that do one thing to each item. Chains of them are run item by item, in whatever thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import Filter, Mapper

from manyhop.arguments import callables, flag
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_NODE
from manyhop.loading import DROPPED, BatchContext
from manyhop.sampling import BatchKey, SampledSubgraph
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.pipes import DataPipe, check_hints, functional_datapipe, move
from manyhop_graphbolt.stages.functional import edges_to_exclude, exclude_seed_edges
from manyhop_graphbolt.stages.layers import without_edges
from manyhop_graphbolt.types import Pipe, etype_tuple_to_str

Step = Callable[[Any], Any]

REST = 1 << 15
"""What draws of functions after the last stage of ours are counted from: more than are made before."""

_OURS = __name__.rpartition(".")[0]


class Stage(DataPipe):
    """A pipe that does something to each item of another pipe.

    Args:
        datapipe: where the items come from.
    """

    def __init__(self, datapipe: Pipe) -> None:
        super().__init__()
        self.datapipe = datapipe

    def step(self, item: object) -> object:
        """What it does to one item."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        source, stages = chain_of(self)
        first = 2 * REST * num_parts_before(source)
        for item in source:
            key = getattr(item, "key", None)
            yield run(stages.rest, run(stages.ours, item, key, first_call=first), key, first_call=first + REST)

    def __len__(self) -> int:
        """Number of items, where the source knows it."""
        return len(self.datapipe)


class Stages(NamedTuple):
    """What is done to items one by one: stages, and torch's ``map``."""

    ours: list[Pipe]
    """Up to the last stage that samples, fetches, moves, ..., and functions of the user between those."""

    rest: list[Pipe]
    """Functions of the user that come after them."""


def chain_of(pipe: Pipe) -> tuple[Pipe, Stages]:
    """The pipe that a chain begins with, and what is done to its items one by one."""
    stages: list[Pipe] = []
    while isinstance(pipe, Stage) or _is_map(pipe):
        stages.insert(0, pipe)
        pipe = pipe.datapipe
    cut = max((i + 1 for i, stage in enumerate(stages) if is_ours(stage)), default=0)
    return pipe, Stages(stages[:cut], stages[cut:])


def upstream_of(source: Pipe) -> str | None:
    """The attribute of a pipe that is the pipe before it; ``None`` where there is none, or more than one."""
    names = [name for name, value in getattr(source, "__dict__", {}).items() if isinstance(value, IterDataPipe)]
    return names[0] if len(names) == 1 else None


class Relay(DataPipe):
    """Stands before a pipe that a loader cannot look into: hands it what the loader has made ahead.

    Without a loader at work it hands on what the pipe before it gives.
    """

    def __init__(self, datapipe: Pipe) -> None:
        super().__init__()
        self.datapipe = datapipe
        self.made_ahead: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        made, self.made_ahead = self.made_ahead, None
        yield from self.datapipe if made is None else made

    def __len__(self) -> int:
        return len(self.datapipe)


def num_parts_before(source: Pipe) -> int:
    """How many parts a chain has before the one that begins with this pipe."""
    name = upstream_of(source)
    if name is None:
        return 0
    before = getattr(source, name)
    return 1 + num_parts_before(chain_of(before.datapipe if isinstance(before, Relay) else before)[0])


def _is_map(pipe: Pipe) -> TypeGuard[Mapper[object]]:
    """Whether a pipe is torch's ``map``, or a class of the user that is one with a function of its own."""
    return isinstance(pipe, Mapper) and type(pipe).__iter__ is Mapper.__iter__


def is_ours(stage: Pipe) -> bool:
    """Whether a stage samples, fetches, moves, ...: all but functions of the user."""
    if not isinstance(stage, MiniBatchTransformer):
        return isinstance(stage, CopyTo)
    function: object = stage.transformer
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__module__", "")).startswith(_OURS)


def is_of_this_package(stage: Pipe) -> bool:
    """Whether the class of a stage is not the user's."""
    return type(stage).__module__.startswith(_OURS)


def run(stages: Sequence[Pipe], item: object, key: BatchKey | None, *, first_call: int = 0) -> object:
    """What is left of an item after all stages.

    Args:
        stages: one of the lists that :func:`chain_of` gives.
        item: the item.
        key: names the item: what is drawn is a function of it; ``None``: it comes from torch's default generator.
        first_call: what the draws are counted from. It differs for parts of a chain that are run apart.
    """
    with drawing(key, first_call):
        for stage in stages:
            item = step(stage, item)
    return item


def is_filter(pipe: object) -> bool:
    """Whether a pipe is torch's ``filter``, or a class of the user that is one with a function of its own."""
    return isinstance(pipe, Filter) and type(pipe).__iter__ is Filter.__iter__


def step(stage: Any, item: Any) -> object:
    """What one stage does to an item; ``DROPPED``: a filter leaves it out."""
    if isinstance(stage, Stage):
        return stage.step(item)
    if isinstance(stage, Filter):
        keeps, item = stage._returnIfTrue(item)
        return item if keeps else DROPPED
    return stage._apply_fn(item)


def drawing(key: BatchKey | None, first_call: int = 0) -> AbstractContextManager[object]:
    """In the body, samplers draw for the batch that ``key`` names; without one, as outside."""
    return nullcontext() if key is None else BatchContext(key, None, first_call)


@functional_datapipe("transform")
class MiniBatchTransformer(Stage):
    """Applies a function to each minibatch. Functional name: ``transform``.

    Args:
        datapipe: minibatches.
        transformer: ``transformer(minibatch)`` returns the minibatch to go on with; ``None``: it stays as it is.

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

    Of minibatches, only what a model reads is moved where they have ``seed_nodes`` or ``node_pairs``, as in DGL 2.1
    (:meth:`MiniBatch.to`).

    Args:
        datapipe: items of any kind: those that have ``to``, and containers of those, are moved.
        device: where to.
        extra_attrs: attributes of the items that are moved as well. (A bool in its place is ``non_blocking``, as after
            DGL 2.1.)
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
            raise InputError(f"Expected extra_attrs as a list of names, got {extra_attrs!r}. Put the name into a list.")
        self.extra_attrs = tuple(extra_attrs or ())

    def step(self, item: object) -> object:
        """Move it."""
        known: dict[int, object] = {}
        waits = self.device.type != "cuda"  # what goes to a GPU is in order there; the host would read too early
        item = move(item, self.device, non_blocking=not waits, known=known)
        for name in self.extra_attrs:
            value = move(getattr(item, name), self.device, non_blocking=not waits, known=known)
            setattr(item, name, value)
        return item


@functional_datapipe("exclude_seed_edges")
class SeedEdgesExcluder(MiniBatchTransformer):
    """Takes the seed edges out of all sampled layers. Functional name: ``exclude_seed_edges``.

    Args:
        datapipe: minibatches of links whose layers are sampled.
        include_reverse_edges: take out the reverses of the seed edges, too.
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

    def before_padding(self, minibatch: MiniBatch, sample: SampledSubgraph) -> SampledSubgraph:
        """Return what was sampled for a minibatch, by type, without the seed edges."""
        sampled = [] if tuple(sample.node) == (HOMOGENEOUS_NODE,) else [etype_tuple_to_str(t) for t in sample.row]
        edges = edges_to_exclude(minibatch, self.include_reverse_edges, self.reverse_etypes_mapping, sampled)
        return without_edges(sample, edges)
