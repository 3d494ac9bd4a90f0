"""The interface between adapters and the engine: the four objects of a loader.

An adapter translates: its ``SeedSource`` samples around seeds of a framework, its ``Columns`` lists the tensors that
rows are gathered from, its ``Assembler`` builds the user's batches, its ``Facts`` are compared by ranks. The engine
places topology and rows, and owns groups of batches, caches, exchanges and streams.
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


class SeedSource(Protocol[SampleT]):
    """Samples around seeds by position. An *input* is the argument of the framework's sampler for one batch."""

    @property
    def graph(self) -> Graph | None:
        """The topology that the engine samples; ``None`` for a user's sampler."""

    @property
    def of_nodes(self) -> bool:
        """Whether seeds are nodes, so that a group begins without kernels that prepare seed edges."""

    @property
    def has_times(self) -> bool:
        """Whether the seeds have times if the sampler needs them. Otherwise the user passes times with each batch."""

    def inputs(self, positions: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs of some batches.

        Args:
            positions: for each batch, the positions of its seeds, ``[batch_size] int64``, or an item of the user's
                sampler.
        """

    def place(self, device: torch.device, where: Place) -> Any:
        """Return the ``sampling`` of :meth:`begin`, for a GPU that reads the topology from ``where``."""

    def engine(self, sampling: Any) -> Engine:
        """Return the current engine of ``sampling`` for seed nodes."""

    def lookup(self, device: torch.device) -> SeedLookup | None:
        """Return the lookup of seeds of planned batches on a GPU; ``None`` if the host must look them up."""

    def begin(self, sampling: Any, inputs: Sequence[Any], keys: Sequence[BatchKey]) -> Callable[[], list[SampleT]]:
        """Enqueue the sampling of some batches on the current stream. The result waits for the samples' sizes."""

    def sample(self, positions: Any) -> SampleT:
        """Sample one batch with the calling thread's current key."""


class Placed(Protocol):
    """The tensors that rows are gathered from, where a GPU reads them."""

    @property
    def sources(self) -> Sequence[Any]:
        """The sources of rows."""

    def shared_objects(self) -> frozenset[int]:
        """Return the ids of objects that all batches share, and whose memory outlives them."""


class Columns(Protocol):
    """Lists the tensors with rows of nodes and edges."""

    @property
    def complete(self) -> bool:
        """Whether :meth:`named` lists all of them; a user's feature store may hold more."""

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """How many rows of each tensor a GPU caches, by name, if the user sets it; ``None``: as many as its memory
        allows."""

    def named(self) -> list[tuple[str, Any]]:
        """Return name and tensor, or array, of each: ``[num_rows, ...]``."""

    def place(self, source: Callable[[str, Any], Any], device: torch.device) -> Placed:
        """Return the current tensors, each read from ``source(name, tensor)``."""

    def fits(self, placed: Any) -> bool:
        """Return whether the user has not added, removed or replaced a tensor since ``placed`` was created."""


class Assembler(Protocol[SampleT, BatchT]):
    """Builds the user's batches from samples and rows."""

    @property
    def in_thread(self) -> bool:
        """Whether batches are assembled in the thread that samples, not in the caller's thread."""

    @property
    def gathers_groups(self) -> bool:
        """Whether the rows of multiple batches may be gathered at once: no user code runs in between."""

    @property
    def samples_alone(self) -> bool:
        """Whether batches are sampled one by one, by :meth:`collate`, since the user has replaced it."""

    @property
    def runs_user_code(self) -> bool:
        """Whether user code runs for each batch, or for each thread."""

    @property
    def transform(self) -> Callable[[BatchT], Any] | None:
        """The user's function of a batch, if :attr:`gathers_groups`."""

    @property
    def hands_out(self) -> bool:
        """Whether :meth:`hand_out` changes batches."""

    def collate(self, positions: Any) -> Any:
        """Sample around the seeds at some positions and, if :attr:`in_thread`, assemble the batch."""

    def assemble(self, sample: SampleT) -> Any:
        """Gather the rows of a sample and return its batch, transformed."""

    def assemble_group(
        self, samples: Sequence[SampleT], rank_batches: Sequence[RankBatch] | None
    ) -> tuple[list[BatchT], int]:
        """Gather the rows of consecutive samples at once. Return their batches, not transformed, and the bytes of rows.

        Without ``rank_batches``, they are not returned to the caller.
        """

    def contents(self, sample: SampleT) -> dict[str, int]:
        """Return the numbers of seeds, nodes and edges of a sample, as arguments of ``Stats.count``."""

    def values(self, batch: Any) -> Iterable[Collection[Any]]:
        """Return collections of the values of a batch, which include its tensors."""

    def empty(self, device: torch.device) -> SampleT:
        """Return a sample without nodes and edges."""

    def hand_out(self, batch: Any) -> Any:
        """Return the caller's batch for one that is ready, in the caller's thread."""


class Facts(Protocol):
    """Describes a loader's batches by plain values."""

    def of_ranks(self) -> dict[str, Any]:
        """Return the facts that must be equal on all ranks, besides the arguments of torch's ``DataLoader``."""

    def of_state(self) -> dict[str, Any]:
        """Return the facts that a saved state is recognised by."""


@dataclass(frozen=True, slots=True)
class Adapter(Generic[SampleT, BatchT]):
    """The four objects of a loader, created for an epoch. The loader must not hold objects that refer to them."""

    seeds: SeedSource[SampleT]
    columns: Columns
    assembler: Assembler[SampleT, BatchT]
    facts: Facts
