"""What users pass to every loader of PyG's kinds, beside PyG's and torch's arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import DataLoader

from manyhop.loading import EngineName
from manyhop.loading.padding import Pad
from manyhop.loading.pipeline import Uneven
from manyhop.loading.trainers import SeedPositions
from manyhop.memory.places import Place
from manyhop.ranks.control import DEFAULT_TIMEOUT

InitT = TypeVar("InitT", bound=Callable[..., None])


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of a loader, as given; see :class:`manyhop_pyg.NodeLoader`."""

    seed: int | None
    distributed: bool
    uneven: Uneven | None
    rank_timeout: float | None
    seed_parts: int | None
    device: torch.device | str | None
    placement: Place | None
    engine: EngineName | None = None
    pad: Pad | None
    filter_per_worker: bool | None


def of_ranks(
    distributed: bool, uneven: Uneven | None, rank_timeout: float | None
) -> tuple[Uneven | None, float | None]:
    """Return ``uneven`` and ``rank_timeout``, or their defaults; ``None`` where ranks share no batches."""
    if not distributed:
        return None, None
    return uneven or "pad", DEFAULT_TIMEOUT if rank_timeout is None else float(rank_timeout)


def keeps_arguments(init: InitT) -> InitT:
    """Give a constructor the arguments of before when Lightning calls it again, with another sampler.

    Lightning reads arguments from attributes with the names that a constructor's signature shows. It misses those in
    ``**kwargs`` and a ``batch_size`` that is not torch's.
    """
    signature = inspect.signature(init)
    torchs = inspect.signature(DataLoader.__init__).parameters.keys() - signature.parameters.keys()

    @functools.wraps(init)
    def make(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        dataset = kwargs.get("dataset")
        if isinstance(dataset, SeedPositions) and dataset.arguments:
            del kwargs["dataset"]
            kwargs |= dataset.arguments
        init(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        positions = cast("SeedPositions", self.dataset)
        positions.arguments = {name: value for name, value in given.items() if name not in ("self", *torchs)}

    return cast("InitT", make)


def load_positions(loader: DataLoader[Any], num_items: int, kwargs: dict[str, Any]) -> tuple[bool, bool]:
    """Make a loader, which has a method ``collate_fn``, one of torch's over ``range(num_items)``.

    Args:
        loader: whose class is derived from torch's.
        num_items: number of seeds.
        kwargs: the user's, for torch; may be changed.

    Returns:
        Whether items are shuffled, and whether their order is the loader's own, not that of a sampler of the user.
    """
    shuffle = bool(kwargs.get("shuffle"))
    own_order = kwargs.get("sampler") is None and kwargs.get("batch_sampler") is None
    if num_items == 0:
        kwargs["shuffle"] = False  # torch's random sampler refuses to shuffle nothing
    # Positions are no torch Dataset, but all that a DataLoader asks of one.
    DataLoader.__init__(loader, SeedPositions(num_items), collate_fn=loader.collate_fn, **kwargs)  # type: ignore[arg-type]
    del loader.__dict__["collate_fn"]  # it is a method; the attribute would be a reference cycle
    return shuffle, own_order
