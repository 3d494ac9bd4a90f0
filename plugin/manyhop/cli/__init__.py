"""The command ``manyhop``. A verb's file has its arguments; what it does is imported when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from manyhop import __version__
from manyhop.cli import bench, compile, convert, doctor, plan
from manyhop.cli._parser import Parser
from manyhop.errors import ManyhopError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own); returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(arguments)
    args.argv = arguments
    try:
        status: int = args.run(args)
    except (ManyhopError, OSError) as error:
        print(f"{args.prog}: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="manyhop", description="Neighbour sampling and feature loading for graph neural networks.")
    parser.add_argument("--version", action="version", version=f"manyhop {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    for verb in (doctor, plan, convert, compile, bench):
        verb.add_to(verbs)
    return parser
