"""Dtypes and their names: torch's own in manifests, numpy's in .npy files, short ones in safetensors files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from manyhop.errors import InputError

_KNOWN = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip
_BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _KNOWN if hasattr(torch, name)}
_BY_CODE: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
if "float8_e8m0fnu" in _BY_NAME:  # since torch 2.7
    _BY_CODE["F8_E8M0"] = _BY_NAME["float8_e8m0fnu"]
_CODES = {dtype: code for code, dtype in _BY_CODE.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def dtype_of_name(name: object, where: str) -> torch.dtype:
    """Return the dtype of a name such as ``"float32"``; InputError for another name, read in the file ``where``."""
    if not isinstance(name, str) or name not in _BY_NAME:
        raise InputError(f"{where}: expected a dtype of {', '.join(_BY_NAME)}, got {name!r}.")
    return _BY_NAME[name]


def dtype_of_code(code: object, where: str) -> torch.dtype:
    """Return a safetensors file's name of a dtype -> the dtype."""
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
