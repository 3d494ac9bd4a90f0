"""Files of ``torch.save`` with tensors, arrays, numbers, texts, and lists and dictionaries of them."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.part import file_size

_DTYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64"


def load_safely(path: Path, allowed: Sequence[Any], advice: str) -> Any:
    """Load a file of ``torch.save``. Only tensors, plain values and allowed classes are unpickled.

    ``allowed``: as in ``torch.serialization.safe_globals``. InputError, ending with ``advice``: it has others.
    """
    file_size(path)
    try:
        with torch.serialization.safe_globals([*allowed]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about pickles that it did not write
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, KeyError, AttributeError) as error:
        what = re.search(r"GLOBAL ([\w.]+)", str(error))
        found = f"it holds a {what[1]}" if what else f"{type(error).__name__}"
        raise InputError(
            f"{path}: cannot be read without unpickling it ({found}), which would run any code in it. {advice}"
        ) from error


def load_plain(path: Path) -> Any:
    """Load tensors, arrays (as tensors), numbers, texts and dictionaries of them from a file of ``torch.save``."""
    advice = "Load it yourself, if you trust it, and save its tensors alone, with the default pickle_protocol."
    return _as_tensors(load_safely(path, _arrays(), advice))


def _arrays() -> list[Any]:
    """Return the parts of pickled arrays, with their names in numpy 1 and 2."""
    array, scalar = np.empty(0).__reduce__()[0], np.float64().__reduce__()[0]
    makers = [(array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    makers += [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    return [*makers, np.ndarray, np.dtype, *(type(np.dtype(name)) for name in _DTYPES.split())]


def _as_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _as_tensors(inner) for key, inner in value.items()}
    return value


def mask_of(ids: Any, count: int, where: str) -> Tensor:
    """Return ``[count] bool``: whether each node is among ``ids``."""
    if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{where}: expected nodes, integers of shape [n], got {type(ids).__name__}.")
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= count):
        raise InputError(f"{where}: expected nodes in [0, {count}), got {int(ids.min())} to {int(ids.max())}.")
    mask = torch.zeros(count, dtype=torch.bool, device="cpu")
    mask[ids.long()] = True
    return mask
