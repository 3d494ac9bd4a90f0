"""``manyhop doctor``."""

from __future__ import annotations

import argparse

from manyhop_tools.cli.verbs import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Add the verb and its arguments."""
    add_verb(
        verbs,
        "doctor",
        _run,
        help="report what is installed here, what is missing, and how to add it",
        description="Reports what is installed here, what is missing, and how to add it. "
        "Exits with 1 if manyhop cannot work, else with 0.",
    )


def _run(args: argparse.Namespace) -> int:
    from manyhop_tools.doctor.report import examine

    report = examine()
    print(report)
    return 0 if report.healthy else 1
