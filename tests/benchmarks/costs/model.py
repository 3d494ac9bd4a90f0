"""What batches, steps and epochs take on a machine: sums and maxima of bytes, accesses and launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.costs.machine import CPUCosts, GPUCosts, Machine
from benchmarks.costs.sizes import BatchSizes
from manyhop.arguments import at_least_one
from manyhop.errors import InputError
from manyhop.loading.pipeline.block_sizes import MARGIN
from manyhop.memory.placement import GPUPlace

MERGED = 16
"""Batches that a loader samples in one launch."""

_GATHER = 0.93  # of a copy: docs/benchmarks-gpu.md, rows of 256 bytes and more
_LINE = 64  # bytes that cross PCIe for a random read of the topology
_FORWARD, _BACKWARD = 5.5, 8.5  # copies of a row per edge: PyG's gather and index_add, docs/benchmarks-gpu.md
_POINTWISE = 4.5  # copies of the output of a layer: sums, bias, activation, and their gradients


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What an epoch has to do."""

    sizes: BatchSizes
    """Of an average batch."""
    batch_size: int
    """Seeds of a batch of each rank."""
    num_seeds: int
    """Seeds of an epoch, of all ranks together."""
    row_bytes: int
    """Bytes of features per node."""
    features: int = 0
    """Numbers of features per node, which the first layer takes."""
    hidden: int = 256
    """Channels between the layers of a GraphSAGE that has as many layers as there are hops."""
    classes: int = 172
    """Its outputs."""
    half: bool = False
    """Whether it computes in bfloat16, under autocast."""
    captured: bool = False
    """Whether its step is a CUDA graph on padded batches, and each layer computes only rows that the next ones need:
    ``capture`` and ``accelerate(trim=True)``."""
    step_s: float | None = None
    """Seconds of the user's own training step without loading, on one GPU; replaces that of the GraphSAGE."""

    def __post_init__(self) -> None:
        at_least_one(batch_size=self.batch_size, num_seeds=self.num_seeds, hidden=self.hidden)
        if self.step_s is not None and not 0 < self.step_s < math.inf:
            raise InputError(f"Expected a step of more than 0 seconds, got {self.step_s}.")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Ranks, and where they read from."""

    num_nodes: int = 1
    gpus_per_node: int = 1
    topology: GPUPlace = "device"
    features: GPUPlace = "device"
    cache: float = 0.0
    """Share of the feature rows that each GPU has as hot rows."""
    threads: int = 1
    """Threads of each rank that make batches where the CPU does."""

    def __post_init__(self) -> None:
        at_least_one(num_nodes=self.num_nodes, gpus_per_node=self.gpus_per_node, threads=self.threads)
        if not 0 <= self.cache <= 1:
            raise InputError(f"Expected cache to be a share of the rows, from 0 to 1, got {self.cache}.")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a training step takes without loading, in seconds."""

    gpu: float
    host: float
    gradient_bytes: float = 0.0
    """Bytes that DDP sums over the ranks."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Predicted seconds of each rank; all resources of a batch or step overlap, so the largest decides."""

    loading: Mapping[str, float]
    """Resource (``host``, ``gpu``, ``nvlink``, ``pcie``, ``network``, ``cpu``) -> seconds per batch. ``gpu`` is the
    loader's stream, which waits for what it reads over NVLink and PCIe."""
    training: Mapping[str, float]
    """Resource -> seconds per step, loading included; the GPU's with the sum of gradients."""
    all_reduce_s: float
    """Seconds per step in which gradients are summed, after the last of them is there."""
    start_s: float
    """Seconds until an epoch has its first batch."""
    steps: int
    """Steps of an epoch."""

    @property
    def loader_s(self) -> float:
        """Seconds per batch where nothing is done with batches, after the first one."""
        return max(self.loading.values())

    @property
    def loader_epoch_s(self) -> float:
        """Seconds of an epoch where nothing is done with batches."""
        return self.start_s + (self.steps - 1) * self.loader_s

    @property
    def step_s(self) -> float:
        """Seconds per step with loading."""
        return max(self.training.values())

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch."""
        return self.start_s + self.steps * self.step_s

    @property
    def bound(self) -> str:
        """The resource that decides how long a step takes."""
        return max(self.training, key=lambda resource: self.training[resource])


def predict(workload: Workload, cluster: Cluster, machine: Machine) -> Times:
    """Return what loading and training take.

    Raises:
        InputError: the machine lacks constants of what makes the batches.
    """
    gpu = machine.gpu_costs()
    loading = _loading(workload, cluster, machine, gpu)
    step = _step(workload, gpu)
    shared = gpu.shared_host if cluster.gpus_per_node > 1 else 1.0
    ddp = gpu.ddp_s if cluster.world_size > 1 else 0.0
    training = dict(loading)
    all_reduce_s = _all_reduce(step.gradient_bytes, cluster, machine, gpu)
    if workload.captured and cluster.world_size > 1:
        all_reduce_s += gpu.captured_ddp_s
    training["gpu"] = _gpu_only(workload, cluster, gpu) + step.gpu + all_reduce_s
    training["host"] = loading["host"] + (step.host + ddp) * shared
    return Times(
        loading=loading,
        training=training,
        all_reduce_s=all_reduce_s,
        start_s=gpu.epoch_s * shared,
        steps=-(-workload.num_seeds // (workload.batch_size * cluster.world_size)),
    )


def cpu_batch_s(sizes: BatchSizes, row_bytes: int, cpu: CPUCosts) -> float:
    """Return the seconds that one thread of a CPU takes to sample and gather a batch."""
    return cpu.batch_s + sizes.num_edges * cpu.edge_s + sizes.num_nodes * row_bytes / cpu.copy


def graph_sage(workload: Workload, gpu: GPUCosts) -> Step:
    """Return what PyG's GraphSAGE takes, trimmed to the nodes and edges that each layer needs, with Adam.

    A layer multiplies the rows of its nodes and their means by two weights, forward, and twice that backward (of the
    first layer once: nobody needs the gradient of features). Products run at a fixed rate; gathers, ``index_add`` and
    pointwise kernels move copies of rows. A captured step computes no rows that no later layer needs, and aggregates by
    segments, which read a row per edge and write one per node; a batch is copied to where the graph reads it.
    """
    sizes, layers = workload.sizes, len(workload.sizes.fanouts)
    rate, width = (gpu.half_products, 2) if workload.half else (gpu.products, 4)
    padded = 1 + MARGIN if workload.captured else 1.0
    seconds, weights = layers * (gpu.captured_layer_s if workload.captured else gpu.layer_s), 0.0
    for layer in range(layers):
        first, last = layer == 0, layer == layers - 1
        c_in = workload.features if first else workload.hidden
        c_out = workload.classes if last else workload.hidden
        edges, sources = padded * sum(sizes.edges[: layers - layer]), padded * sum(sizes.nodes[: layers + 1 - layer])
        if workload.captured:
            nodes = padded * sum(sizes.nodes[: layers - layer])
            forward, backward = (edges + nodes) / 2, (edges + sources) / 2 + 2 * sources + nodes
        else:
            nodes, forward, backward = sources, edges * _FORWARD, edges * _BACKWARD
        product = 4 * nodes * c_in * c_out
        moved = width * (c_in * (forward if first else forward + backward) + nodes * c_out * _POINTWISE)
        seconds += (2 if first else 3) * product / rate + moved / gpu.copy
        weights += 2 * c_in * c_out
    if workload.captured:
        seconds += padded * sizes.num_nodes * workload.row_bytes / gpu.copy
        return Step(gpu=seconds, host=0.0, gradient_bytes=4 * weights)
    host = layers * (gpu.step_layer_s + (gpu.autocast_layer_s if workload.half else 0))
    return Step(gpu=seconds, host=host, gradient_bytes=4 * weights)


def _step(workload: Workload, gpu: GPUCosts) -> Step:
    if workload.step_s is not None:
        return Step(gpu=workload.step_s, host=0.0)
    return graph_sage(workload, gpu)


def _loading(workload: Workload, cluster: Cluster, machine: Machine, gpu: GPUCosts) -> dict[str, float]:
    """Return what each resource does for a batch."""
    sizes, place = workload.sizes, cluster.features
    rows = sizes.num_nodes * workload.row_bytes
    missed = rows * (1 - sizes.hit_rate(cluster.cache))
    world, local = cluster.world_size, cluster.gpus_per_node
    used = dict.fromkeys(("nvlink", "pcie", "network"), 0.0)
    host = gpu.batch_s + (gpu.padded_batch_s if workload.captured else 0.0)
    if place == "sharded":
        used["nvlink"] = missed * (local - 1) / local / gpu.peer
        host += gpu.spread_batch_s if local > 1 else 0.0
    elif place == "pinned":
        used["pcie"] = missed / gpu.pcie
    elif place == "distributed":
        used["nvlink"] = missed * (local - 1) / world / gpu.peer
        messages = (world - local) * machine.message_s
        used["network"] = missed * (world - local) / world / machine.network + messages
        host += gpu.exchange_s
    elif place == "host":
        used["pcie"] = missed / gpu.pcie
    sampled_over_pcie = sizes.num_edges * _LINE / gpu.pcie if cluster.topology == "pinned" else 0.0
    only = _gpu_only(workload, cluster, gpu)
    gather = _gather(workload, cluster, gpu)
    # Samples and gathers of a batch follow each other on a stream; a gather reads from all memories at once. Exchanges
    # over the network are made by a thread of the loader, for another batch.
    stream = only - gather + sampled_over_pcie + max(gather, used["nvlink"], used["pcie"])
    used["pcie"] += sampled_over_pcie
    shared = gpu.shared_host if local > 1 else 1.0
    found = {"host": host * shared, "gpu": stream, **used}
    if cluster.topology == "distributed":
        cugraph = machine.cugraph_costs()
        found["host"] += cugraph.batch_s + sizes.num_edges * cugraph.edge_s
    if cluster.topology == "host" or place == "host":
        cpu = machine.cpu_costs()
        seconds = cpu_batch_s(sizes, workload.row_bytes, cpu)
        if cluster.topology != "host":
            seconds -= sizes.num_edges * cpu.edge_s
        if place == "host":
            seconds -= (rows - missed) / cpu.copy
        found["cpu"] = seconds * shared / cluster.threads
    return found


def _gather(workload: Workload, cluster: Cluster, gpu: GPUCosts) -> float:
    """Return the seconds in which a batch's rows are written, and read where the GPU's own memory has them."""
    rows = workload.sizes.num_nodes
    size = rows * workload.row_bytes
    if cluster.features == "host":
        return 0.0
    packed = size * (1 - workload.sizes.hit_rate(cluster.cache)) if cluster.features == "distributed" else 0.0
    return max(size / (_GATHER * gpu.copy), rows / gpu.reads if size else 0.0) + packed / gpu.copy


def _gpu_only(workload: Workload, cluster: Cluster, gpu: GPUCosts) -> float:
    """Return the seconds for which a batch keeps the GPU itself busy; the host waits for calls of cuGraph."""
    sizes = workload.sizes
    seconds = _gather(workload, cluster, gpu)
    if cluster.topology not in ("host", "distributed"):
        hops = len(sizes.fanouts)
        launch = gpu.launch_s + hops * gpu.hop_s + (hops * gpu.peer_hop_s if cluster.topology == "sharded" else 0)
        seconds += launch / MERGED + sizes.num_edges * gpu.edge_reads / gpu.reads
    return seconds


def _all_reduce(nbytes: float, cluster: Cluster, machine: Machine, gpu: GPUCosts) -> float:
    """Return the seconds of a ring over the slower of NVLink and network, with its messages."""
    world = cluster.world_size
    if world == 1:
        return 0.0
    rate = gpu.peer if cluster.num_nodes == 1 else machine.network
    return 2 * nbytes * (world - 1) / world / rate + 2 * math.ceil(math.log2(world)) * machine.message_s
