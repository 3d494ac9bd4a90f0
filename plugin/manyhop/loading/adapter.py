"""The front door of the engine: what an adapter gives a loader, so that the engine makes its batches.

An adapter translates. Its ``SeedSource`` gives seeds and samples in the terms of a framework, its ``Columns`` the
tensors that batches take rows from, its ``Assembler`` the user's batch, its ``Facts`` what ranks must agree on. Where
topology and rows reside, groups of batches in flight, caches, exchanges and streams are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from manyhop.graph import Graph
from manyhop.loading.pipeline import BatchPlan, RankBatch
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey
from manyhop.sampling.contract import Engine

SampleT = TypeVar("SampleT")
BatchT = TypeVar("BatchT")


class SeedLookup(Protocol):
    """Looks up the seeds of planned batches on a GPU."""

    def of(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> Sequence[Any]:
        """Return the inputs of some batches of an epoch, enqueued on the current stream."""
        ...


class SeedSource(Protocol[SampleT]):
    """Seeds by position, and samples around them. An *input* is what the framework's sampler takes for one batch."""

    @property
    def graph(self) -> Graph | None:
        """The topology that the engine samples; ``None`` for a sampler of the user's own."""
        ...

    @property
    def of_nodes(self) -> bool:
        """Whether seeds are nodes, so that a group begins without kernels that prepare seed edges."""
        ...

    @property
    def has_times(self) -> bool:
        """Whether the seeds have times if the sampler needs them. Otherwise the user passes times with each batch."""
        ...

    def inputs(self, positions: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs of several batches.

        Args:
            positions: for each batch the positions of its seeds, ``[batch_size] int64``, or what a sampler of the
                user's gave.
        """
        ...

    def place(self, device: torch.device, where: Place) -> Any:
        """Return what samples on a GPU that reads the topology from ``where``: the ``sampling`` of :meth:`begin`."""
        ...

    def engine(self, sampling: Any) -> Engine:
        """Return what ``sampling`` samples with around seed nodes, as of now."""
        ...

    def lookup(self, device: torch.device) -> SeedLookup | None:
        """Return what finds the seeds of planned batches on a GPU; ``None`` where the host has to."""
        ...

    def begin(self, sampling: Any, inputs: Sequence[Any], keys: Sequence[BatchKey]) -> Callable[[], list[SampleT]]:
        """Enqueue the sampling of several batches on the current stream. The result waits for the samples' sizes."""
        ...

    def sample(self, positions: Any) -> SampleT:
        """Sample one batch, for the calling thread's current key."""
        ...


class Placed(Protocol):
    """The tensors that batches take rows from, each where a GPU reads it."""

    @property
    def sources(self) -> Sequence[Any]:
        """What rows are read from."""
        ...

    def shared_objects(self) -> frozenset[int]:
        """Return the ids of objects that all batches share, whose memory outlives them."""
        ...


class Columns(Protocol):
    """The tensors that give rows of nodes and edges."""

    @property
    def complete(self) -> bool:
        """Whether :meth:`named` lists all of them; a feature store of the user's own may hold more."""
        ...

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """How many rows of which tensors a GPU keeps, by name, as the user sets it; ``None``: as its memory allows."""
        ...

    def named(self) -> list[tuple[str, Any]]:
        """Return name and tensor, or array, of each: ``[num_rows, ...]``."""
        ...

    def place(self, source: Callable[[str, Any], Any], device: torch.device) -> Placed:
        """Return the tensors as they are now, each read from ``source(name, tensor)``."""
        ...

    def fits(self, placed: Any) -> bool:
        """Whether the user has not added, removed or replaced a tensor since ``placed`` was made."""
        ...


class Assembler(Protocol[SampleT, BatchT]):
    """Makes the user's batches of samples and rows."""

    @property
    def in_thread(self) -> bool:
        """Whether samples become batches where they are made, not in the caller's thread."""
        ...

    @property
    def gathers_groups(self) -> bool:
        """Whether the rows of several batches may be gathered at once: no code of the user comes in between."""
        ...

    @property
    def samples_alone(self) -> bool:
        """Whether batches are sampled one by one, by :meth:`collate`, since the user has replaced it."""
        ...

    @property
    def runs_user_code(self) -> bool:
        """Whether code of the user runs for each batch, or for each thread."""
        ...

    @property
    def transform(self) -> Callable[[BatchT], Any] | None:
        """The user's function of a batch, if :attr:`gathers_groups`."""
        ...

    @property
    def hands_out(self) -> bool:
        """Whether :meth:`hand_out` has anything to do."""
        ...

    def collate(self, positions: Any) -> Any:
        """Sample around the seeds at some positions and, if :attr:`in_thread`, assemble the batch."""
        ...

    def assemble(self, sample: SampleT) -> Any:
        """Gather the rows of a sample and return its batch, transformed."""
        ...

    def assemble_group(
        self, samples: Sequence[SampleT], rank_batches: Sequence[RankBatch] | None
    ) -> tuple[list[BatchT], int]:
        """Gather the rows of several samples at once. Return their batches, not transformed, and the bytes of rows.

        Args:
            samples: of batches that follow each other.
            rank_batches: which batches these are; ``None``: they are not to be handed out.
        """
        ...

    def contents(self, sample: SampleT) -> dict[str, int]:
        """Return seeds, nodes and edges of a sample, as ``Stats.count`` takes them."""
        ...

    def values(self, batch: Any) -> Iterable[Collection[Any]]:
        """Return collections of the values of a batch, among which its tensors are."""
        ...

    def empty(self, device: torch.device) -> SampleT:
        """Return a sample without nodes and edges."""
        ...

    def hand_out(self, batch: Any) -> Any:
        """Return what the caller gets for a batch that is ready, in the caller's thread."""
        ...


class Facts(Protocol):
    """What shapes batches, as plain values."""

    def of_ranks(self, seed: int | None) -> dict[str, Any]:
        """Return what must be the same on all ranks, in the order in which differences are reported."""
        ...

    def of_state(self) -> dict[str, Any]:
        """Return what a state is recognised by."""
        ...


@dataclass(frozen=True, slots=True)
class Adapter(Generic[SampleT, BatchT]):
    """The four objects of a loader. Made for an epoch; none of them may be kept by what the loader keeps."""

    seeds: SeedSource[SampleT]
    columns: Columns
    assembler: Assembler[SampleT, BatchT]
    facts: Facts
