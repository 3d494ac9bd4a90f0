"""Checks of options that the loaders of all adapters have."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.utils.data import DataLoader

from manyhop.arguments import flags, seconds, torch_options
from manyhop.errors import InputError
from manyhop.loading.pipeline import check_num_parts
from manyhop.memory.places import LOADER_PLACES, check_place

EngineName: TypeAlias = Literal["cugraph"]
"""Values of a loader's ``engine``, except ``None``."""


def check_names(loader: type, kwargs: Collection[str]) -> None:
    """Raise TypeError, as Python does, if torch's ``DataLoader`` does not have one of these arguments."""
    torchs = inspect.signature(DataLoader.__init__).parameters
    for name in kwargs:
        if name not in torchs:
            close = difflib.get_close_matches(name, [*inspect.signature(loader).parameters, *torchs], n=1)
            advice = f"Did you mean {close[0]!r}?" if close else "Leave it out."
            raise TypeError(f"{loader.__name__} got an unknown argument {name!r}. {advice}")


def check_options(
    distributed: bool,
    uneven: str | None,
    rank_timeout: float | None,
    seed_parts: int | None,
    kwargs: dict[str, Any],
) -> None:
    """Raise InputError for invalid or conflicting arguments."""
    flags(distributed=distributed)
    torch_options(kwargs)
    check_rank_options("distributed", distributed, uneven=uneven, rank_timeout=rank_timeout, seed_parts=seed_parts)
    if not distributed:
        return
    for name in ("sampler", "batch_sampler"):
        if kwargs.get(name) is not None:
            raise InputError(
                f"Expected no {name} with distributed=True, as the ranks share the loader's own batches, got a "
                f"{type(kwargs[name]).__name__}. Pass one or the other; for Lightning's Trainer.predict(), which "
                "passes a batch sampler, a loader with distributed=False."
            )
    if uneven not in ("pad", "drop", "error", None):
        raise InputError(f"Expected uneven to be 'pad', 'drop' or 'error', got {uneven!r}.")


def check_rank_options(
    switch: str, shared: bool, *, rank_timeout: float | None, seed_parts: int | None, **others: object
) -> None:
    """Raise InputError for invalid options about ranks, and for such options if ranks share no batches.

    ``switch`` is the name of the argument by which ranks share batches, ``shared`` its value.
    """
    for name, value in {**others, "rank_timeout": rank_timeout, "seed_parts": seed_parts}.items():
        if value is not None and not shared:
            raise InputError(
                f"Expected {name} only with {switch}=True, got {value!r}: leave it out, or let the ranks share the "
                "batches."
            )
    if rank_timeout is not None:
        seconds("rank_timeout", rank_timeout)
    if seed_parts is not None:
        check_num_parts(seed_parts)


def check_placement(placement: object, device: torch.device | None) -> None:
    """Raise InputError for an invalid placement, or one for a loader on the CPU; ``device=None``: not known yet."""
    if placement is not None:
        check_place(placement, LOADER_PLACES)
        _check_gpu("placement", placement, device)


def _check_gpu(name: str, value: object, device: torch.device | None) -> None:
    if device is not None and device.type == "cpu":
        raise InputError(
            f"Expected a loader on a GPU with {name}={value!r}, got one on the CPU. Pass device='cuda', or leave "
            f"{name} out."
        )


def check_engine(engine: object, device: torch.device | None, kwargs: dict[str, Any]) -> None:
    """Raise InputError for an invalid engine, or conflicting arguments; ``device=None``: not known yet."""
    if engine is None:
        return
    if engine not in get_args(EngineName):
        raise InputError(f"Expected engine to be one of {list(get_args(EngineName))}, or None, got {engine!r}.")
    _check_gpu("engine", engine, device)
    for name in ("timeout", "worker_init_fn", "sampler", "batch_sampler"):
        if kwargs.get(name):
            raise InputError(
                f"Expected no {name} with engine={engine!r}, which needs the loader's own batches in the caller's "
                f"thread, got {kwargs[name]!r}. Leave one of them out."
            )
