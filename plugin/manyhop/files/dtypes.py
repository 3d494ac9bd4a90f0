"""Dtypes and their names: torch's own in manifests, numpy's in .npy files, short ones in safetensors files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from manyhop.errors import InputError

_CODE_OF_NAME = {
    "bool": "BOOL", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "int8": "I8", "int16": "I16",
    "int32": "I32", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "complex128": "", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
_BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _CODE_OF_NAME if hasattr(torch, name)}
_CODES = {dtype: _CODE_OF_NAME[name] for name, dtype in _BY_NAME.items() if _CODE_OF_NAME[name]}
_BY_CODE = {code: dtype for dtype, code in _CODES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def dtype_of_name(name: object, where: str) -> torch.dtype:
    """Return the dtype of a name such as ``"float32"``; InputError for another name, read in the file ``where``."""
    if not isinstance(name, str) or name not in _BY_NAME:
        raise InputError(f"{where}: expected a dtype of {', '.join(_BY_NAME)}, got {name!r}.")
    return _BY_NAME[name]


def dtype_of_code(code: object, where: str) -> torch.dtype:
    """Return the dtype of a name in safetensors files; InputError as :func:`dtype_of_name`."""
    if not isinstance(code, str) or code not in _BY_CODE:
        raise InputError(f"{where}: expected a dtype of {', '.join(_BY_CODE)}, got {code!r}.")
    return _BY_CODE[code]


def code_of_dtype(dtype: torch.dtype) -> str:
    """Return the dtype's name in safetensors files."""
    if dtype not in _CODES:
        raise InputError(f"Expected a dtype that safetensors files have, got {dtype}: convert the tensor.")
    return _CODES[dtype]


def dtype_of_numpy(dtype: np.dtype, where: str) -> torch.dtype:
    """Return torch's dtype for numpy's; InputError if torch has none, or for a foreign byte order."""
    if not dtype.isnative:
        raise InputError(
            f"{where}: expected numbers in this machine's byte order, got {dtype}: convert the array with "
            "array.astype(array.dtype.newbyteorder('='))."
        )
    if dtype.name not in _BY_NAME:
        raise InputError(
            f"{where}: expected a dtype that torch has too, got numpy's {dtype}: convert the array (bfloat16 and "
            "float8 are stored in .safetensors or .bin)."
        )
    return _BY_NAME[dtype.name]


def numpy_dtype(dtype: torch.dtype) -> npt.DTypeLike | None:
    """Return numpy's dtype of the same kind; ``None`` if numpy has none (bfloat16, float8)."""
    try:
        return np.dtype(dtype_name(dtype))
    except TypeError:
        return None
