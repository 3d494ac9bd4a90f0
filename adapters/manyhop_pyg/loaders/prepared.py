"""Loaders of PyG's kind whose ranks share batches since Accelerate or Ray Train has prepared them."""

from __future__ import annotations

from torch_geometric.sampler import BaseSampler

from manyhop.loading import EpochLoader
from manyhop.pipeline import Turn
from manyhop_pyg.samplers.node_sets import NodeSetSampler
from manyhop_pyg.samplers.typed_edges import TypedEdgeInput
from manyhop_pyg.samplers.typed_seeds import TypedNodeInput
from manyhop_pyg.typing import Inputs


class SharedWhenPrepared(EpochLoader):
    """The part of a loader that knows which of its seeds come once more, and whether a model has a row for each."""

    input_data: Inputs

    def seed_sampler(self) -> tuple[BaseSampler, str]:
        """The sampler, and the method of it that is called."""
        raise NotImplementedError

    @property
    def _keeps_order(self) -> bool:  # type: ignore[override]
        return not isinstance(self.input_data, TypedNodeInput | TypedEdgeInput)

    @property
    def _has_row_per_seed(self) -> bool:  # type: ignore[override]
        """Whether a model's output usually has a row for each seed: subgraphs and negatives have others."""
        negatives = getattr(self, "neg_sampling", None) is not None
        return not negatives and not isinstance(self.seed_sampler()[0], NodeSetSampler)

    def num_first(self, turn: Turn, num_seeds: int) -> int:
        """How many seeds of a batch are no repetitions; these come first."""
        if self.uneven == "fill" and self.batch_size is not None:
            return min(max(self._num_items - turn.batch * self.batch_size, 0), num_seeds)
        return 0 if turn.is_padding else num_seeds
