"""JSON of files that others may have written: read with limits, each problem one error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from manyhop.errors import InputError
from manyhop.files.part import file_size

MOST_BYTES = 1 << 28
"""Bytes of a JSON file that is read."""
MOST_LEVELS = 64
"""Lists and objects inside of each other."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        InputError: no JSON, or it is too large or too deep, or has a duplicate key.
        FileNotFoundError: no such file.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    if (size := file_size(path)) > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES} bytes of JSON, got {size}. Keep data in other files.")
    return parse_json(path.read_bytes(), str(path))


def parse_json(text: bytes, where: str) -> Any:
    """Return the value of JSON text; raises as :func:`read_json`."""
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{where}: expected a JSON text: {what}.") from error
    if not within_levels(value, MOST_LEVELS):
        raise InputError(f"{where}: expected a JSON text of at most {MOST_LEVELS} levels: it is nested too deeply.")
    return value


def within_levels(value: Any, levels: int) -> bool:
    """Return whether lists and dictionaries are nested at most ``levels`` times."""
    if not isinstance(value, list | dict):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(within_levels(v, levels - 1) for v in inner)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} occurs twice")
        found[name] = value
    return found
