"""Run PyG's and DGL's own tests, example scripts and notebooks with manyhop's classes, and beside it with theirs; also
tests of RelBench (PyG) and GraphStorm (DGL), which need these projects' packages.

    python tests/upstream/run.py --pyg CHECKOUT --dgl CHECKOUT --output docs/project/compatibility.md
    python tests/upstream/run.py --dgl CHECKOUT --graphbolt .venv-graphbolt/bin/python
    python tests/upstream/run.py --dgl CHECKOUT --gpus 1 2 --output docs/project/compatibility-gpu.md
    python tests/upstream/run.py --relbench CHECKOUT --graphstorm CHECKOUT --output PAGE.md

Everything is run by its path, in a process of its own, one after the other (GraphStorm's tests in one each); small
random graphs stand in for datasets. PyG's own samplers need pyg-lib or torch-sparse. Exits with 1 if more fails than
`expected.toml` knows of.
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
from report import Expected, Run, better, opening, summary, table, unexpected
from suites import TITLES, Job, jobs, jobs_on_gpus

PACKAGES = ("numpy", "torch", "torch_geometric", "torch_sparse", "pyg_lib", "dgl")
INTRODUCTION = """# Compatibility

PyG's and DGL's own tests, example scripts and notebooks run unchanged with `manyhop_pyg.install()` and
`manyhop_dgl.install()`, and without. Small random graphs stand in for the scripts' datasets. "Not run" names the
missing requirement. [Compatibility with projects](compatibility-projects.md) has tests of projects that use PyG or DGL.
In these runs, loaders print only their names, because PyG's tests assert this before they read batches.

GraphBolt's tests import names from its internal modules, which `manyhop_dgl.graphbolt` replaces as a whole. Tests of
these names fail intentionally and form the largest group. DGL's last wheel, 2.1, contains GraphBolt's C++ library for
torch 2.0 to 2.2 only, so GraphBolt alone runs in an environment with torch 2.2.1 (`make graphbolt`). Without it, these
cells contain "does not load". Tests of later commits use names that 2.1 does not have.

To make this page again: `make upstream PYG=CHECKOUT DGL=CHECKOUT`.
"""

PROJECTS = """# Compatibility with projects

Tests of projects that use PyG or DGL, unchanged, with `manyhop_pyg.install()` and `manyhop_dgl.install()`, and without.
A test counts as not run if it needs a GPU, NCCL or a package that the machine lacks.

To make this page again: `make upstream RELBENCH=CHECKOUT GRAPHSTORM=CHECKOUT`. RelBench and GraphStorm need additional
packages (`pooch`, `duckdb`; `transformers`, `h5py`, `ogb`, `boto3`, `scikit-learn`).
"""

ON_GPUS = """# Compatibility on GPUs

DGL's own example scripts, unchanged, with `manyhop_dgl.install()` and DGL's wheel for CPUs: graphs on a GPU are on
torch tensors. Small random graphs stand in for their datasets, so their accuracy is meaningless. "Has no CUDA": without
manyhop, this wheel of DGL cannot move a graph to a GPU. Left out are scripts that would fail on any GPU:
`ogbn-products/gat/gat.py` indexes a tensor on the CPU by ids on the GPU. [Compatibility](compatibility.md) has the
rest.

To make this page again:
`python tests/upstream/run.py --dgl CHECKOUT --gpus 1 2 --output docs/project/compatibility-gpu.md`.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments choose; returns the exit status."""
    options = _parser().parse_args(arguments)
    checkouts = [(project, repo) for project in TITLES for repo in getattr(options, project)]
    found = [job for one in checkouts for job in _jobs(*one, options.gpus)]
    found = [job for job in found if not options.only or any(_fits(job, pattern) for pattern in options.only)]
    if not found:
        print("Nothing to run: name a checkout by --pyg, --dgl, --relbench or --graphstorm, and files of it by --only.")
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
    for name, title in TITLES.items():
        help = f"a checkout of {title}'s repository; can be given several times"
        parser.add_argument(f"--{name}", type=lambda text: Path(text).resolve(), action="append", default=[], help=help)
    help = "run DGL's scripts of models on so many GPUs instead; several numbers: on each"
    parser.add_argument("--gpus", type=int, nargs="+", help=help)
    help = "a Python in which DGL's own GraphBolt loads, to run its tests and scripts without manyhop (make graphbolt)"
    parser.add_argument("--graphbolt", type=Path, help=help)
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="files such as 'dgl/examples/*', 'v2.1.0/dgl/*'")
    parser.add_argument("--output", type=Path, help="the page to write")
    parser.add_argument("--expected", type=Path, default=Path(__file__).with_name("expected.toml"))
    parser.add_argument("--limit", type=float, default=600, help="seconds for a file (%(default)s)")
    parser.add_argument("--keep", type=Path, help="folder for results and outputs; what is there is not run again")
    return parser


def _jobs(project: str, repo: Path, gpus: list[int] | None) -> list[Job]:
    if gpus is None:
        return jobs(project, repo)
    return [job for number in gpus for job in jobs_on_gpus(project, repo, number)]


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
            return execute(job, "own", options.limit, options.keep, options.graphbolt) if options.graphbolt else None
    return execute(job, "plain", options.limit, options.keep)


def _page(runs: list[Run], expected: Expected) -> str:
    with contextlib.suppress(ImportError):
        import manyhop_dgl.compat  # noqa: F401  # without it DGL imports on few versions of torch
    versions = [f"Python {platform.python_version()}", *map(_version, PACKAGES)]
    if on_gpus := any(run.job.gpus for run in runs):
        import torch

        versions.append(torch.cuda.get_device_name())
    day = datetime.date.today().isoformat()
    skipped = sum(NOT_RUN in run.swapped.outcomes.values() for run in runs)
    facts = f"Run on {day}: {', '.join(versions)}; {len(runs)} files, {skipped} of them not run.\n"
    of_projects = all(run.job.project not in ("pyg", "dgl") for run in runs)
    introduction = ON_GPUS if on_gpus else PROJECTS if of_projects else INTRODUCTION
    parts = [introduction, facts, opening(runs, expected), "", table(runs, expected)]
    return "\n".join(parts).rstrip() + "\n"


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.import_module(package).__version__}"
    except ImportError:
        return f"no {package}"


if __name__ == "__main__":
    sys.exit(main())
