"""Loaders whose ranks begin to share batches when Accelerate or Ray Train prepares them."""

from __future__ import annotations

from typing import Any

from torch_geometric.sampler import BaseSampler

from manyhop.control import DEFAULT_TIMEOUT
from manyhop.errors import InputError
from manyhop.loading import EpochLoader
from manyhop.loading.trainers import names_of_reader
from manyhop.pipeline import Dealing, Turn
from manyhop_pyg.samplers.node_sets import NodeSetSampler
from manyhop_pyg.samplers.typed_edges import TypedEdgeInput
from manyhop_pyg.samplers.typed_seeds import TypedNodeInput
from manyhop_pyg.typing import Inputs


class SharedWhenPrepared(EpochLoader):
    """The part of a loader that makes it one whose ranks share its batches."""

    input_data: Inputs

    def seed_sampler(self) -> tuple[BaseSampler, str]:
        """The sampler, and the method of it that is called."""
        raise NotImplementedError

    def _get_ready(self, num_items: int, seed: int | None, *, shuffle: bool, own_order: bool) -> None:
        """Be ready for the first batch. Ranks that share batches call it together."""
        raise NotImplementedError

    def _share(self, where: str, uneven: Dealing, parts: int = 1) -> None:
        """Let the ranks share the batches, which each has had alone. All ranks call it; see ``PreparedLoader``."""
        if not self._own_order or self.batch_size is None:
            raise InputError(
                f"Expected a loader that cuts its own batches, to share them in {where}, got one with a sampler or "
                "batch_sampler, which each rank has for itself. Leave that out, or do not prepare the loader."
            )
        if self.batch_size % parts:
            raise InputError(
                f"Expected a batch_size that {parts} ranks can share evenly in {where}, got {self.batch_size}."
            )
        if uneven == "fill" and isinstance(self.input_data, TypedNodeInput | TypedEdgeInput):
            uneven = "pad"  # seeds of a batch are sorted by type, those that come once more among them
        self.distributed, self.uneven, self.rank_timeout = True, uneven, DEFAULT_TIMEOUT
        self.__dict__["batch_size"] = self.batch_size // parts  # torch refuses a new attribute
        progress, epoch = self._progress, self._next_epoch
        self._get_ready(self._num_items, self.seed, shuffle=self._shuffle, own_order=True)
        self._progress, self._next_epoch = progress, epoch
        if uneven == "keep" and self._exchanges():
            raise InputError(
                f"Expected even_batches=True in {where}, as ranks exchange rows for each batch, got False. Leave it "
                "out, or use another placement."
            )

    @property
    def _has_row_per_seed(self) -> bool:  # type: ignore[override]
        """Whether a model's output usually has a row for each seed: subgraphs and negatives have others."""
        negatives = getattr(self, "neg_sampling", None) is not None
        return not negatives and not isinstance(self.seed_sampler()[0], NodeSetSampler)

    @property
    def sampler(self) -> Any:
        """torch's, which the batches come from; of ranks that share these, one that torch's libraries leave alone."""
        names = names_of_reader("ray.train.", "prepare_data_loader")
        if names is not None and names["add_dist_sampler"] and self._own_order and not self.distributed:
            self._share("prepare_data_loader()", "drop" if self.drop_last else "pad")
        return self.__dict__["sampler"]

    @sampler.setter
    def sampler(self, value: Any) -> None:
        self.__dict__["sampler"] = value

    def num_first(self, turn: Turn, num_seeds: int) -> int:
        """How many seeds of a batch are no repetitions; these come first."""
        if self.uneven == "fill" and self.batch_size is not None:
            return min(max(self._num_items - turn.batch * self.batch_size, 0), num_seeds)
        return 0 if turn.is_padding else num_seeds
