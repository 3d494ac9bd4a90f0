"""Parsers of command lines that show the usage of the verb, not of the whole command, where an argument is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that refuses unknown arguments itself. argparse would leave that to the parser of the whole command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; exits where an argument is unknown."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def add_verb(verbs: Verbs, name: str, run: Run, **texts: Any) -> Parser:
    """Add a verb; ``run(args)`` does what it says, and returns the exit status."""
    parser = verbs.add_parser(name, **texts)
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def at_least_one(text: str) -> int:
    """The type of an argument: an integer from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number
