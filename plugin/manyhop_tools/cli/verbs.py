"""Parsers, types of arguments, and execution of a command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from manyhop.errors import ManyhopError

Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that rejects unknown arguments with the usage of its verb, instead of that of the whole command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. Exit if one is unknown."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def add_verb(verbs: Verbs, name: str, run: Run, **texts: Any) -> Parser:
    """Add a verb; ``run(args)`` executes it and returns the exit status.

    ``args.argv`` are the arguments of the whole command line.
    """
    parser = verbs.add_parser(name, **texts)
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def run_verb(parser: Parser, argv: Sequence[str] | None) -> int:
    """Run the verb that ``argv`` (default: the process's own) names; print errors of manyhop and the system.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(arguments)
    args.argv = arguments
    try:
        status: int = args.run(args)
    except BrokenPipeError:  # of a pager or head that ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FileNotFoundError as error:
        path = error.filename or error
        print(f"{args.prog}: {path}: there is no such file or folder. Check the path.", file=sys.stderr)
        return 1
    except (ManyhopError, OSError) as error:
        print(f"{args.prog}: {error}", file=sys.stderr)
        return 1
    return status


def at_least_one(text: str) -> int:
    """Return the type of an argument: a positive integer."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return number
