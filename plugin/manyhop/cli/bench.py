"""``manyhop bench``: a package of its own, on top of the engine and the adapters, that an entry point names."""

from __future__ import annotations

import argparse
from importlib import metadata

from manyhop.cli.verbs import Verbs, add_verb
from manyhop.errors import ManyhopError
from manyhop.hints import pip_install

_GROUP = "manyhop.commands"


def add_to(verbs: Verbs) -> None:
    """Add the verb as the entry point defines it, or a verb that fails with the command that installs it."""
    found = metadata.entry_points(group=_GROUP, name="bench")
    if found:
        next(iter(found)).load()(verbs)
        return
    parser = add_verb(verbs, "bench", _fail, help="not installed", description=_advice())
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _fail(args: argparse.Namespace) -> int:
    raise ManyhopError(_advice())


def _advice() -> str:
    return (
        f"Expected an installed entry point 'bench' of the group '{_GROUP}', found none. "
        f"Install manyhop again: {pip_install('bench')}"
    )
