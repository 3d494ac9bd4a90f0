"""Verbs of the command and their arguments. A verb imports its code when it is called."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from manyhop import __version__
from manyhop.errors import ManyhopError
from manyhop.memory.places import LOADER_PLACES


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own); returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        parser().print_help()
        return 0
    args = parser().parse_args(arguments)
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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(prog="manyhop", description="Neighbour sampling and feature loading for graph neural networks.")
    parser.add_argument("--version", action="version", version=f"manyhop {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, run, text, add_arguments in (
        ("doctor", doctor, "report installed and missing packages, GPUs and remedies", None),
        ("plan", plan, "report in which memory a graph will reside", _of_plan),
        ("convert", convert, "write a graph into a folder that can be mapped", _of_convert),
        ("compile", compile_kernels, "compile all CPU kernels now, for images and CI", None),
        ("timeline", timeline, "merge the timelines of all ranks into one file", _of_timeline),
        ("bench", bench, "compare loaders with PyG's and DGL's", _of_bench),
    ):
        verb = verbs.add_parser(
            name,
            help=text,
            description=inspect.getdoc(run),
            formatter_class=argparse.RawDescriptionHelpFormatter if run is convert else argparse.HelpFormatter,
        )
        verb.set_defaults(run=run, prog=verb.prog)
        if add_arguments is not None:
            add_arguments(verb)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser that rejects unknown arguments with the usage of its verb, instead of that of the whole command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def _integer(least: int, text: str) -> int:
    """Return the value of an argument: an integer, also written as 1e9."""
    try:
        number = float(text)
        if number >= least and number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")


_positive, _count = partial(_integer, 1), partial(_integer, 0)


def doctor(args: argparse.Namespace) -> int:
    """Report installed and missing packages, GPUs and remedies.

    The exit status is 1 if manyhop cannot work, otherwise 0.
    """
    from manyhop_tools.doctor.report import examine

    report = examine()
    print(report)
    return 0 if report.healthy else 1


def plan(args: argparse.Namespace) -> int:
    """Report whether topology and features fit, in which memory they will reside, and why.

    Nothing is loaded. Options may describe machines, GPUs and graphs that are not available.
    """
    from manyhop_tools.cli.plan import report

    print(report(args))
    return 0


def _of_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="folders of graphs, or files of tensors")
    parser.add_argument("--ranks", type=_positive, metavar="N", help="processes in all (1, or one per GPU)")
    parser.add_argument("--nodes", type=_positive, default=1, metavar="M", help="nodes (machines) they run on (1)")
    parser.add_argument("--memory", metavar="BYTES", help="free memory of each node, such as 12GiB (the free memory)")
    parser.add_argument(
        "--no-shards", action="store_true", help="loaders will not be distributed=True, which sharded features need"
    )
    gpus = parser.add_argument_group("for loaders on GPUs")
    gpus.add_argument("--gpus", type=_positive, metavar="K", help="GPUs of each node, with a rank each")
    gpus.add_argument("--gpu-memory", metavar="BYTES", help="free memory of each, such as 141GB (the free memory)")
    gpus.add_argument("--no-peers", action="store_true", help="the GPUs of a node cannot read each other's memory")
    gpus.add_argument("--placement", choices=LOADER_PLACES, metavar="HOW", help="as the loaders' argument (auto)")
    numbers = parser.add_argument_group("for a graph that is not available, instead of FILE")
    numbers.add_argument("--num-nodes", type=_count, metavar="N", help="nodes, such as 111e6")
    numbers.add_argument("--num-edges", type=_count, metavar="E", help="directed edges")
    numbers.add_argument("--features", type=_count, metavar="F", help="numbers of features per node (0)")
    numbers.add_argument("--dtype", metavar="TYPE", help="of the features, such as float16 (float32)")


def convert(args: argparse.Namespace) -> int:
    """Write a graph into a new folder, for open(), which can map it into memory.

    SOURCE is one of
      a folder that this command or save() wrote, with --partition
      a Data or HeteroData saved with torch.save (.pt), read without unpickling anything but tensors and PyG's
      containers
      pyg:NAME, a class of torch_geometric.datasets of one graph, with --dataset-arg for its arguments
      a folder of an OGB data set for nodes or links, with raw/ and split/; of MAG240M, IGB or IGBH, with processed/
      edges: CSV (also .gz) or Parquet files, or an edge_index [2, num_edges] as .npy, .bin or .safetensors; several
      files, and SRC,REL,DST=FILE for the edges of one type of a heterogeneous graph
    Files and folders may be at addresses that fsspec can read, such as s3://bucket/edges.csv.

    Edges are sorted in pieces: they may exceed the memory, tables of nodes may not.
    """
    from manyhop_tools.cli.convert import convert, summary

    print(summary(convert(args)))
    return 0


def _of_convert(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE", help="what to convert")
    add("target", metavar="TARGET", help="a folder that does not exist yet, or is empty")
    add("--memory", metavar="BYTES",
        help="memory for sorting, such as 2GiB (a quarter of the free memory, at most 4GiB)")  # fmt: skip
    add("--partition", metavar="N | [TYPE=]FILE", action="append",
        help="renumber nodes by part, for features sharded over ranks: N parts by METIS (as many as ranks or nodes, or "
        "a multiple), or a file with the part of each node")  # fmt: skip
    add("--crc32", action="store_true", help="store checksums of the files")
    add("--both-ways", action="store_true", help="also add each edge in the other direction (edges and OGB)")
    add("--raw", metavar="FILE=DTYPE[,WIDTH]", action="append",
        help="dtype and width of a raw file (.bin without .bin.json) that another argument names")  # fmt: skip
    add = parser.add_argument_group("PyG's data sets").add_argument
    add("--dataset-arg", metavar="NAME=VALUE", action="append", help="an argument of the class, such as root=data")
    add = parser.add_argument_group("OGB").add_argument
    add("--split", metavar="NAME", help="the split, if there are multiple")
    add = parser.add_argument_group("edges").add_argument
    add("--src", metavar="COLUMN", help="column of the source nodes (the first)")
    add("--dst", metavar="COLUMN", help="column of the destination nodes (the second)")
    add("--edge-columns", metavar="NAMES", help="columns to keep as tensors of edges, with commas between them")
    add("--no-header", action="store_true", help="CSV has no line of names: columns are called 0, 1, 2, ...")
    add("--delimiter", metavar="CHAR", help="between the columns of CSV (a comma; in .tsv a tab)")
    add("--ids", choices=["auto", "keep", "map"],
        help="retain integer ids, or map ids to 0, 1, 2, ...; auto (the default): map texts, and integers that are "
        "negative or far above the number of edges")  # fmt: skip
    add("--num-nodes", metavar="[TYPE=]N", action="append", help="number of nodes, if not 1 + the highest id")
    add("--nodes", metavar="[TYPE=]FILE", action="append",
        help="a CSV or Parquet table of nodes: an id in each row, and numbers that become tensors")  # fmt: skip
    add("--node-id", metavar="COLUMN", help="column of the ids in tables of nodes (the first)")
    add("--node-tensor", metavar="[TYPE.]NAME=FILE", action="append",
        help="a tensor with a row for each node; FILE:NAME is a column, or one of several tensors")  # fmt: skip


def compile_kernels(args: argparse.Namespace) -> int:
    """Compile all CPU kernels that are not compiled yet, into numba's cache (NUMBA_CACHE_DIR for another folder).

    Kernels of GPUs are compiled when they are first used.
    """
    from manyhop.system.numba_kernels import KERNELS, prepare
    from manyhop_tools.doctor.report import KERNEL_MODULES, compiled_kernels

    begin = time.perf_counter()
    for name in KERNEL_MODULES:
        import_module(name)
    prepare(*KERNELS)
    seconds = time.perf_counter() - begin
    print(
        f"{len(KERNELS)} CPU kernels are ready ({seconds:.1f} s); {compiled_kernels().text}. GPU kernels: at first use."
    )
    return 0


def timeline(args: argparse.Namespace) -> int:
    """Merge timelines that loader.timeline('....json') saved on each rank into one file.

    Open it in ui.perfetto.dev or chrome://tracing. Each rank is a process. Times are wall-clock times of the nodes.
    """
    from manyhop.loading.pipeline import merge_traces

    merge_traces(args.files, args.output)
    print(f"{args.output}: {len(args.files)} timelines; open it in https://ui.perfetto.dev")
    return 0


def _of_timeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="timelines of ranks, or of multiple loaders of a rank")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")


def bench(args: argparse.Namespace) -> int:
    """Compare epochs of manyhop's loaders with those of PyG and DGL, if installed, on a graph on disk or a random one.

    PyG samples with pyg-lib or torch-sparse. If there is a GPU, batches on it are also measured. Rounds alternate
    between loaders.
    """
    from manyhop_tools.cli.bench import report

    print("\n".join(report(args)))
    return 0


def _of_bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", nargs="?", type=Path, metavar="FOLDER", help="a graph that save() or `manyhop convert` wrote")
    add("--fanout", type=_positive, nargs="+", default=[15, 10, 5], metavar="K", help="per hop (15 10 5)")
    add("--batch-size", type=_positive, default=1024, metavar="N", help="seeds of a batch (1024)")
    add("--batches", type=_positive, default=20, metavar="N", help="batches of an epoch, at most (20)")
    add("--threads", type=_positive, default=1, metavar="N", help="threads or processes of a loader (1)")
    add("--rounds", type=_positive, default=7, metavar="N", help="turns of each loader (7)")
    add = parser.add_argument_group("the random graph, without FOLDER").add_argument
    add("--nodes", type=_positive, default=200_000, metavar="N", help="nodes (2e5)")
    add("--edges", type=_positive, default=3_000_000, metavar="E", help="edges, whose ends follow a power law (3e6)")
    add("--features", type=_positive, default=128, metavar="F", help="float32 features per node (128)")
