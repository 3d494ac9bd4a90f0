"""Attributes that Accelerate, Lightning and Ray Train read before they split a loader's batches over ranks.

They create torch loaders from a loader's dataset and ``collate_fn``, with other samplers. Loaders whose ranks share
batches are not changed; requests for batches from the dataset of another loader raise an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from torch.utils.data import DistributedSampler

from manyhop.errors import InputError
from manyhop.ranks.world import World, current_size


class PreparedLoader:
    """The part of a loader that Accelerate reads when it prepares it, and while gradients accumulate."""

    distributed: bool
    _progress: Any

    _shared_by = "distributed=True"
    """The user's argument by which ranks share batches; named in errors."""

    _in_accelerate = False

    remainder = -1
    """Read by Accelerate: ``gather_for_metrics`` uses all seeds."""

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Return True, so that Accelerate does not change the loader.

        Raises:
            InputError: there are multiple ranks with separate batches.
        """
        if current_size() > 1 and not self.distributed:
            raise InputError(
                f"Expected a loader whose ranks share the batches in Accelerator.prepare(), as there are "
                f"{current_size()} ranks, got a loader of this rank alone. Pass {self._shared_by}, or, if ranks have "
                "different seeds, do not prepare the loader."
            )
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Register that Accelerate has prepared the loader."""
        self._in_accelerate = value

    @property
    def end_of_dataloader(self) -> bool:
        """Read by Accelerate: whether the latest batch is the last one, after which gradients are synchronized."""
        return bool(self._progress.received == self._progress.rounds)

    def _announce(self, iterator: object) -> None:
        """Register an iteration with Accelerate until it is over, if Accelerate has prepared the loader."""
        if not self._in_accelerate:
            return
        from accelerate.state import GradientState

        state = GradientState()
        state._add_dataloader(self)
        weakref.finalize(iterator, state._remove_dataloader, self).atexit = False


class SharedSampler(DistributedSampler[int]):
    """The sampler of a loader whose ranks share its batches: Lightning and Ray Train do not change such loaders."""

    def __init__(self, num_items: int, world: World) -> None:
        super().__init__(range(num_items), world.world_size, world.rank, shuffle=False)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        """Raise InputError: the loader itself defines the order."""
        _refuse("its sampler")


class SeedPositions(Sequence[int]):
    """The dataset of a loader: ``range(num_items)``. Other loaders cannot use it."""

    def __init__(self, num_items: int) -> None:
        self._range = range(num_items)
        self.arguments: dict[str, Any] = {}
        """Arguments of the loader, for Lightning, which creates a new loader over the same dataset."""

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        return self._range[index]

    def __getitems__(self, indices: list[int]) -> NoReturn:
        """Raise InputError: torch's ``DataLoader`` requests the items of a batch."""
        _refuse("its dataset and collate_fn")

    def __eq__(self, other: object) -> bool:
        return self._range == (other._range if isinstance(other, SeedPositions) else other)

    def __hash__(self) -> int:
        return hash(self._range)

    def __repr__(self) -> str:
        return repr(self._range)


def _refuse(used: str) -> NoReturn:
    raise InputError(
        f"Expected manyhop's loader to be iterated, got a different one created from {used}, as Ray Train's "
        "prepare_data_loader() and Accelerate's skip_first_batches() may do. Pass distributed=True to the loader, "
        "without a sampler, to share its batches among ranks, and load_state_dict() to resume it."
    )
