"""Makes batches of PyG's classes of samples and rows."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch_geometric.data import Data, HeteroData

from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.pipeline import Turn
from manyhop_embedding import RowsAhead
from manyhop_pyg.batch.assemble import finish_trainable
from manyhop_pyg.batch.join import join
from manyhop_pyg.batch.joining import Gathered
from manyhop_pyg.batch.output import contents_of
from manyhop_pyg.batch.plan import has_embeddings
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.loaders.view import LoaderView
from manyhop_pyg.samplers.given_negatives import GivenNegatives
from manyhop_pyg.samplers.typed_negatives import each_of
from manyhop_pyg.typing import Batch, Positions, Sample, Transform

T = TypeVar("T")

_USUAL_ATTRIBUTES = frozenset({"_mapping", "_key", "_parent", "_cached_attr"})  # of one of PyG's stores


class Batches:
    """The ``Assembler`` of a loader.

    Args:
        loader: whose batches these are.
        pins: whether batches are copied to pinned memory.
        exchanges: whether ranks exchange rows of batches on GPUs, in a thread.
    """

    def __init__(self, loader: LoaderView, *, pins: bool, exchanges: bool) -> None:
        self._loader, self._pins = loader, pins
        # Other ranks wait for what this one's thread does, so it leaves to the caller what they do not need.
        self._gathers_only = exchanges and loader.transform is None and self.joins
        self._trains = has_embeddings(loader.data)

    @property
    def hands_out(self) -> bool:
        """Whether batches are not complete, or have rows of embeddings, which belong to the thread that trains."""
        return self._gathers_only or self._trains

    @property
    def in_thread(self) -> bool:
        """Whether features are joined where samples are made."""
        return self._loader.filter_per_worker

    @property
    def joins(self) -> bool:
        """Whether all rows of batches are gathered by code of ours, without code of the user in between."""
        loader = self._loader
        own = isinstance(loader.data, Data | HeteroData) or type(loader.data[0]) is FeatureStore
        return own and loader.transform_sampler_output is None and not loader.has_own_filter()

    @property
    def makes_alone(self) -> bool:
        """Whether ``collate_fn`` is the user's."""
        return self._loader.has_own_collate()

    @property
    def runs_user_code(self) -> bool:
        """Whether methods are the user's, or functions are given."""
        loader = self._loader
        functions = (loader.transform, loader.transform_sampler_output, loader.worker_init_fn)
        negatives = each_of(getattr(loader, "neg_sampling", None))
        calls = any(isinstance(one, GivenNegatives) and callable(one.dst) for one in negatives)
        return calls or any(f is not None for f in functions) or loader.has_own_collate() or loader.has_own_filter()

    @property
    def transform(self) -> Transform | None:
        """The user's ``transform``."""
        return self._loader.transform

    def make(self, positions: Positions) -> Sample | Batch:
        """Call ``collate_fn``."""
        value = self._loader.collate_fn(positions)
        return pinned(value) if self._pins and self.in_thread else value

    def complete(self, sample: Sample) -> Batch | Gathered:
        """Call ``filter_fn``, or only gather rows where the rest is left to :meth:`hand_out`."""
        if self._gathers_only:
            return self._loader.join_one(sample)
        batch = self._loader.filter_fn(sample)
        return pinned(batch) if self._pins else batch

    def join(self, samples: Sequence[Sample], turns: Sequence[Turn] | None) -> tuple[list[Batch], int]:
        """Join samples with the features of the data, by one gather."""
        loader = self._loader
        joining = loader.joining()
        batches, outs, nbytes = join(joining, samples, [])
        if turns is not None:
            loader.finish_batches(joining, batches, outs, turns)
        return batches, nbytes

    def contents(self, sample: Sample) -> dict[str, int]:
        """Return how many seeds, nodes and edges a sample has."""
        return contents_of(sample)

    def values(self, batch: Batch | Gathered) -> list[Collection[object]]:
        """Return the values of the attributes of a batch of PyG's, or the batch."""
        if isinstance(batch, Gathered):
            return [*self.values(batch.batch), *batch.values()]
        stores = [batch._store] if type(batch) is Data else batch.stores if type(batch) is HeteroData else None
        if stores is None:
            return [[batch]]
        found: list[Collection[object]] = []
        for store in stores:  # once per batch: no calls
            if not store.__dict__.keys() <= _USUAL_ATTRIBUTES:
                return [[batch]]  # such as the edges that were sampled, beside their reverses
            values = store._mapping.values()
            found.append(values)
            for value in values:
                if type(value) is RowsAhead:
                    found.append(value.tensors())
        return found

    def empty(self, device: torch.device) -> Sample:
        """Return a sample without nodes and edges, in PyG's terms."""
        sampler, _ = self._loader.seed_sampler()
        graph = sampler.topology.graph
        sample = empty_sample(graph, device)
        return sampler.node_output(replace(sample, num_sampled_nodes=None, num_sampled_edges=None))

    def hand_out(self, batch: Batch | Gathered) -> Batch:
        """Return the complete batch, with the rows that embeddings have now."""
        if isinstance(batch, Gathered):
            batch, out, joining, turn = batch
            self._loader.finish_batches(joining, [batch], [out], [turn])
        if self._trains:
            finish_trainable(batch)
        return batch


def pinned(batch: T) -> T:
    """Return a batch in pinned memory."""
    made: T = pin_memory(batch)  # type: ignore[no-untyped-call]  # of torch
    return made


def find_pinning(*, wanted: bool) -> bool:
    """Return whether batches are to be pinned; warns where that is wanted, and there is nothing to pin memory for."""
    if wanted and not torch.accelerator.is_available():
        warnings.warn("pin_memory=True, but no accelerator is found: memory is not pinned.", stacklevel=4)
        return False
    return wanted
