"""Run PyG's and DGL's own tests, example scripts and notebooks with manyhop's classes, and beside it with theirs.

    python tests/upstream/run.py --pyg CHECKOUT --dgl CHECKOUT --output docs/compatibility.md
    python tests/upstream/run.py --dgl CHECKOUT --gpus 2    # DGL's scripts of models, on GPUs

Everything is run by its path, in a process of its own, one after the other; small random graphs stand in for datasets.
PyG's own samplers need pyg-lib or torch-sparse. Exits with 1 if more fails than `expected.toml` knows of.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import platform
import sys
from fnmatch import fnmatch
from pathlib import Path

from execute import NOT_RUN, Result, execute
from report import Expected, Run, better, summary, table, unexpected
from suites import Job, jobs, jobs_on_gpus

PACKAGES = ("numpy", "torch", "torch_geometric", "torch_sparse", "pyg_lib", "dgl")
INTRODUCTION = """# Compatibility

What PyG and DGL promise, asked of manyhop: their own tests, example scripts and notebooks, unchanged, with
`manyhop_pyg.install()` and `manyhop_dgl.install()`, and beside it without. Small random graphs stand in for the
scripts' datasets; GraphBolt's tests, which import from its inner modules, get the names of `manyhop_dgl.graphbolt`
there. "Does not load": DGL's own GraphBolt needs a C++ library that no wheel has for this torch. "Not run" names what
the machine lacks.

To make this page again: `make upstream PYG=CHECKOUT DGL=CHECKOUT`.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments choose; returns the exit status."""
    options = _parser().parse_args(arguments)
    checkouts = [(project, repo) for project in ("pyg", "dgl") for repo in getattr(options, project)]
    found = [job for one in checkouts for job in (jobs_on_gpus(*one, options.gpus) if options.gpus else jobs(*one))]
    found = [job for job in found if not options.only or any(_fits(job, pattern) for pattern in options.only)]
    if not found:
        print("Nothing to run: name a checkout by --pyg or --dgl, and files of it by --only.")
        return 2
    expected = Expected.read(options.expected)
    runs = [_both(job, options) for job in found]
    for line in better(runs, expected):
        print("better than expected:", line)
    bad = unexpected(runs, expected)
    for line in bad:
        print("WORSE than expected:", line)
    print(summary(runs))
    if options.output:
        options.output.write_text(_page(runs, expected))
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, library in (("pyg", "PyG"), ("dgl", "DGL")):
        help = f"a checkout of {library}'s repository; can be given several times"
        parser.add_argument(f"--{name}", type=lambda text: Path(text).resolve(), action="append", default=[], help=help)
    parser.add_argument("--gpus", type=int, default=0, help="run DGL's scripts of models on so many GPUs instead")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="files such as 'dgl/examples/*', 'v2.1.0/dgl/*'")
    parser.add_argument("--output", type=Path, help="the page to write")
    parser.add_argument("--expected", type=Path, default=Path(__file__).with_name("expected.toml"))
    parser.add_argument("--limit", type=float, default=600, help="seconds for a file (%(default)s)")
    parser.add_argument("--keep", type=Path, help="folder for results and outputs; what is there is not run again")
    return parser


def _fits(job: Job, pattern: str) -> bool:
    return fnmatch(job.name, pattern) or fnmatch(f"{job.version}/{job.name}", pattern)


def _both(job: Job, options: argparse.Namespace) -> Run:
    swapped = execute(job, "swapped", options.limit, options.keep)
    plain = _plain(job, options)
    run = Run(job, swapped, plain)
    print(f"{job.version} {job.name}: {summary([run]).splitlines()[not job.tests]}", flush=True)
    return run


def _plain(job: Job, options: argparse.Namespace) -> Result | None:
    if job.gpus:  # DGL's wheel has no CUDA
        return None
    if job.graphbolt:
        from manyhop_dgl.compat import unavailable

        if "dgl.graphbolt" in unavailable():
            return None
    return execute(job, "plain", options.limit, options.keep)


def _page(runs: list[Run], expected: Expected) -> str:
    with contextlib.suppress(ImportError):
        import manyhop_dgl.compat  # noqa: F401  # without it DGL imports on few versions of torch
    versions = [f"Python {platform.python_version()}", *map(_version, PACKAGES)]
    day = datetime.date.today().isoformat()
    skipped = sum(NOT_RUN in run.swapped.outcomes.values() for run in runs)
    facts = f"Run on {day}: {', '.join(versions)}; {len(runs)} files, {skipped} of them not run.\n"
    totals = "\n".join(f"- {line}" for line in summary(runs).splitlines())
    return "\n".join([INTRODUCTION, facts, totals, "", table(runs, expected)]).rstrip() + "\n"


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.import_module(package).__version__}"
    except ImportError:
        return f"no {package}"


if __name__ == "__main__":
    sys.exit(main())
