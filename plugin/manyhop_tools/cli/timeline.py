"""``manyhop timeline``."""

from __future__ import annotations

import argparse

from manyhop_tools.cli.verbs import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Add the verb and its arguments."""
    parser = add_verb(
        verbs,
        "timeline",
        _run,
        help="put the timelines of all ranks into one file",
        description="Puts timelines that loader.timeline('....json') saved on each rank into one file for "
        "ui.perfetto.dev or chrome://tracing. Ranks are processes in it; times are those of the nodes' wall clocks.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="timelines of ranks, or of several loaders of a rank")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")


def _run(args: argparse.Namespace) -> int:
    from manyhop.loading.pipeline import merge_traces

    merge_traces(args.files, args.output)
    print(f"{args.output}: {len(args.files)} timelines; open it in https://ui.perfetto.dev")
    return 0
