"""What ``manyhop plan --fanout`` adds: expected sizes of batches, and times by the cost model."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from manyhop import files
from manyhop.costs import (
    MACHINES,
    BatchSizes,
    Cluster,
    Machine,
    Times,
    Workload,
    cpu_batch_s,
    expected_sizes,
    predict,
    read_machine,
    sampled_sizes,
)
from manyhop.errors import CapacityError, InputError, MissingExtraError
from manyhop.files.dtypes import dtype_of_name
from manyhop.placement import GPUMode, GPUPlacement, Hardware, Item
from manyhop.sampling.cugraph.graph import build_bytes_of
from manyhop.system.units import in_units, parse_bytes

_FOR_TIMES = ("machine", "calibration", "network", "batch_size", "seeds", "hidden", "step")
_ALTERNATIVES: tuple[GPUMode, ...] = ("cuda-cuda", "sharded", "distributed", "pinned-cuda")

Decide = Callable[[GPUMode], GPUPlacement]


def check_options(args: argparse.Namespace) -> None:
    """Check the options of graphs that are not here, and of times, against each other.

    Raises:
        InputError: options that do not go together.
    """
    numbers = [name for name in ("num_nodes", "num_edges", "features", "dtype") if getattr(args, name) is not None]
    if args.files and numbers:
        raise InputError(f"Expected files, or {_option(numbers[0])}, got both. Leave one out.")
    if not args.files and not (args.num_nodes and args.num_edges):
        raise InputError("Expected files to plan for, or --num-nodes and --num-edges of at least 1, got neither.")
    if args.dtype is not None and not args.features:
        raise InputError("Expected --features with --dtype: how many numbers has each node?")
    if args.fanout is None:
        for name in _FOR_TIMES:
            if getattr(args, name) is not None:
                raise InputError(f"Expected --fanout with {_option(name)}: how many neighbours are sampled per hop?")
    elif (args.machine is None) == (args.calibration is None):
        raise InputError("Expected either --machine or --calibration with --fanout: whose constants are used?")
    elif args.gpus is None:
        for name in ("machine", "network", "hidden", "step"):
            if getattr(args, name) is not None:
                raise InputError(f"Expected --gpus with {_option(name)}: without, only loading on CPUs is predicted.")
    if args.step is not None and args.hidden is not None:
        raise InputError("Expected --step or --hidden, got both: --step replaces the GraphSAGE. Leave one out.")


def items_of(args: argparse.Namespace) -> tuple[Item, list[Item], dict[str, str]]:
    """Return topology, features, and shapes to print, of the graph that options describe."""
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
    x = Item(name="x", nbytes=nodes * args.features * _itemsize(args), can_map=False)
    return topology, [x], {"x": f"[{nodes}, {args.features}] {args.dtype or 'float32'}"}


def machine_of(args: argparse.Namespace) -> Machine:
    """Return the constants that options name."""
    machine = MACHINES[args.machine] if args.calibration is None else read_machine(args.calibration)
    return machine if args.network is None else replace(machine, network=float(parse_bytes(args.network)))


def cpu_lines(args: argparse.Namespace) -> list[str]:
    """Return the expected time of batches that CPUs make."""
    workload, cpu = _workload(args), machine_of(args).cpu_costs()
    ranks = 1 if args.ranks is None else args.ranks
    seconds = cpu_batch_s(workload.sizes, workload.row_bytes, cpu)
    steps = math.ceil(workload.num_seeds / (workload.batch_size * ranks))
    return [
        "",
        *_sizes(workload),
        f"Loading, one thread per rank: {1e3 * seconds:.3g} ms per batch; {_count(steps, 'batch')} per rank and epoch, "
        f"{_duration(steps * seconds)}.",
        "Assumed: rows are in the memory of the node, and each thread has a core.",
    ]


def gpu_lines(args: argparse.Namespace, placement: GPUPlacement, hardware: Hardware, decide: Decide) -> list[str]:
    """Return expected times with a placement, and with the others that fit."""
    workload, machine = _workload(args), machine_of(args)
    cluster = _cluster(placement, hardware)
    if cluster.topology == "distributed" and machine.cugraph is None:
        return [
            "",
            *_sizes(workload),
            "Engine: cuGraph, which all ranks call together (engine='cugraph'); topology: distributed.",
            f"No times: {machine.name!r} has no constants of cuGraph. Run `manyhop bench machine --output "
            "machine.json` where RAPIDS is installed, and pass --calibration machine.json.",
        ]
    times = predict(workload, cluster, machine)
    engines = {"host": "the CPU's kernels (numba)", "distributed": "cuGraph, which all ranks call together"}
    engine = engines.get(cluster.topology, "the GPU's kernels (triton)")
    world = _count(hardware.world_size, "GPU")
    layers = len(args.fanout)
    model = f"{args.step:g} ms alone" if workload.step_s else f"GraphSAGE of {layers} x {workload.hidden} channels"
    lines = [
        "",
        *_sizes(workload),
        f"Engine: {engine}; topology: {cluster.topology}.",
        "",
        f"Expected with the constants of {machine.name!r}, ms:",
        *_resources(times),
        "",
        f"Loader: {1e3 * times.loader_s:.3g} ms per batch and GPU. Step ({model}), loading included: "
        f"{1e3 * times.step_s:.3g} ms, bound by {times.bound}.",
        f"Epoch: {workload.num_seeds:,} seeds in {_count(times.steps, 'step')} on {world}: {_duration(times.epoch_s)}.",
        *_captured(workload, cluster, machine),
    ]
    for mode in _ALTERNATIVES:
        try:
            other = _cluster(decide(mode), hardware)
        except (CapacityError, InputError, MissingExtraError):
            continue  # does not fit, or is none here
        if other != cluster and (other.topology != "distributed" or machine.cugraph is not None):
            lines.append(f"With --placement {mode}: {_duration(predict(workload, other, machine).epoch_s)}.")
    if machine.cugraph is not None and _has_room_for_cugraph(placement, hardware):
        spread = replace(cluster, topology="distributed")
        least = "at least " if hardware.world_size > machine.cugraph.gpus else ""  # calls take longer on more GPUs
        lines.append(f"With engine='cugraph': {least}{_duration(predict(workload, spread, machine).epoch_s)}.")
    return [*lines, *_assumptions(workload, cluster, machine)]


def _has_room_for_cugraph(placement: GPUPlacement, hardware: Hardware) -> bool:
    """Return whether the GPUs could also build a topology in cuGraph that is elsewhere, in the place of hot rows."""
    topology = placement.topology
    if topology.place == "distributed" or hardware.world_size == 1 or topology.item.distributed_bytes is None:
        return False
    room = placement.gpu_usable - placement.gpu_bytes + sum(choice.cache_bytes for choice in placement.features)
    return topology.item.distributed_bytes <= room * hardware.world_size


def no_engine(topology: Item, decide_alone: Callable[[], object], error: CapacityError) -> CapacityError:
    """Return the error to raise where not all fits: it states whether the topology alone would."""
    try:
        decide_alone()
    except CapacityError:
        return CapacityError(
            f"No engine holds this topology ({in_units(topology.nbytes)}): the GPUs of a node together, or its memory, "
            f"have to, or all GPUs while cuGraph builds it ({in_units(topology.distributed_bytes or 0)}). {error}"
        )
    return error


def _workload(args: argparse.Namespace) -> Workload:
    batch_size = 1024 if args.batch_size is None else args.batch_size
    if args.files:
        if len(args.files) > 1 or not Path(args.files[0]).is_dir():
            raise InputError("Expected one folder of a graph with --fanout, or --num-nodes and --num-edges.")
        graph = files.open_graph(args.files[0])
        sizes = sampled_sizes(graph.build(), args.fanout, batch_size)
        all_nodes = sum(nodes.count for nodes in graph.nodes.values())
        num_nodes = graph.nodes[next(dst for _, _, dst in graph.edges)].count  # of the type of the seeds
        tensors = [rows for nodes in graph.nodes.values() for rows in nodes.tensors.values()]
        widest = max(tensors, key=lambda rows: rows.nbytes, default=None)
        width = math.prod(widest.shape[1:]) if widest is not None else 0
        half = widest is not None and widest.dtype.itemsize < 4
        row_bytes = round(sum(rows.nbytes for rows in tensors) / max(all_nodes, 1))
    else:
        num_nodes, width = args.num_nodes, args.features or 0
        sizes = expected_sizes(num_nodes, args.num_edges, args.fanout, batch_size)
        row_bytes = width * _itemsize(args)
        half = _itemsize(args) < 4
    return Workload(
        sizes=sizes,
        batch_size=batch_size,
        num_seeds=num_nodes if args.seeds is None else args.seeds,
        row_bytes=row_bytes,
        features=width,
        hidden=256 if args.hidden is None else args.hidden,
        half=half,
        step_s=None if args.step is None else args.step / 1e3,
    )


def _itemsize(args: argparse.Namespace) -> int:
    """Return the bytes of a number of the features that options describe."""
    return dtype_of_name(args.dtype or "float32", "--dtype").itemsize


def _cluster(placement: GPUPlacement, hardware: Hardware) -> Cluster:
    """Return where a placement has topology and features; the largest feature stands for all."""
    largest = max(placement.features, key=lambda choice: choice.item.nbytes, default=None)
    return Cluster(
        num_nodes=hardware.num_nodes,
        gpus_per_node=hardware.gpus_per_node,
        topology=placement.topology.place,
        features="device" if largest is None else largest.place,
        cache=largest.cache_bytes / largest.item.nbytes if largest is not None and largest.item.nbytes else 0.0,
    )


def _sizes(workload: Workload) -> list[str]:
    sizes: BatchSizes = workload.sizes
    return [
        f"Batches: {list(sizes.fanouts)} around {workload.batch_size:,} seeds give {sizes.num_nodes:,.0f} nodes, "
        f"{sizes.num_edges:,.0f} edges and {in_units(sizes.num_nodes * workload.row_bytes)} of features; "
        f"{sizes.source}."
    ]


def _resources(times: Times) -> list[str]:
    """Return a table of what is used: resources that do nothing are left out."""
    used = [name for name, seconds in times.training.items() if seconds > 0]
    rows = [("", *used)]
    for label, amounts in (("loading", times.loading), ("step, loading included", times.training)):
        rows.append((label, *(f"{1e3 * amounts[name]:.3f}" for name in used)))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            [f"{row[0]:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _captured(workload: Workload, cluster: Cluster, machine: Machine) -> list[str]:
    """Return what a captured step of the GraphSAGE takes."""
    if workload.step_s is not None:
        return []
    times = predict(replace(workload, captured=True), cluster, machine)
    return [
        f"With captured and trimmed steps: {_duration(times.epoch_s)} ({1e3 * times.step_s:.3g} ms each, bound by "
        f"{times.bound})."
    ]


def _assumptions(workload: Workload, cluster: Cluster, machine: Machine) -> list[str]:
    """Return what the figures rest on, beside the constants."""
    lines = ["", "Assumed:"]
    lines.append("- resources work at the same time, so the busiest one decides; ranks are equally fast")
    start_s = predict(workload, cluster, machine).start_s
    lines.append(f"- an epoch begins with {1e3 * start_s:.3g} ms until its first batch")
    if cluster.cache:
        rate = workload.sizes.hit_rate(cluster.cache)
        without = predict(workload, replace(cluster, cache=0.0), machine)
        lines.append(
            f"- hot rows, {cluster.cache:.1%} of all, serve {rate:.0%} of the requests, which depends on degrees; "
            f"without them an epoch takes {_duration(without.epoch_s)}"
        )
    if "host" in (cluster.topology, cluster.features):
        lines.append("- one thread of each rank works for its GPU; what stays in files is in the system's cache")
    if cluster.topology == "distributed":
        where = "1 GPU" if (gpus := machine.cugraph_costs().gpus) == 1 else f"{gpus} GPUs of one node"
        lines.append(
            f"- a call of cuGraph, of 128 batches, takes as long as on {where}, where it was measured; on more GPUs, "
            "and over a network, it takes longer: not modelled"
        )
    if cluster.num_nodes > 1:
        lines.append(
            f"- the network moves {machine.network / 1e9:.3g} GB/s per rank, and {1e6 * machine.message_s:.2g} us pass "
            "per message: not measured"
        )
    if workload.step_s is None:
        kind = "bfloat16 (autocast)" if workload.half else "float32"
        lines.append(f"- the model is PyG's GraphSAGE in {kind}, eager, with Adam; --step sets the time of another one")
    return lines


def _duration(seconds: float) -> str:
    """``75`` -> ``"75.0 s"``; from two minutes on in minutes."""
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 'es' if what.endswith('ch') else 's'}"
