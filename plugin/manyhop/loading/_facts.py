"""What shapes the batches of a loader, as plain values that ranks can compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from manyhop.loading._checksum import checksum


def plain(value: Any) -> Any:
    """A value as JSON can hold it; tensors by dtype, shape and checksum, what is not known by its class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}, checksum {checksum(value):08x}"
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return f"a {type(value).__name__}"
