"""A discrete simulation of ranks that exchange rows and sum gradients: what the cost model's means leave out.

The model takes every rank to request and to send the same bytes, and every step to take the same time. Here, each batch
has its own requests, ranks wait for the slowest one where they communicate, and times vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.costs.machine import Machine
from benchmarks.costs.model import Cluster, Times, Workload, predict
from manyhop.errors import InputError

Counts = npt.NDArray[np.int64]

_AHEAD = 2  # batches that a loader's thread makes ahead: prefetch_factor
_QUEUED = 8  # steps that the host may be ahead of its GPU


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What a simulation found, in seconds, beside the model's prediction for the same."""

    step_s: float
    """Of a step, all ranks together."""
    exchange_s: float
    """Of an exchange of rows, which ends when the slowest rank has its rows; 0 where nothing is exchanged."""
    received_skew: float
    """Bytes that the busiest rank receives in an exchange, over the mean of all ranks; 1 where nothing is exchanged."""
    sent_skew: float
    """The same for bytes sent: rows that the others request from one rank."""
    predicted: Times


def requests_by_part(
    batches: Iterable[npt.NDArray[np.int64]], num_rows: int, parts: int, *, hot: npt.NDArray[np.bool_] | None = None
) -> Counts:
    """Return how many rows each batch requests of each of some equal ranges of rows: ``[num_batches, parts]``.

    Args:
        batches: ids of each batch, ``[num_nodes] int64``.
        num_rows: rows of the table.
        parts: ranges; part ``p`` begins at row ``num_rows * p // parts``, as ranks hold them.
        hot: ``[num_rows] bool``: rows that every rank has, which are not requested.
    """
    begins = np.arange(1, parts) * num_rows // parts
    found = []
    for ids in batches:
        asked = ids if hot is None else ids[~hot[ids]]
        found.append(np.bincount(np.searchsorted(begins, asked, side="right"), minlength=parts))
    return np.array(found, np.int64).reshape(len(found), parts)


def simulate(
    requests: Counts,
    workload: Workload,
    cluster: Cluster,
    machine: Machine,
    *,
    jitter: float = 0.0,
    slow: Mapping[int, float] | None = None,
    homes: Counts | None = None,
    steps: int = 64,
    seed: int = 0,
) -> Simulated:
    """Simulate steps of all ranks.

    A rank's thread samples up to two batches ahead. Exchanges follow each other in the order of batches, and begin when
    the last rank has sampled. The host launches a step once its rows are there, and is at most eight steps ahead of the
    GPU. A step ends when all ranks have summed gradients.

    Args:
        requests: ``[num_batches, parts]`` of :func:`requests_by_part`; ``parts`` is a multiple of the ranks. Each rank
            takes one of the batches in each step, at random, none twice in a step while there are enough.
        workload: what is trained.
        cluster: the ranks; rows are exchanged where its features are distributed.
        machine: constants.
        jitter: standard deviation of the host's time of a step, and of sampling a batch, over their mean (log-normal).
        slow: rank -> how many times as long its host takes.
        homes: ``[num_batches]``: the rank of each batch, where ranks have seeds of their own; ``None``: any.
        steps: how many; the first quarter does not count.
        seed: of the simulation's random numbers.

    Raises:
        InputError: parts that ranks cannot share, a jitter below 0, ranks that do not exist or have no batch, or fewer
            than 8 steps.
    """
    world = cluster.world_size
    if requests.ndim != 2 or not len(requests) or requests.shape[1] % world:
        raise InputError(f"Expected requests of a multiple of {world} parts, got an array of {list(requests.shape)}.")
    if jitter < 0 or steps < 8:
        raise InputError(f"Expected a jitter of at least 0 and at least 8 steps, got {jitter} and {steps}.")
    if any(not 0 <= rank < world for rank in slow or {}):
        raise InputError(f"Expected slow ranks from 0 to {world - 1}, got {sorted(slow or {})}.")
    if homes is not None and set(homes.tolist()) != set(range(world)):
        raise InputError(f"Expected a batch of each of {world} ranks, got some of {len(set(homes.tolist()))}.")
    random = np.random.default_rng(seed)
    predicted = predict(workload, cluster, machine)
    bytes_of = requests.reshape(len(requests), world, -1).sum(2) * workload.row_bytes
    slowness = np.ones(world)
    for rank, factor in (slow or {}).items():
        slowness[rank] = factor
    spread = np.sqrt(np.log1p(jitter**2))
    exchanged = cluster.features == "distributed" and world > 1
    local_s = predicted.loading["gpu"]
    host_s, gpu_s = predicted.training["host"], predicted.training["gpu"]
    sampled, host = np.zeros(world), np.zeros(world)
    fetched, began, ends = 0.0, [np.zeros(world)] * _AHEAD, [0.0] * _QUEUED
    exchanges: list[float] = []
    skews: list[tuple[float, float]] = []
    for _ in range(steps):
        noise = np.exp(random.normal(-(spread**2) / 2, spread, (2, world)))
        sampled = np.maximum(began[-_AHEAD], sampled) + local_s * noise[0]
        ready: float | npt.NDArray[np.float64] = sampled
        if exchanged:
            matrix = bytes_of[_choose(random, len(requests), world, homes)]
            seconds, *skew = _exchange(matrix, cluster, machine)
            exchanges.append(seconds)
            skews.append((skew[0], skew[1]))
            ready = fetched = max(fetched, float(sampled.max())) + seconds
        start = np.maximum(np.maximum(host, ready), ends[-_QUEUED])
        began.append(start)
        host = start + host_s * noise[1] * slowness
        ends.append(float(np.maximum(ends[-1] + gpu_s, host + predicted.all_reduce_s).max()))
    counted = ends[_QUEUED + steps // 4 - 1 :]
    received, sent = np.mean(skews, axis=0) if skews else (1.0, 1.0)
    return Simulated(
        step_s=(counted[-1] - counted[0]) / (len(counted) - 1),
        exchange_s=float(np.mean(exchanges)) if exchanges else 0.0,
        received_skew=float(received),
        sent_skew=float(sent),
        predicted=predicted,
    )


def _choose(random: np.random.Generator, num_batches: int, world: int, homes: Counts | None) -> Counts:
    """Return the batch of each rank."""
    if homes is not None:
        order, counts = np.argsort(homes, kind="stable"), np.bincount(homes, minlength=world)
        chosen: Counts = order[np.cumsum(counts) - counts + random.integers(counts)]
        return chosen
    shuffled = [random.permutation(num_batches) for _ in range(-(-world // num_batches))]
    return np.concatenate(shuffled)[:world]


def _exchange(matrix: Counts, cluster: Cluster, machine: Machine) -> tuple[float, float, float]:
    """Return the seconds of an exchange, and how uneven the bytes received and sent are.

    Args:
        matrix: ``[world, world]`` bytes that the rank of a row requests from that of a column.
    """
    world, local = cluster.world_size, cluster.gpus_per_node
    node = np.arange(world) // local
    near = (node[:, None] == node) & ~np.eye(world, dtype=bool)
    far = node[:, None] != node
    seconds = 0.0
    for links, rate in ((near, machine.gpu_costs().peer), (far, machine.network)):
        moved = np.where(links, matrix, 0)
        seconds = max(seconds, float(np.maximum(moved.sum(1), moved.sum(0)).max()) / rate)
    other = np.where(near | far, matrix, 0)
    mean = max(float(other.sum()) / world, 1e-9)
    messages = (world - local) * machine.message_s
    return seconds + messages, float(other.sum(1).max()) / mean, float(other.sum(0).max()) / mean
