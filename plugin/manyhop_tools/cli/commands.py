"""Verbs of the command and their arguments. A verb imports its code when it is called."""

from __future__ import annotations

import argparse
import time
from importlib import import_module

from manyhop.memory.places import LOADER_PLACES
from manyhop_tools.cli import bench
from manyhop_tools.cli.verbs import Verbs, add_verb, at_least_one

MODULES = (
    "manyhop_embedding.cpu_kernels",
    "manyhop.features.cpu_kernels",
    "manyhop.features.cpu_lookup",
    "manyhop.graph.column_kernels",
    "manyhop.sampling.cpu.kernels.hgt",
    "manyhop.sampling.cpu.kernels.hop",
    "manyhop.sampling.cpu.kernels.induced",
    "manyhop.sampling.cpu.kernels.labor",
    "manyhop.sampling.cpu.kernels.walks",
    "manyhop.sampling.cpu.kernels.random",
    "manyhop.system.paging",
)


def add_all(verbs: Verbs) -> None:
    """Add all verbs and their arguments."""
    for add in (_add_doctor, _add_plan, _add_convert, _add_compile, _add_timeline, bench.add_to):
        add(verbs)


def _add_doctor(verbs: Verbs) -> None:
    add_verb(
        verbs,
        "doctor",
        _doctor,
        help="report installed and missing packages, GPUs and remedies",
        description="Reports installed and missing packages, GPUs and remedies. "
        "The exit status is 1 if manyhop cannot work, otherwise 0.",
    )


def _doctor(args: argparse.Namespace) -> int:
    from manyhop_tools.doctor.report import examine

    report = examine()
    print(report)
    return 0 if report.healthy else 1


def _add_plan(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "plan",
        _plan,
        help="report in which memory a graph will reside",
        description="Reports whether topology and features fit, in which memory they will reside, and why. Nothing is "
        "loaded. Options may describe machines, GPUs and graphs that are not available.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="folders of graphs, or files of tensors")
    parser.add_argument("--ranks", type=at_least_one, metavar="N", help="processes in all (1, or one per GPU)")
    parser.add_argument("--nodes", type=at_least_one, default=1, metavar="M", help="nodes (machines) they run on (1)")
    parser.add_argument("--memory", metavar="BYTES", help="free memory of each node, such as 12GiB (the free memory)")
    parser.add_argument(
        "--no-shards", action="store_true", help="loaders will not be distributed=True, which sharded features need"
    )
    gpus = parser.add_argument_group("for loaders on GPUs")
    gpus.add_argument("--gpus", type=at_least_one, metavar="K", help="GPUs of each node, with a rank each")
    gpus.add_argument("--gpu-memory", metavar="BYTES", help="free memory of each, such as 141GB (the free memory)")
    gpus.add_argument("--no-peers", action="store_true", help="the GPUs of a node cannot read each other's memory")
    gpus.add_argument("--placement", choices=LOADER_PLACES, metavar="HOW", help="as the loaders' argument (auto)")
    numbers = parser.add_argument_group("for a graph that is not available, instead of FILE")
    numbers.add_argument("--num-nodes", type=_number, metavar="N", help="nodes, such as 111e6")
    numbers.add_argument("--num-edges", type=_number, metavar="E", help="directed edges")
    numbers.add_argument("--features", type=_number, metavar="F", help="numbers of features per node (0)")
    numbers.add_argument("--dtype", metavar="TYPE", help="of the features, such as float16 (float32)")


def _number(text: str) -> int:
    """Return the type of an argument: a non-negative integer, also written as 1e9."""
    try:
        number = float(text)
        if number >= 0 and number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")


def _plan(args: argparse.Namespace) -> int:
    from manyhop_tools.cli.plan import report

    print(report(args))
    return 0


_CONVERT = """\
Writes a graph into a new folder, for open(), which can map it into memory.

SOURCE is one of
  a folder that this command or save() wrote, with --partition
  a Data or HeteroData saved with torch.save (.pt), read without unpickling anything but tensors and PyG's containers
  pyg:NAME, a class of torch_geometric.datasets of one graph, with --dataset-arg for its arguments
  a folder of an OGB data set for nodes or links, with raw/ and split/; of MAG240M, IGB or IGBH, with processed/
  edges: CSV (also .gz) or Parquet files, or an edge_index [2, num_edges] as .npy, .bin or .safetensors; several
  files, and SRC,REL,DST=FILE for the edges of one type of a heterogeneous graph
Files and folders may be at addresses that fsspec can read, such as s3://bucket/edges.csv.

Edges are sorted in pieces: they may exceed the memory, tables of nodes may not."""


def _add_convert(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "convert",
        _convert,
        help="write a graph into a folder that can be mapped",
        description=_CONVERT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE", help="what to convert")
    add("target", metavar="TARGET", help="a folder that does not exist yet, or is empty")
    add(
        "--memory",
        metavar="BYTES",
        help="memory for sorting, such as 2GiB (a quarter of the free memory, at most 4GiB)",
    )
    add(
        "--partition",
        metavar="N | [TYPE=]FILE",
        action="append",
        help="renumber nodes by part, for features sharded over ranks: N parts by METIS (as many as ranks or nodes, or "
        "a multiple), or a file with the part of each node",
    )
    add("--crc32", action="store_true", help="store checksums of the files")
    add("--both-ways", action="store_true", help="also add each edge in the other direction (edges and OGB)")
    pyg = parser.add_argument_group("PyG's data sets")
    pyg.add_argument(
        "--dataset-arg", metavar="NAME=VALUE", action="append", help="an argument of the class, such as root=data"
    )
    ogb = parser.add_argument_group("OGB")
    ogb.add_argument("--split", metavar="NAME", help="the split, if there are multiple")
    add("--raw", metavar="FILE=DTYPE[,WIDTH]", action="append",
        help="dtype and width of a raw file (.bin without .bin.json) that another argument names")  # fmt: skip
    edges = parser.add_argument_group("edges")
    add = edges.add_argument
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


def _convert(args: argparse.Namespace) -> int:
    from manyhop_tools.cli.convert import convert, summary

    print(summary(convert(args)))
    return 0


def _add_compile(verbs: Verbs) -> None:
    add_verb(
        verbs,
        "compile",
        _compile,
        help="compile all CPU kernels now, for images and CI",
        description="Compiles all CPU kernels that are not compiled yet, into numba's cache (NUMBA_CACHE_DIR "
        "for another folder). Kernels of GPUs are compiled when they are first used.",
    )


def _compile(args: argparse.Namespace) -> int:
    from manyhop.system.numba_kernels import KERNELS, prepare
    from manyhop_tools.doctor.report import compiled_kernels

    begin = time.perf_counter()
    for name in MODULES:
        import_module(name)
    prepare(*KERNELS)
    seconds = time.perf_counter() - begin
    print(
        f"{len(KERNELS)} CPU kernels are ready ({seconds:.1f} s); {compiled_kernels().text}. GPU kernels: at first use."
    )
    return 0


def _add_timeline(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "timeline",
        _timeline,
        help="merge the timelines of all ranks into one file",
        description="Merges timelines that loader.timeline('....json') saved on each rank into one file for "
        "ui.perfetto.dev or chrome://tracing. Each rank is a process. Times are wall-clock times of the nodes.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="timelines of ranks, or of multiple loaders of a rank")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")


def _timeline(args: argparse.Namespace) -> int:
    from manyhop.loading.pipeline import merge_traces

    merge_traces(args.files, args.output)
    print(f"{args.output}: {len(args.files)} timelines; open it in https://ui.perfetto.dev")
    return 0
