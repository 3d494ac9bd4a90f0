"""Versions of packages, and lines of the doctor's report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

State = Literal["ok", "missing", "broken"]
Versions = tuple[tuple[int, int], tuple[int, int]]
"""The oldest version that works, and the newest that was tested: later ones are expected to work."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One line of the report."""

    topic: str
    """Subject of the line."""
    state: State
    """``missing``: optional and not installed; ``broken``: unusable, or essential and not installed."""
    text: str
    """Finding, with a remedy if the state is not ``ok``."""


def installed_version(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def version_in(topic: str, version: str, supported: Versions, advice: str) -> Diagnosis:
    """Return whether a version that is installed is supported."""
    low, high = (f"{major}.{minor}" for major, minor in supported)
    if major_minor(version) < supported[0]:
        return Diagnosis(topic=topic, state="broken", text=f"{version}; manyhop needs {low} or later; {advice}")
    newer = f" (newer than {high}, the newest that was tested)" if major_minor(version) > supported[1] else ""
    return Diagnosis(topic=topic, state="ok", text=version + newer)


def major_minor(version: str) -> tuple[int, int]:
    """Return ``(2, 13)`` for ``"2.13.0+cpu"``."""
    major, minor = [*re.findall(r"\d+", version), "0", "0"][:2]
    return int(major), int(minor)
