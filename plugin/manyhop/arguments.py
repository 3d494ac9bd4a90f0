"""Arguments of users, checked in one place: what is no flag, number or path is an error, never a guess."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhop.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


_LONGEST_S = 10**8
"""The longest timeout, about three years: threads, sockets and torch's process groups refuse longer ones, each its own
way."""


def flag(name: str, value: Any) -> bool:
    """Return a bool, or 0 or 1, as a bool.

    Raises:
        InputError: any other value.
    """
    import numpy as np

    if isinstance(value, bool | np.bool_) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise InputError(f"Expected {name} to be True or False, got {value!r}. Pass a bool.")


def flags(**values: Any) -> None:
    """Raise InputError for the first of these that is no :func:`flag`."""
    for name, value in values.items():
        flag(name, value)


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer of any type except bool.

    Raises:
        InputError: any other value, or one less than ``least``.
    """
    bound, advice = "" if least is None else f" of at least {least}", "Pass an int."
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
        if least is not None and number < least:
            advice = "Pass a larger one."
            raise TypeError
    except TypeError:
        raise InputError(f"Expected {name} to be an integer{bound}, got {value!r}. {advice}") from None
    return number


def at_least_one(**values: int) -> None:
    """Raise InputError for the first of these numbers that is below 1."""
    for name, value in values.items():
        if value < 1:
            raise InputError(f"Expected {name} to be at least 1, got {value}.")


def real(name: str, value: Any, unit: str, *, positive: bool = False, finite: bool = True) -> float:
    """Return a number of at least 0, or above 0 if ``positive``, that is finite if ``finite``.

    Raises:
        InputError: any other value.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not value >= 0 or (positive and value == 0) or (finite and value == math.inf):
        least = "more than 0" if positive else "at least 0"
        raise InputError(f"Expected {name} in {unit}, {least}, got {value!r}. Pass such a number.")
    return float(value)


def seconds(name: str, value: Any, *, positive: bool = True) -> float:
    """Check a timeout.

    Raises:
        InputError: no number of seconds, or more than threads, sockets and process groups can wait.
    """
    number = real(name, value, "seconds", positive=positive, finite=False)
    if number > _LONGEST_S:
        raise InputError(f"Expected {name} in seconds, at most {_LONGEST_S}, got {value!r}. Pass such a number.")
    return number


def cpu_cores(name: str, value: Any, *, nested: bool = False) -> list[Any]:
    """Check a list of CPU cores: ``list[int]``, or with ``nested`` ``list[int | list[int]]``.

    Raises:
        InputError: anything else; negative numbers.
    """
    try:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError
        return [
            cpu_cores(name, cores) if nested and isinstance(cores, list) else integer(name, cores, 0) for cores in value
        ]
    except (TypeError, InputError):
        shape = "of cores, or of lists of cores" if nested else "of cores"
        raise InputError(
            f"Expected {name} as a list {shape}, got {value!r}. Pass numbers from 0, as in [0, 1]."
        ) from None


def path_of(name: str, value: Any) -> Path:
    """Return a str or path as a path; raise InputError for other values."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"Expected {name} as a path, got {value!r}. Pass a str or a Path.")
    return Path(value)


def positions(index: Any, count: int) -> Tensor:
    """Return the positions from a user's sampler, ``[batch_size] int64``.

    Raises:
        InputError: no integers, or some outside of ``[0, count)``.
    """
    import torch

    found = as_ids("positions of a sampler", index).to(torch.int64)
    advice = "A sampler has to draw from the loader's inputs, not from all nodes or edges."
    check_range("positions of inputs", found, count, advice=advice)
    return found


def as_tensor(name: str, value: Any, error: type[InputError] = InputError) -> Tensor:
    """Return a tensor, an array or a list of numbers as a dense tensor without a gradient.

    On the same memory, where torch can read that: arrays that are read-only, run backwards or have another byte order
    are copied, conjugates and negatives of tensors resolved.

    Raises:
        InputError: (or ``error``) no numbers; a tensor that is sparse, nested or quantized, or has no memory.
    """
    import torch

    from manyhop.system import arrays

    if not isinstance(value, torch.Tensor):
        try:
            return arrays.from_array(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            got = arrays.describe(value)
            raise error(f"Expected {name} as a tensor or an array of numbers, got {got}.") from None
    if type(value) is not torch.Tensor and hasattr(value, "as_tensor"):  # a class that wraps a tensor, as PyG's do
        value = value.as_tensor()
    if not arrays.has_memory(value):
        raise error(f"Expected {name} as a dense tensor in memory, got {arrays.describe(value)}. Convert it.")
    if value.requires_grad or type(value) is not torch.Tensor:
        value = value.detach().as_subclass(torch.Tensor)
    tensor: Tensor = value.resolve_conj().resolve_neg()
    return tensor


def as_ids(name: str, value: Any, bound: float | None = None, error: type[InputError] = InputError) -> Tensor:
    """Return ids as ``[count]`` int64 or int32, whatever integers they come as; ``bound``: all are in ``[0, bound)``.

    Raises:
        InputError: (or ``error``) a mask, which as ids would mean 0 and 1; other numbers, another shape, or ids out of
            range.
    """
    import torch

    ids = as_tensor(name, value, error)
    if ids.shape == (0,):
        return ids.to(torch.int64)  # of no ids, whoever makes the tensor may not know the dtype
    usual = ids.dtype in (torch.int64, torch.int32)
    if not usual:
        check_no_mask(name, ids, error)
    if ids.dim() != 1 or (not usual and (ids.is_floating_point() or ids.is_complex())):
        got = f"{ids.dtype} of shape {list(ids.shape)}"
        raise error(f"Expected {name} as a 1-dimensional tensor of integers, got {got}.")
    if not usual:
        ids = ids.to(torch.int64)
    if bound is not None:
        check_range(name, ids, bound, error)
    return ids


def check_range(
    name: str, ids: Tensor, bound: float, error: type[InputError] = InputError, advice: str = "Check the ids."
) -> None:
    """Raise InputError (or ``error``) unless all ids are in ``[0, bound)``; waits for the GPU of ids that are there."""
    if ids.numel() == 0:
        return
    low, high = map(int, ids.aminmax())
    if low < 0 or high >= bound:
        bounds = "of at least 0" if bound == math.inf else f"in [0, {bound})"
        raise error(f"Expected {name} {bounds}, got {low if low < 0 else high}. {advice}")


def check_no_mask(name: str, ids: Tensor, error: type[InputError] = InputError) -> None:
    """Raise InputError for a dtype of masks: bool, and uint8, which was torch's before. As ids they mean 0 and 1."""
    import torch

    if ids.dtype in (torch.bool, torch.uint8):
        otherwise = ", or ids.long() if they are ids" if ids.dtype == torch.uint8 else ""
        raise error(
            f"Expected {name} as ids, got {ids.dtype}, a dtype of masks. Pass mask.nonzero().view(-1){otherwise}."
        )


def torch_options(kwargs: Mapping[str, Any]) -> None:
    """Raise InputError for arguments of torch's ``DataLoader`` that are not what torch takes them for."""
    for name in ("shuffle", "drop_last", "pin_memory", "persistent_workers", "in_order"):
        if kwargs.get(name) is not None:
            flag(name, kwargs[name])
    integer("num_workers", kwargs.get("num_workers", 0), 0)
    if kwargs.get("prefetch_factor") is not None:
        integer("prefetch_factor", kwargs["prefetch_factor"], 1)
    seconds("timeout", kwargs.get("timeout", 0), positive=False)
    for name in ("sampler", "batch_sampler"):
        if not hasattr(type(kwargs.get(name, ())), "__iter__") and kwargs[name] is not None:
            raise InputError(f"Expected {name} to be iterable, got {kwargs[name]!r}.")
    callables(worker_init_fn=kwargs.get("worker_init_fn"))
    import torch

    if not isinstance(kwargs.get("generator"), torch.Generator | None):
        raise InputError(f"Expected generator to be a torch.Generator, got {kwargs['generator']!r}.")


def callables(**values: Any) -> None:
    """Raise InputError for the first of these that is neither ``None`` nor can be called."""
    for name, value in values.items():
        if value is not None and not callable(value):
            raise InputError(f"Expected {name} to be a function, got {value!r}.")
