"""What a process of ``benchmarks gpu`` measures, and what it writes down."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one process (of one on each GPU): one contender at some parts."""

    contender: str
    parts: tuple[str, ...]
    gpus: int = 1
    device: str = "cuda"
    num_nodes: int
    num_edges: int
    fanouts: tuple[tuple[int, ...], ...]
    batch_size: int = 1024
    rounds: int
    """How often something is measured; the tables show the median."""
    merged: tuple[int, ...]
    """Batches per launch, where several are sampled in one."""
    sampling_batches: int
    """Batches of one round of sampling."""
    gather_bytes: int
    """Bytes of the rows that are gathered at once."""
    gather_table: int
    """Bytes of the table from which they are gathered (of each GPU's part of it)."""
    row_bytes: tuple[int, ...]
    memories: tuple[str, ...]
    """Where the tables lie: ``"device"``, ``"pinned"``; on several GPUs ``"sharded"``."""
    epoch_batches: int
    """Batches per epoch and GPU, for loaders and for training."""
    epochs: int
    num_features: int = 128
    half: bool = False
    """Features are float16, and training runs under autocast; else float32."""
    hidden: tuple[int, ...] = (256,)
    """Channels of GraphSAGE's hidden layers, one model after the other."""
    placements: tuple[str, ...] = ("replica",)
    """Where graph and features lie for loaders: ``"replica"`` on each GPU; on several GPUs also ``"sharded"``, and
    ``"distributed"``, for loading only. ``"replica, padded"``: with ``pad="auto"``; such batches are loaded only.
    ``"replica, DDP"``: as one rank of one, with the same script as on several GPUs; for training only. ``"replica,
    captured"``: with ``pad="auto"``, ``capture()`` and ``accelerate(trim=True)``; for training only. ``"...,
    cuGraph"``: with ``engine="cugraph"``, whose topology is always spread over all GPUs."""
    scalings: tuple[str, ...] = ("weak", "strong")
    """Epochs of training: ``"weak"``, of so many batches for each GPU, ``"strong"``, of so many for all together."""
    strong_batches: int
    """Batches of all GPUs together, for ``"strong"``."""
    results: str
    """Path of the file to which rows are appended, as lines of JSON."""

    def row(self, part: str, workload: str, seconds: list[float], **values: Any) -> Row:
        """Return a row of the job's contender."""
        row = Row(part=part, workload=workload, name=self.contender, gpus=self.gpus, seconds=seconds)
        return dataclasses.replace(row, **values)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """The opposite of :meth:`to_json`."""
        values: dict[str, Any] = json.loads(text)
        for name in ("parts", "merged", "row_bytes", "memories", "hidden", "placements", "scalings"):
            values[name] = tuple(values[name])
        values["fanouts"] = tuple(tuple(fanout) for fanout in values["fanouts"])
        return Job(**values)


@dataclass(frozen=True, kw_only=True)
class Row:
    part: str
    workload: str
    """What is done; rows of one workload can be compared."""
    setting: str = ""
    """How it is done: batches per launch, where the data lie."""
    name: str
    """By whom."""
    gpus: int = 1
    seconds: list[float] = field(default_factory=list)
    """Seconds per batch (sampling, loader), per call (gather) or per step (epoch), one for each round."""
    work: Mapping[str, float] = field(default_factory=dict)
    """What has to be done for it at least, on each GPU: name of a limit -> bytes or accesses."""
    edges: float = 0.0
    """Sampled edges per batch."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Anything else: ``first_s``, ``construct_s``, ``batches``, ``peak_bytes``, ``resident_bytes``; of training
    ``step_s`` without loading, ``step_gpu_s`` of it for the GPU alone, and ``ratio``, ``ratio_low``, ``ratio_high`` of
    rounds with and without loading: median and quartiles; of stores ``rows`` per
    batch, ``per_row_s``, and the ratios of PyG's times per row to DGL's."""

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    def to_json(self) -> str:
        return json.dumps({"kind": "row", **dataclasses.asdict(self)})


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Something that was to be measured and was not."""

    name: str
    reason: str
    part: str = ""
    workload: str = ""
    gpus: int = 1

    def to_json(self) -> str:
        return json.dumps({"kind": "missing", **dataclasses.asdict(self)})


class Sink:
    """Appends rows to the file of a job, so that what was measured before a crash is kept."""

    def __init__(self, job: Job, *, silent: bool = False) -> None:
        self._job = job
        self._silent = silent

    def add(self, row: Row | Missing) -> None:
        """Write one line; on ranks but the first nothing."""
        if not self._silent:
            with Path(self._job.results).open("a") as file:
                file.write(row.to_json() + "\n")

    def missing(self, part: str, reason: str, workload: str = "") -> None:
        """Note why the contender was not measured."""
        job = self._job
        self.add(Missing(name=job.contender, reason=reason, part=part, workload=workload, gpus=job.gpus))


def read_results(text: str) -> tuple[list[Row], list[Missing]]:
    """The lines that :class:`Sink` has written."""
    rows, missing = [], []
    for line in text.splitlines():
        values = json.loads(line)
        if values.pop("kind") == "row":
            rows.append(Row(**values))
        else:
            missing.append(Missing(**values))
    return rows, missing


def reason_of(error: BaseException) -> str:
    """The first line of an error, for a table."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def ratios(values: Iterable[float]) -> dict[str, float]:
    """Return median and quartiles, as a row has them."""
    low, middle, high = np.quantile(list(values), (0.25, 0.5, 0.75)).tolist()
    return {"ratio": middle, "ratio_low": low, "ratio_high": high}


def fanout_name(fanout: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, fanout)) + "]"
