"""Constants of machines: what a byte, an access, a launch and a line of Python take."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhop.errors import InputError
from manyhop.files.json_files import read_json

_FORMAT, _VERSION = "manyhop machine", 1


@dataclass(frozen=True, kw_only=True)
class CPUCosts:
    """What a thread of a CPU takes to make batches."""

    batch_s: float
    """Seconds of a batch that grow with nothing: Python, and hand-over."""
    edge_s: float
    """Seconds per sampled edge."""
    copy: float
    """Bytes of gathered rows per second."""


@dataclass(frozen=True, kw_only=True)
class GPUCosts:
    """What a GPU, its links and its part of the host take."""

    memory: int
    """Bytes of memory, of which a process finds nearly all free."""
    copy: float
    """Bytes copied per second inside of the memory; each is read and written."""
    reads: float
    """Random reads of 8 bytes per second in a large table."""
    pcie: float
    """Bytes per second from pinned host memory."""
    peer: float
    """Bytes per second that each GPU reads from the others of its node, all at once."""
    products: float
    """Floating-point operations per second of a float32 matrix product."""
    half_products: float
    """The same for bfloat16."""
    launch_s: float
    """GPU seconds of a launch of the sampler that grow with neither hops nor edges."""
    hop_s: float
    """GPU seconds of a hop of a launch that do not grow with edges."""
    peer_hop_s: float
    """The same, added where the topology is sharded over GPUs."""
    edge_reads: float
    """Random reads that a sampled edge is worth."""
    layer_s: float
    """GPU seconds of the small kernels of a layer, forward, backward and optimizer."""
    captured_layer_s: float
    """The same, where the step is captured."""
    captured_ddp_s: float
    """GPU seconds of a captured step under DDP that grow with neither gradients nor ranks: gradients are copied to one
    piece of memory, summed between two graphs, and copied back."""
    epoch_s: float
    """Host seconds until an epoch has its first batch."""
    batch_s: float
    """Host seconds of a loader per further batch."""
    padded_batch_s: float
    """The same, added where batches are padded."""
    spread_batch_s: float
    """The same, added where rows are gathered from several GPUs."""
    step_layer_s: float
    """Host seconds per layer of an eager training step."""
    autocast_layer_s: float
    """The same, added under autocast."""
    ddp_s: float
    """Host seconds of DDP per step."""
    exchange_s: float
    """Host seconds of an exchange of rows between ranks that do not grow with rows."""
    shared_host: float
    """How much longer the host's work takes where several ranks share it; at least 1."""


@dataclass(frozen=True, kw_only=True)
class CuGraphCosts:
    """What batches take that cuGraph samples, as its loader calls it: up to 128 batches at once."""

    gpus: int
    """GPUs of one node over which the topology was spread when that was measured."""
    batch_s: float
    """Host seconds per batch that do not grow with edges, beside those of any loader: its part of a call."""
    edge_s: float
    """Host seconds per sampled edge: the host waits for each call."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Constants of a node, and of the network between nodes.

    Raises:
        InputError: a constant that is not a positive number.
    """

    name: str
    cpu: CPUCosts | None = None
    """``None``: not measured."""
    gpu: GPUCosts | None = None
    """``None``: no GPU."""
    cugraph: CuGraphCosts | None = None
    """``None``: not measured."""
    network: float = 40e9
    """Bytes per second that each rank sends, and receives at the same time, over the network."""
    message_s: float = 2e-6
    """Seconds per message: a rank sends one to each other rank in an exchange, and two per doubling of the ranks in an
    all-reduce."""

    def __post_init__(self) -> None:
        numbers = {"network": self.network, "message_s": self.message_s}
        for part in (self.cpu, self.gpu, self.cugraph):
            numbers |= {} if part is None else dataclasses.asdict(part)
        for name, value in numbers.items():
            if not (math.isfinite(value) and value >= 0) or (value == 0 and not name.endswith("_s")):
                raise InputError(f"Expected a positive number for the constant {name!r} of a machine, got {value}.")

    def gpu_costs(self) -> GPUCosts:
        """Return the constants of the GPU.

        Raises:
            InputError: there are none.
        """
        if self.gpu is None:
            raise InputError(
                f"Expected constants of a GPU, got {self.name!r} without. Pass --machine, or a --calibration of a "
                "machine with GPUs (`manyhop bench machine`)."
            )
        return self.gpu

    def cugraph_costs(self) -> CuGraphCosts:
        """Return the constants of cuGraph.

        Raises:
            InputError: there are none.
        """
        if self.cugraph is None:
            raise InputError(
                f"Expected constants of cuGraph, which samples the batches here, got {self.name!r} without. Run "
                "`manyhop bench machine --output machine.json` where RAPIDS is installed, on as many GPUs as a node "
                "has, and pass --calibration machine.json."
            )
        return self.cugraph

    def cpu_costs(self) -> CPUCosts:
        """Return the constants of the CPU.

        Raises:
            InputError: there are none.
        """
        if self.cpu is None:
            raise InputError(
                f"Expected constants of a CPU, which makes the batches here, got {self.name!r} without. Pass a "
                "--calibration that `manyhop bench machine` wrote there."
            )
        return self.cpu


# Measured: two H100, docs/benchmarks-gpu.md, "Graphs over all GPUs (cuGraph)". The host waits for calls: an H200 is
# taken to be as fast.
_CUGRAPH = CuGraphCosts(gpus=2, batch_s=0.078e-3, edge_s=10.5e-9)

# Measured: docs/benchmarks/gpu.json by `manyhop bench machine --saved`, but for
# - products: docs/benchmarks-gpu.md, "Training steps" (45,000 x 256 by 256 x 256 in 0.145 ms);
# - captured_layer_s: the same, papers100M's size on one H100, captured and trimmed: 0.62 ms for the GPU;
# - captured_ddp_s: docs/benchmarks/gpu-four.json, 256 channels in float32; of 512 channels 58 us, at papers100M's size
#   48 us on four H200 and 54 us on two;
# - autocast_layer_s: papers100M's size on one H200 beside float32, 2026-11-21. That of docs/benchmarks/gpu-four.json
#   is 0.42 ms, by a host that takes 1.3 times as long for a layer.
# Assumed: half_products, 40 % of the 989 TFLOP/s of NVIDIA's H200 data sheet; network, 80 % of one adapter of 400 Gb/s
# per GPU (DGX H100/H200 user guide); message_s, a guess.
H200 = Machine(
    name="H200",
    gpu=GPUCosts(
        memory=141_000_000_000,
        copy=2.128e12,
        reads=36.73e9,
        pcie=54.7e9,
        peer=331.8e9,
        products=40.7e12,
        half_products=400e12,
        launch_s=10.96e-6,
        hop_s=13.03e-6,
        peer_hop_s=2.63e-6,
        edge_reads=4.494,
        layer_s=0.1936e-3,
        captured_layer_s=0.152e-3,
        captured_ddp_s=58.41e-6,
        epoch_s=1.539e-3,
        batch_s=66.12e-6,
        padded_batch_s=50.57e-6,
        spread_batch_s=0.0,
        step_layer_s=0.8855e-3,
        autocast_layer_s=0.26e-3,
        ddp_s=0.1655e-3,
        exchange_s=0.1821e-3,
        shared_host=1.3596,
    ),
    cugraph=_CUGRAPH,
)
assert H200.gpu is not None

# Measured: docs/benchmarks/gpu-h100.json, of later code; and products, by `manyhop bench machine` in the same run. What
# is not in that record is as above.
H100 = Machine(
    name="H100",
    cugraph=_CUGRAPH,
    gpu=dataclasses.replace(
        H200.gpu,
        memory=80_000_000_000,
        copy=1.442e12,
        reads=30.6e9,
        pcie=50.15e9,
        peer=326.2e9,
        products=39.07e12,
        half_products=273.1e12,
        layer_s=0.08803e-3,
        epoch_s=1.839e-3,
        batch_s=36.0e-6,
        padded_batch_s=17.38e-6,
        spread_batch_s=13.13e-6,
        step_layer_s=0.8962e-3,
        shared_host=1.496,
    ),
)

MACHINES: Mapping[str, Machine] = {machine.name: machine for machine in (H100, H200)}
"""Machines whose constants are known."""


def write_machine(machine: Machine, path: Path) -> None:
    """Write constants to a JSON file."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(machine)}, indent=1)
    path.write_text(text + "\n")


def read_machine(path: Path) -> Machine:
    """Return the constants that :func:`write_machine` wrote.

    Raises:
        InputError: another file, unknown or missing constants, or values that are no numbers.
        FileNotFoundError: no such file.
    """
    found = read_json(path)
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (_FORMAT, _VERSION):
        raise InputError(f"{path}: expected constants of a machine, as `manyhop bench machine` writes them.")
    values = {name: value for name, value in found.items() if name not in ("format", "version")}
    for name, kind in (("cpu", CPUCosts), ("gpu", GPUCosts), ("cugraph", CuGraphCosts)):
        if values.get(name) is not None:
            values[name] = _filled(kind, values[name], path)
    return _filled(Machine, values, path)  # type: ignore[no-any-return]


def _filled(kind: type[Any], values: Any, path: Path) -> Any:
    """Return a dataclass of numbers (and parts) from a JSON object that has all its fields."""
    expected = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(values, dict) or set(values) != expected:
        got = sorted(values) if isinstance(values, dict) else type(values).__name__
        raise InputError(f"{path}: expected {sorted(expected)} of {kind.__name__}, got {got}. Measure again.")
    for name, value in values.items():
        if name == "name" and not isinstance(value, str):
            raise InputError(f"{path}: expected a text for 'name', got {value!r}.")
        if name not in ("name", "cpu", "gpu", "cugraph") and type(value) not in (int, float):
            raise InputError(f"{path}: expected a number for {name!r}, got {value!r}.")
    return kind(**values)
