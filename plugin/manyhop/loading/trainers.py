"""What Accelerate, Lightning and Ray Train ask of a loader before they would split its batches over ranks.

They make loaders of torch's out of the dataset and the ``collate_fn`` of a loader, with samplers of their own, or leave
a loader of an iterable dataset undivided. Ranks that share batches have shared them already, so these loaders stay as
they are. Where Accelerate or Ray Train prepares a loader whose ranks do not share batches, they begin to.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, overload

from torch.utils.data import DistributedSampler

from manyhop.control import DEFAULT_TIMEOUT
from manyhop.errors import InputError
from manyhop.pipeline import Dealing
from manyhop.world import World, current_size


class PreparedLoader:
    """The part of a loader that Accelerate and Ray Train read when they prepare it, and while gradients accumulate."""

    distributed: bool
    uneven: Any
    rank_timeout: float | None
    batch_size: int | None
    drop_last: bool
    seed: int | None
    _num_items: int
    _shuffle: bool
    _own_order: bool
    _progress: Any
    _next_epoch: int

    _not_cut = "a sampler or batch_sampler. Leave that out"
    """Where batches come from that the loader does not cut itself, and what to do instead; named in errors."""

    _in_accelerate = False
    use_stateful_dataloader = False
    """Read by Accelerate: whether ``save_state()`` and ``load_state()`` have the loader's state, too."""

    _has_row_per_seed = True
    """Whether what a model computes for a batch usually has a row for each seed, and no others."""

    _keeps_order = True
    """Whether the seeds of a batch are in the order of the epoch: those of several types are sorted by type."""

    def _get_ready(self, num_items: int, seed: int | None, *, shuffle: bool, own_order: bool) -> None:
        """Be ready for the first batch. Ranks that share batches call it together."""
        raise NotImplementedError

    def _exchanges(self) -> bool:
        """Whether ranks exchange rows for each batch."""
        raise NotImplementedError

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether Accelerate is to leave the loader as it is: always. Its ranks share the batches from then on.

        Raises:
            InputError: there are several ranks, which cannot share the batches.
        """
        names = names_of_reader("accelerate.")
        if names is not None:  # others may look at all attributes
            accelerator, self._in_accelerate = names["self"], True
            self.use_stateful_dataloader = bool(accelerator.use_stateful_dataloader)
            if current_size() > 1 and not self.distributed:
                uneven: Dealing = "drop" if self.drop_last else "fill" if accelerator.even_batches else "keep"
                self._share("Accelerator.prepare()", uneven, current_size() if accelerator.split_batches else 1)
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate sets it, too."""

    @property
    def sampler(self) -> Any:
        """torch's, which batches may come from. Ray Train reads it first: the ranks share the batches from then on."""
        names = names_of_reader("ray.train.")
        if names is not None and names["add_dist_sampler"] and self._own_order and not self.distributed:
            self._share("prepare_data_loader()", "drop" if self.drop_last else "pad")
        return self.__dict__["sampler"]

    @sampler.setter
    def sampler(self, value: Any) -> None:
        self.__dict__["sampler"] = value

    def _share(self, where: str, uneven: Dealing, parts: int = 1) -> None:
        """Let the ranks share the batches, which each has had alone. All ranks call it.

        Args:
            where: who asks for it; named in errors.
            uneven: what happens where the ranks cannot share the batches evenly.
            parts: into how many batches each batch is cut.

        Raises:
            InputError: they cannot be shared.
            RankError: ranks have other loaders, or do not come in time.
        """
        if not self._own_order or self.batch_size is None:
            raise InputError(
                f"Expected a loader that cuts its own batches, to share them in {where}, got one whose batches each "
                f"rank has for itself, from {self._not_cut}, or do not prepare the loader."
            )
        if self.batch_size % parts:
            raise InputError(
                f"Expected a batch_size that {parts} ranks can share evenly in {where}, got {self.batch_size}. Pass a "
                "multiple of it, or split_batches=False."
            )
        if uneven == "fill" and not self._keeps_order:
            uneven = "pad"  # seeds that come once more would be among the others
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
    def remainder(self) -> int:
        """Read by Accelerate: seeds of the last batches of all ranks that ``gather_for_metrics`` keeps; -1: all."""
        if self.uneven != "fill" or not self._has_row_per_seed or self.batch_size is None:
            return -1
        return self._num_items % (self.batch_size * current_size())

    @property
    def end_of_dataloader(self) -> bool:
        """Read by Accelerate: whether the batch handed out is the last one, after which gradients are synchronized."""
        return bool(self._progress.received == self._progress.rounds)

    def _announce(self, iterator: object) -> None:
        """Let Accelerate know of an iteration, until that is over, if it has prepared the loader."""
        if not self._in_accelerate:
            return
        from accelerate.state import GradientState

        state = GradientState()
        state._add_dataloader(self)
        weakref.finalize(iterator, state._remove_dataloader, self).atexit = False


def names_of_reader(package: str) -> Mapping[str, Any] | None:
    """Return the variables of ``prepare_data_loader``, where it reads a property whose getter calls this.

    Args:
        package: the beginning of the name of its module.

    Returns:
        ``None``: something else reads the property.
    """
    frame = inspect.currentframe()
    for _ in range(2):
        frame = None if frame is None else frame.f_back
    if frame is None or frame.f_code.co_name != "prepare_data_loader":
        return None
    return frame.f_locals if str(frame.f_globals.get("__name__")).startswith(package) else None


class SharedSampler(DistributedSampler[int]):
    """The sampler of a loader whose ranks share its batches: Lightning and Ray Train leave such loaders as they are.

    Args:
        num_items: number of seeds.
        world: the ranks.
    """

    def __init__(self, num_items: int, world: World) -> None:
        super().__init__(range(num_items), world.world_size, world.rank, shuffle=False)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        """Raise InputError: the loader itself has the order."""
        _refuse("its sampler")


class SeedPositions(Sequence[int]):
    """The dataset of a loader: ``range(num_items)``, which no other loader can take batches from.

    Args:
        num_items: number of seeds.
    """

    def __init__(self, num_items: int) -> None:
        self._range = range(num_items)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> range: ...
    def __getitem__(self, index: int | slice) -> int | range:
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
        f"Expected manyhop's loader to be iterated, got another one made of {used}, as Ray Train's "
        "prepare_data_loader() and Accelerate's skip_first_batches() may do. Pass distributed=True to the loader, "
        "without a sampler, to share its batches among ranks, and load_state_dict() to resume it."
    )
