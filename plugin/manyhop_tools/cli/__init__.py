"""The command ``manyhop``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from manyhop import __version__
from manyhop_tools.cli.commands import add_all
from manyhop_tools.cli.verbs import Parser, run_verb


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own); returns the exit status."""
    parser = _parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help()
        return 0
    return run_verb(parser, argv)


def _parser() -> Parser:
    parser = Parser(prog="manyhop", description="Neighbour sampling and feature loading for graph neural networks.")
    parser.add_argument("--version", action="version", version=f"manyhop {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    add_all(verbs)
    return parser
