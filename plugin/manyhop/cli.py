"""The command ``manyhop``: doctor, plan, convert and bench."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from manyhop import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own); returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="manyhop", description="Neighbour sampling and feature loading for graph neural networks."
    )
    parser.add_argument("--version", action="version", version=f"manyhop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "doctor",
        help="say what is installed here, what is missing, and what brings it",
        description="Says what is installed here, what is missing, and what brings it. "
        "Exits with 1 if manyhop cannot work, else with 0.",
    )
    # The others have options of their own.
    commands.add_parser(
        "plan",
        help="say what will be in which memory, before anything is loaded; see: manyhop plan --help",
        add_help=False,
    )
    commands.add_parser(
        "convert", help="write a graph into a folder that can be mapped; see: manyhop convert --help", add_help=False
    )
    bench = commands.add_parser("bench", help="measure manyhop beside what else is installed")
    targets = bench.add_subparsers(dest="target", required=True, metavar="TARGET")
    targets.add_parser("cpu", help="sampling and loading on the CPU; see: manyhop bench cpu --help", add_help=False)
    targets.add_parser("dgl", help="beside DGL on the CPU; see: manyhop bench dgl --help", add_help=False)
    targets.add_parser("gpu", help="everything on NVIDIA GPUs; see: manyhop bench gpu --help", add_help=False)
    targets.add_parser("ranks", help="epochs under DDP; see: manyhop bench ranks --help", add_help=False)
    targets.add_parser("exchange", help="rows from other nodes; see: manyhop bench exchange --help", add_help=False)

    args, rest = parser.parse_known_args(argv)
    if args.command == "plan":
        from manyhop._plan import main as plan_main

        return plan_main(rest)
    if args.command == "convert":
        from manyhop.files._convert import main as convert_main

        return convert_main(rest)
    if args.command == "bench":
        from manyhop import bench as benches

        mains = {
            "cpu": benches.cpu_main,
            "dgl": benches.dgl_main,
            "gpu": benches.gpu_main,
            "exchange": benches.exchange_main,
            "ranks": benches.ranks_main,
        }
        run = mains[args.target]
        return run(rest)  # has options of its own
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from manyhop._doctor import examine

    report = examine()
    print(report)
    return 0 if report.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
