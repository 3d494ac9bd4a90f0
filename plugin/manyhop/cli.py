"""The command ``manyhop``: doctor and bench."""

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
    bench = commands.add_parser("bench", help="measure manyhop beside what else is installed")
    targets = bench.add_subparsers(dest="target", required=True, metavar="TARGET")
    targets.add_parser("cpu", help="sampling and loading on the CPU; see: manyhop bench cpu --help", add_help=False)
    targets.add_parser("ranks", help="epochs under DDP; see: manyhop bench ranks --help", add_help=False)

    args, rest = parser.parse_known_args(argv)
    if args.command == "bench":
        from manyhop import bench as benches

        run = {"cpu": benches.cpu_main, "ranks": benches.ranks_main}[args.target]
        return run(rest)  # has options of its own
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from manyhop._doctor import examine

    report = examine()
    print(report)
    return 0 if report.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
