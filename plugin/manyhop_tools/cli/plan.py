"""``manyhop plan``: reports from headers alone where everything will be."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from manyhop import files
from manyhop.errors import CapacityError, InputError
from manyhop.files.dtypes import dtype_of_name
from manyhop.memory.placement import Hardware, Item, Placement, decide, decide_gpu
from manyhop.ranks import cuda
from manyhop.system.memory import available_memory
from manyhop.system.units import counted, in_units, parse_bytes
from manyhop_cugraph.graph import build_bytes_of
from manyhop_tools.cli.table import table


def report(args: argparse.Namespace) -> str:
    """Return the report for the arguments of ``manyhop plan``.

    Raises:
        InputError: contradictory arguments, or a file that cannot be read.
        CapacityError: not all fits.
    """
    _check_graph(args)
    memory = available_memory() if args.memory is None else parse_bytes(args.memory)
    if memory is None:
        raise InputError("Expected --memory, as this system does not report its free memory.")
    try:
        return _cpu_report(args, memory) if args.gpus is None else _gpu_report(args, memory)
    except CapacityError as error:
        raise CapacityError(f"Does not fit. {error}") from None


def _cpu_report(args: argparse.Namespace, memory: int) -> str:
    for option in ("gpu_memory", "no_peers", "placement"):
        if getattr(args, option):
            raise InputError(f"Expected --gpus with --{option.replace('_', '-')}. Pass the GPUs of each node.")
    ranks = 1 if args.ranks is None else args.ranks
    if ranks < args.nodes:
        raise InputError(f"Expected at least one rank per node, got {args.nodes} nodes, {ranks} ranks.")
    ranks_per_node = -(-ranks // args.nodes)
    topology, features, shapes = _items(args)
    placement = decide(
        topology, features, memory=memory, ranks_per_node=ranks_per_node, num_nodes=args.nodes,
        can_shard=not args.no_shards,
    )  # fmt: skip
    head = (
        f"Fits: {in_units(placement.host_bytes)} of {in_units(placement.host_usable)} usable per node "
        f"({counted(args.nodes, 'node')}, {counted(ranks_per_node, 'rank')} each, {in_units(memory)} free)."
    )
    here = cuda.gpus()
    hint = ["", f"For loaders on the {counted(len(here), 'GPU')} of this machine: --gpus {len(here)}"] if here else []
    return "\n".join([head, "", *_table(placement, shapes), *hint])


def _gpu_report(args: argparse.Namespace, memory: int) -> str:
    if args.ranks not in (None, args.gpus * args.nodes):
        raise InputError(
            f"Expected a rank for each of {args.gpus * args.nodes} GPUs, got --ranks {args.ranks}. Leave it out."
        )
    free = _gpu_memory(args)
    hardware = Hardware(
        gpu_memory=free,
        host_memory=memory,
        gpus_per_node=args.gpus,
        num_nodes=args.nodes,
        peer_access=not args.no_peers,
        wholegraph=True,
        cugraph=True,
        together=not args.no_shards,
    )
    topology, features, shapes = _items(args)
    features = [replace(item, can_shard=True) for item in features]  # GPUs can also hold parts of vectors
    try:
        placement = decide_gpu(topology, features, hardware, mode=args.placement or "auto")
    except CapacityError as error:
        raise _no_engine(topology, hardware, error) from None
    head = (
        f"Fits: {in_units(placement.gpu_bytes)} of {in_units(placement.gpu_usable)} usable per GPU, "
        f"{in_units(placement.host_bytes)} of {in_units(placement.host_usable)} per node "
        f"({counted(args.nodes, 'node')}, {counted(args.gpus, 'GPU')} each, {in_units(free)} free per GPU)."
    )
    return "\n".join([head, "", *_table(placement, shapes)])


def _check_graph(args: argparse.Namespace) -> None:
    numbers = [name for name in ("num_nodes", "num_edges", "features", "dtype") if getattr(args, name) is not None]
    if args.files and numbers:
        raise InputError(f"Expected files, or --{numbers[0].replace('_', '-')}, got both. Leave one out.")
    if not args.files and not (args.num_nodes and args.num_edges):
        raise InputError(
            "Expected files to plan for, or --num-nodes and --num-edges of at least 1, got neither. "
            "For example: manyhop plan --num-nodes 1e6 --num-edges 2e7 --features 128"
        )
    if args.dtype is not None and not args.features:
        raise InputError("Expected --features with --dtype. Pass the number of features per node.")


def _no_engine(topology: Item, hardware: Hardware, error: CapacityError) -> CapacityError:
    """Return the error to raise where not all fits: it states whether the topology alone would."""
    try:
        decide_gpu(topology, [], hardware)
    except CapacityError:
        return CapacityError(
            f"No engine holds this topology ({in_units(topology.nbytes)}): the GPUs of a node together, or its memory, "
            f"have to, or all GPUs while cuGraph builds it ({in_units(topology.distributed_bytes or 0)}). {error}"
        )
    return error


def _gpu_memory(args: argparse.Namespace) -> int:
    """Return the free bytes of each GPU: as passed, or of this machine."""
    if args.gpu_memory is not None:
        return parse_bytes(args.gpu_memory)
    here = cuda.gpus()
    if len(here) < args.gpus:
        raise InputError(f"Expected --gpu-memory for {args.gpus} GPUs, as this machine has {len(here)}.")
    return min(gpu.free for gpu in here[: args.gpus])


def _items(args: argparse.Namespace) -> tuple[Item, list[Item], dict[str, str]]:
    """Return topology, features, and shapes to print, of files or of the graph that options describe."""
    if args.files:
        return _read_items(args.files)
    nodes, edges = args.num_nodes, args.num_edges
    pointers = 8 * (nodes + 1)
    ids = (4 if nodes <= 2**31 else 8) * edges
    topology = Item(
        name="topology",
        nbytes=pointers + ids,
        can_map=False,
        pointer_bytes=pointers,
        distributed_bytes=build_bytes_of(nodes, edges),
    )
    if not args.features:
        return topology, [], {}
    dtype = args.dtype or "float32"
    x = Item(name="x", nbytes=nodes * args.features * dtype_of_name(dtype, "--dtype").itemsize, can_map=False)
    return topology, [x], {"x": f"[{nodes}, {args.features}] {dtype}"}


def _read_items(paths: Sequence[str]) -> tuple[Item, list[Item], dict[str, str]]:
    """Read the headers of folders of graphs and files of tensors."""
    tables: list[files.StoredGraph] = []
    features, shapes = [], {}
    for text in paths:
        path = Path(text)
        prefix = f"{path.name}/" if len(paths) > 1 else ""
        if path.is_dir():
            graph = files.open_graph(path)
            tables.append(graph)
            spread = graph.shardable()
            found = [(prefix + name, rows, name in spread) for name, rows in graph.features()]
        else:
            opened = [(label, files.open(path, name=name)) for label, name in _labels(path, prefix)]
            found = [(label, rows, len(rows.shape) > 1) for label, rows in opened]
        for label, rows, can_shard in found:
            features.append(Item(name=label, nbytes=rows.nbytes, can_map=rows.can_map, can_shard=can_shard))
            shapes[label] = f"{list(rows.shape)} {str(rows.dtype).removeprefix('torch.')}"
    topology = Item(
        name="topology",
        nbytes=sum(graph.topology_bytes for graph in tables),
        can_map=all(graph.is_compressed for graph in tables),
        pointer_bytes=sum(graph.pointer_bytes for graph in tables),
        distributed_bytes=sum(_bytes_in_cugraph(graph) for graph in tables),
    )
    return topology, features, shapes


def _bytes_in_cugraph(graph: files.StoredGraph) -> int:
    num_nodes = sum(nodes.count for nodes in graph.nodes.values())
    num_edges = sum(edges.count for edges in graph.edges.values())
    return build_bytes_of(num_nodes, num_edges, extras=4 * (len(graph.edges) > 1))


def _labels(path: Path, prefix: str) -> list[tuple[str, str | None]]:
    names = files.names(path)
    return [(str(path), None)] if names is None else [(prefix + name, name) for name in names]


def _table(placement: Placement, shapes: dict[str, str]) -> Iterator[str]:
    choices = (placement.topology, *placement.features)
    sizes = [in_units(choice.item.nbytes) for choice in choices]
    width = max(map(len, sizes))
    rows = [("", "shape", "size".rjust(width), "placement", "reason")]
    for size, choice in zip(sizes, choices, strict=True):
        name = choice.item.name
        rows.append((name, shapes.get(name, ""), size.rjust(width), choice.place, choice.reason))
    return table(rows)
