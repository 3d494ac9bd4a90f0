"""Versions of installed packages."""

from __future__ import annotations

import re
from importlib import metadata


def installed_version(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def major_minor(version: str) -> tuple[int, int]:
    """Return ``(2, 13)`` for ``"2.13.0+cpu"``."""
    major, minor = [*re.findall(r"\d+", version), "0", "0"][:2]
    return int(major), int(minor)
