"""Says what got worse, and writes the table."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from execute import FAILED, NOT_RUN, PASSED, SCRIPT, SKIPPED, WHOLE_FILE, Result
from suites import TITLES, Job

Counts = Counter[str]


@dataclass(frozen=True)
class Run:
    """A job with both of its results; ``plain`` is ``None`` where the library's own classes do not load."""

    job: Job
    swapped: Result
    plain: Result | None


@dataclass(frozen=True)
class Expected:
    """Failures that are known: how many by file and test (without parameters), and why."""

    counts: dict[str, int]
    reasons: dict[str, str]

    @classmethod
    def read(cls, file: Path) -> Expected:
        """The file has tables ``[[expected]]`` of a ``reason`` and ``failures``, a table of names and numbers."""
        entries = tomllib.loads(file.read_text()).get("expected", [])
        pairs = [(name, count, entry["reason"]) for entry in entries for name, count in entry["failures"].items()]
        return cls({name: count for name, count, _ in pairs}, {name: reason for name, _, reason in pairs})


def worse(run: Run) -> Counts:
    """How many parametrisations of each test fail with manyhop and do not fail without."""
    plain = run.plain.outcomes if run.plain else {}
    failed = [name for name, outcome in run.swapped.outcomes.items() if outcome == FAILED]
    return Counter(_key(run.job, name) for name in failed if plain.get(name) not in (FAILED, NOT_RUN))


def unexpected(runs: Sequence[Run], expected: Expected) -> list[str]:
    """A line for each test of which more fail than is known."""
    lines = []
    for run in runs:
        for key, count in worse(run).items():
            if count > expected.counts.get(key, 0):
                known = f", {expected.counts[key]} known" if key in expected.counts else ""
                messages = {_key(run.job, name): text for name, text in run.swapped.messages.items()}
                lines.append(f"{key}: {count} failed{known} ({run.job.version}): {messages.get(key, '')}")
    return lines


def better(runs: Sequence[Run], expected: Expected) -> list[str]:
    """A line for each known failure of which fewer fail in all checkouts that were run."""
    most: Counts = Counter()
    for run in runs:
        most |= worse(run)
    files = {run.job.name for run in runs}
    known = {key: count for key, count in expected.counts.items() if key.partition("::")[0] in files}
    return [f"{key}: {most[key]} failed, {count} known" for key, count in known.items() if most[key] < count]


def table(runs: Sequence[Run], expected: Expected) -> str:
    """The results, in Markdown, with the reasons of what differs."""
    parts = []
    by_checkout: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        by_checkout[run.job.project, run.job.version].append(run)
    for (project, version), group in by_checkout.items():
        library = TITLES[project]
        parts += [f"## {library} {version}", ""]
        for tests, what in ((True, "tests"), (False, "script")):
            if rows := [_row(run) for run in group if run.job.tests == tests]:
                parts += [f"| {what} | manyhop | {library} alone | seconds |", "|---|---|---|---|", *rows, ""]
        parts += [*_reasons(group, expected), ""]
    return "\n".join(parts)


def summary(runs: Sequence[Run]) -> str:
    """Two lines: tests, scripts."""
    lines = []
    for tests, what in ((True, "tests"), (False, "scripts")):
        group = [run for run in runs if run.job.tests == tests]
        ours, theirs = Counter[str](), Counter[str]()
        for run in group:
            ours.update(run.swapped.outcomes.values())
            theirs.update(run.plain.outcomes.values() if run.plain else [])
        differences = sum(sum(worse(run).values()) for run in group)
        lines.append(f"{what}: {_counts(ours)}; without manyhop {_counts(theirs)}; {differences} fail with it only")
    return "\n".join(lines)


def opening(runs: Sequence[Run], expected: Expected) -> str:
    """How much passes, and how many fail with manyhop only by reason: most ask for what is no interface."""
    lines, reasons = [], Counter[str]()
    for tests, what in ((True, "tests"), (False, "scripts")):
        group = [run for run in runs if run.job.tests == tests]
        ours, theirs = ([Counter(result.outcomes.values()) for result in of] for of in _results(group))
        passed, alone = (sum(counts[PASSED] for counts in of) for of in (ours, theirs))
        differing = sum(sum(worse(run).values()) for run in group)
        lines.append(f"- {what}: {passed} pass with manyhop, {alone} without; {differing} fail with manyhop only")
    for run in runs:
        for key, count in worse(run).items():
            reasons[_reason(key, count, expected)] += count
    rows = [f"| {count} | {reason} |" for reason, count in reasons.most_common()]
    return "\n".join([*lines, "", "| fail with manyhop only | why |", "|---|---|", *rows] if rows else lines)


def _results(runs: Sequence[Run]) -> tuple[list[Result], list[Result]]:
    return [run.swapped for run in runs], [run.plain for run in runs if run.plain]


def _row(run: Run) -> str:
    plain = _cell(run.job, run.plain) if run.plain else "has no CUDA" if run.job.gpus else "does not load"
    where = f", {run.job.gpus} GPU{'s' * (run.job.gpus > 1)}" if run.job.gpus else ""
    return f"| `{run.job.path}`{where} | {_cell(run.job, run.swapped)} | {plain} | {run.swapped.seconds:.0f} |"


def _cell(job: Job, result: Result) -> str:
    if result.outcomes == {WHOLE_FILE: FAILED} and result.messages[WHOLE_FILE] != "time limit":
        return "does not load: " + _escaped(re.sub(r" \(.*", "", result.messages[WHOLE_FILE]))
    if job.tests:
        return _counts(Counter(result.outcomes.values()))
    outcome = {PASSED: "runs", FAILED: "fails", NOT_RUN: "not run"}[result.outcomes[SCRIPT]]
    note = result.note or (result.messages.get(SCRIPT, "") if outcome == "fails" else "")
    return f"{outcome}: {_escaped(note)}" if note else outcome


def _counts(counts: Counts) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in (PASSED, FAILED, SKIPPED, NOT_RUN) if counts[kind]) or "none"


def _reasons(runs: Sequence[Run], expected: Expected) -> list[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for key, count in sorted(worse(run).items()):
            name = key.rpartition("/")[2].replace("::", " ")
            by_reason[_reason(key, count, expected)].append(f"`{name}`" + (f" ({count})" if count > 1 else ""))
    lines = ["Fails with manyhop only, and why:", ""] if by_reason else ["Nothing fails with manyhop only."]
    return lines + [f"- {reason}: {', '.join(names)}" for reason, names in by_reason.items()]


def _reason(key: str, count: int, expected: Expected) -> str:
    return expected.reasons[key] if count <= expected.counts.get(key, 0) else "Unexpected"


def _key(job: Job, test: str) -> str:
    return job.name if test == SCRIPT else f"{job.name}::{test.partition('[')[0]}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:120]
