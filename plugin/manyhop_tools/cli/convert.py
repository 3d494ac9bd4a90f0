"""``manyhop convert``."""

from __future__ import annotations

import argparse

from manyhop_tools.cli.verbs import Verbs, add_verb

_DESCRIPTION = """\
Writes a graph into a new folder, from which open() takes it, memory-mapped if need be.

SOURCE is one of
  a folder that this command or save() wrote, with --partition
  a Data or HeteroData saved with torch.save (.pt), read without unpickling anything but tensors and PyG's containers
  pyg:NAME, a class of torch_geometric.datasets of one graph, with --dataset-arg for its arguments
  a folder of an OGB data set for nodes or links, with raw/ and split/; of MAG240M, IGB or IGBH, with processed/
  edges: CSV (also .gz) or Parquet files, or an edge_index [2, num_edges] as .npy, .bin or .safetensors; several
  files, and SRC,REL,DST=FILE for the edges of one type of a heterogeneous graph
Files and folders may be at addresses that fsspec can read, such as s3://bucket/edges.csv.

Edges are sorted in pieces: they may be larger than memory, numbers of nodes may not."""


def add_to(verbs: Verbs) -> None:
    """Add the verb and its arguments."""
    parser = add_verb(
        verbs,
        "convert",
        _run,
        help="write a graph into a folder that can be mapped",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE", help="what to convert")
    add("target", metavar="TARGET", help="a folder that does not exist yet, or is empty")
    add(
        "--memory",
        metavar="BYTES",
        help="how much to sort with, such as 2GiB (a quarter of what is free, at most 4GiB)",
    )
    add(
        "--partition",
        metavar="N | [TYPE=]FILE",
        action="append",
        help="number nodes by part, so that ranks, which hold equal slices of the rows, hold neighbours together: N "
        "parts by METIS (as many as ranks or nodes of the run, or a multiple), or a file with the part of each node",
    )
    add("--crc32", action="store_true", help="keep checksums of the files")
    add("--both-ways", action="store_true", help="add each edge in the other direction, too (edges and OGB)")
    pyg = parser.add_argument_group("PyG's data sets")
    pyg.add_argument(
        "--dataset-arg", metavar="NAME=VALUE", action="append", help="an argument of the class, such as root=data"
    )
    ogb = parser.add_argument_group("OGB")
    ogb.add_argument("--split", metavar="NAME", help="which split, where there are several")
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
        help="keep integer ids as they are, or map ids to 0, 1, 2, ...; auto (the default): map texts, and integers "
        "that are negative or far above the number of edges")  # fmt: skip
    add("--num-nodes", metavar="[TYPE=]N", action="append", help="number of nodes, if not 1 + the highest id")
    add("--nodes", metavar="[TYPE=]FILE", action="append",
        help="a CSV or Parquet table of nodes: an id in each row, and numbers that become tensors")  # fmt: skip
    add("--node-id", metavar="COLUMN", help="column of the ids in tables of nodes (the first)")
    add("--node-tensor", metavar="[TYPE.]NAME=FILE", action="append",
        help="a tensor with a row for each node; FILE:NAME is a column, or one of several tensors")  # fmt: skip


def _run(args: argparse.Namespace) -> int:
    from manyhop_tools.cli.convert_files import convert, summary

    print(summary(convert(args)))
    return 0
