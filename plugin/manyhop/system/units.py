"""Numbers as people write them."""

from __future__ import annotations

import re

from manyhop.errors import InputError

_UNITS = ("", "K", "M", "G", "T")


def in_units(nbytes: float) -> str:
    """Return ``"1.5 KiB"`` for ``1536``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(nbytes) < 1024 or unit == "TiB":
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError


def counted(count: int, noun: str) -> str:
    """Return ``"1 batch"``, ``"2,000 batches"``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ch") else "s")


def parse_bytes(text: str) -> int:
    """Return ``12 * 2**30`` for ``"12GiB"`` and ``"12G"``, ``12 * 10**9`` for ``"12GB"``, 4096 for ``"4096"``.

    Raises:
        InputError: the text has a different form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?\s*", text, flags=re.IGNORECASE)
    if match is None:
        raise InputError(f"Expected a number of bytes such as 4096, 500MB or 12GiB, got {text!r}.")
    number, unit, ending = match.groups()
    base = 1000 if unit and (ending or "").upper() == "B" else 1024
    return int(float(number) * base ** _UNITS.index(unit.upper()))
