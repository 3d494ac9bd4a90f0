"""``manyhop plan``."""

from __future__ import annotations

import argparse
from typing import get_args

from manyhop.memory.placement import GPUMode
from manyhop_tools.cli.verbs import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Add the verb and its arguments."""
    parser = add_verb(
        verbs,
        "plan",
        _run,
        help="report what will be in which memory, before anything is loaded",
        description="Reports, before anything is loaded, which memory topology and features will be in, and why. "
        "Machines, their GPUs and the graph may be described by options: they need not be there.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="folders of graphs, or files of tensors")
    parser.add_argument("--ranks", type=int, metavar="N", help="processes in all (1, or one per GPU)")
    parser.add_argument("--nodes", type=int, default=1, metavar="M", help="nodes (machines) they run on (1)")
    parser.add_argument("--memory", metavar="BYTES", help="free memory of each node, such as 12GiB (what is free)")
    parser.add_argument(
        "--no-shards", action="store_true", help="loaders will not be distributed=True, which sharded features need"
    )
    gpus = parser.add_argument_group("for loaders on GPUs")
    gpus.add_argument("--gpus", type=int, metavar="K", help="GPUs of each node, with a rank each")
    gpus.add_argument("--gpu-memory", metavar="BYTES", help="free memory of each, such as 141GB (what is free here)")
    gpus.add_argument("--no-peers", action="store_true", help="the GPUs of a node cannot read each other's memory")
    gpus.add_argument("--placement", choices=get_args(GPUMode), metavar="HOW", help="as the loaders' argument (auto)")
    numbers = parser.add_argument_group("for a graph that is not here, instead of FILE")
    numbers.add_argument("--num-nodes", type=_number, metavar="N", help="nodes, such as 111e6")
    numbers.add_argument("--num-edges", type=_number, metavar="E", help="directed edges")
    numbers.add_argument("--features", type=_number, metavar="F", help="numbers of features per node (0)")
    numbers.add_argument("--dtype", metavar="TYPE", help="of the features, such as float16 (float32)")


def _number(text: str) -> int:
    """The type of an argument: an integer from 0 on, also written as 1e9."""
    try:
        number = float(text)
        if number >= 0 and number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")


def _run(args: argparse.Namespace) -> int:
    from manyhop_tools.cli.plan_report import report

    print(report(args))
    return 0
