"""Times of an epoch's stages, and advice."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from threading import Lock, current_thread
from typing import Any, Literal, NamedTuple, TypeAlias

from manyhop.errors import InputError
from manyhop.system import kernel_progress
from manyhop.system.kernel_progress import Compilation, compiled_within
from manyhop.system.threads import available_cores
from manyhop.system.units import counted


def advise(
    *,
    batches: int,
    making: dict[str, float],
    waited: float,
    step: float,
    num_workers: int,
    cores: int,
    on_gpu: bool = False,
) -> str:
    """Return one line about what limits the speed.

    Args:
        making: seconds of each stage of making batches, summed over threads.
        waited: seconds the user waited, without the first batch.
        step: seconds of the user's own steps.
    """
    if batches < 2:
        return "too few batches to judge"
    if waited <= 0.05 * (waited + step):
        return "Training is the bottleneck: loading is fully overlapped"
    worst = max(making, key=making.__getitem__)
    made = sum(making.values())
    # Threads that keep up with the step: the number of batches made during one step, and 10 % more.
    wanted = min(cores, math.ceil(1.1 * made / step) if step > 0 else cores)
    if not made:
        return f"{waited / (waited + step):.0%} of the time is waiting: use num_workers={max(1, min(2, cores))}"
    share = f"{worst} is the bottleneck ({making[worst] / made:.0%} of making a batch)"
    remedy = {
        "sampling": "fewer hops or smaller fanouts",
        "gathering": "fewer attributes, or a smaller feature dtype (float16, bfloat16)",
        "assembling": "a cheaper transform",
    }[worst]
    if on_gpu:
        return f"{share}: faster memory, if loader.placement names slower one; else {remedy}"
    if num_workers == 0 and wanted == 1 < cores:
        return f"your step takes {step / (waited + step):.0%} of the time: num_workers=1 hides the rest behind it"
    if wanted > num_workers:
        return f"{share}: num_workers={wanted}"
    if wanted == cores:
        return f"{share} and all {cores} cores are in use: more cores or a GPU; else {remedy}"
    return f"{share} although num_workers={num_workers} should do: other programs may use the cores; else {remedy}"


Stage = Literal["sample", "gather", "assemble", "compile", "wait", "step"]
ON_GPU = "GPU of "
"""Precedes the name of a thread, for the GPU's work."""

STAGES: tuple[Stage, ...] = ("sample", "gather", "assemble")
"""The stages of making a batch, in order."""

CONTENTS = (
    *("seeds", "nodes", "edges", "gathered_bytes", "exchanged_bytes"),
    *("other_rows", "cached_rows"),  # rows of other memory, and the hits in caches among them
    *("padded", "fit"),  # padded batches, and those that fit into the first sizes
)
"""Names of the numbers that describe the contents of batches."""

_COUNTS = ("batches", "seeds", "edges", "nodes", "gathered_bytes", "exchanged_bytes")  # as attributes of a report

Handed: TypeAlias = tuple[int, float | None, int, float, float, Mapping[str, int]]
"""A received batch: previous batch, start of the step on that, batch, times of request and receipt, contents."""

_KEPT_BATCHES = 64


class Interval(NamedTuple):
    """The time of one stage of one batch."""

    batch: int
    """Index of the batch in its epoch."""

    stage: Stage
    """The stage: ``wait`` and ``step`` are the user's, the others are stages of making the batch. In ``compile``,
    these waited for kernels."""

    thread: str
    """Name of the thread; ``user`` for ``wait`` and ``step``."""

    start: float
    """Seconds on the clock of ``time.perf_counter``."""

    end: float
    """Seconds on the same clock."""


@dataclass(frozen=True, kw_only=True)
class StatsReport:
    """Statistics of a loader since its creation, or since an earlier report. ``print`` shows them as a table."""

    batches: int
    """Batches that the user has received."""

    seeds: int
    """Seeds of these batches."""

    edges: int
    """Sampled edges of these batches."""

    nodes: int
    """Sampled nodes of these batches."""

    gathered_bytes: int
    """Bytes of feature rows gathered for these batches."""

    exchanged_bytes: int
    """Bytes of feature rows received from other ranks for these batches."""

    cache_hit_rate: float
    """Hits per row requested from a cache: rows of other nodes and, for a GPU, of other GPUs and the host; 0 if there
    were none. Caches of a GPU count the rows that it has read, also for prefetched batches that were not received."""

    pad_fit_rate: float | None
    """Share of the padded batches that fit into the first sizes; ``None``: no batch was padded."""

    seeds_per_s: float
    """Seeds per second of the user's time: steps, and waiting except for the very first batch."""

    edges_per_s: float
    """Sampled edges per second of the same time."""

    sample_s: float
    """Seconds in sampling, summed over threads; on a GPU: seconds of the GPU."""

    gather_s: float
    """Seconds in gathering features, summed over threads; on a GPU: seconds of the GPU."""

    assemble_s: float
    """Seconds in building the user's batch objects and in transforms, summed over threads, on the host."""

    compile_s: float
    """Seconds in which these stages waited for kernels to be compiled or loaded, summed over threads, not included in
    the stages."""

    waited_s: float
    """Seconds the user waited for batches; on a GPU also those for which the user's stream waited."""

    first_wait_s: float
    """The part of ``waited_s`` before the very first batch: compiling, starting threads."""

    step_s: float
    """Seconds of the user's own steps between batches; on a GPU, they include waiting for earlier steps."""

    num_workers: int
    """Sampling threads of the loader."""

    advice: str
    """Advice about what limits the speed."""

    placement: str = ""
    """Placement of topology and features on a GPU, in a line, and the share of rows in files that memory caches.
    ``loader.placement`` has details."""

    totals: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    """Sums since the loader's creation, which a later report subtracts."""

    source: object = field(default=None, repr=False, compare=False)
    """Equal in all reports of a loader, and different for other loaders."""

    def metrics(self, prefix: str = "manyhop/") -> dict[str, float]:
        """Return all numbers by name, for a logger: ``{"manyhop/seeds_per_s": 81920.0, ...}``.

        The names are those of the attributes above. Texts are omitted, and ``pad_fit_rate`` if no batch was padded.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {prefix + name: float(value) for name, value in values.items() if isinstance(value, int | float)}

    def __str__(self) -> str:
        if self.batches == self.sample_s == 0:
            return f"no batches yet, num_workers={self.num_workers}"
        per_batch = 1e3 / max(1, self.batches)
        rows = [
            ("sampling", self.sample_s),
            ("gathering", self.gather_s),
            ("assembling", self.assemble_s),
            ("waited for", self.waited_s - self.first_wait_s),
            ("your step", self.step_s),
        ]
        once = [("first batch", self.first_wait_s), ("compiling", self.compile_s)]
        speeds = f"{_si(self.seeds_per_s).strip()} seeds/s, {_si(self.edges_per_s).strip()} edges/s"
        lines = [
            f"{counted(self.batches, 'batch')}, num_workers={self.num_workers}: {speeds}, "
            f"{_si(self.gathered_bytes)}B of features",
            f"{'':12}{'seconds':>10}{'ms/batch':>10}",
        ]
        lines += [f"{name:12}{seconds:10.3f}{seconds * per_batch:10.2f}" for name, seconds in rows]
        if any(seconds >= 0.001 for _, seconds in once):
            lines.append("once: " + ", ".join(f"{name} {seconds:.3g} s" for name, seconds in once if seconds >= 0.001))
        if self.exchanged_bytes or self.cache_hit_rate:
            lines.append(
                f"from elsewhere: {_si(self.exchanged_bytes)}B exchanged, {self.cache_hit_rate:.0%} of the rows found "
                "in the cache"
            )
        if self.pad_fit_rate is not None:
            lines.append(f"padded: {self.pad_fit_rate:.1%} of the batches fit into the first sizes")
        if self.placement:
            lines.append(f"placement: {self.placement}")
        return "\n".join([*lines, f"advice: {self.advice}"])


class Stats:
    """Collects the statistics of a loader, in a few microseconds per batch. Thread-safe.

    A copy or a pickle is empty.

    Args:
        num_workers: sampling threads of the loader, for the advice.
        on_gpu: whether a GPU makes the batches, for the advice.
    """

    def __init__(self, num_workers: int = 0, *, on_gpu: bool = False) -> None:
        self.num_workers = num_workers
        self.on_gpu = on_gpu
        self._lock = Lock()
        self._handed: deque[Handed] = deque()
        self.handed: Callable[[Handed], None] = self._handed.append
        """Records a received batch; costs next to nothing until :meth:`take_handed`."""
        self._before_epoch: StatsReport | None = None
        self._source = object()
        self._seconds: dict[str, float] = dict.fromkeys((*STAGES, "wait", "step"), 0.0)
        self._batches = 0
        self._contents = dict.fromkeys(CONTENTS, 0)
        self._first_wait = 0.0
        self._compilations: set[Compilation] = set()
        self._intervals: deque[tuple[int, Stage, str, float, float]] = deque(maxlen=_KEPT_BATCHES * len(self._seconds))

    def record(
        self, batch: int, name: Stage, start: float, end: float, thread: str | None = None, times: int = 1
    ) -> None:
        """Add an interval, in seconds of ``time.perf_counter``, that a thread (default: this one) spent in a stage.

        It represents ``times`` intervals of the same length.
        """
        if name not in self._seconds:
            raise InputError(f"Expected a stage out of {tuple(self._seconds)}, got {name!r}. Use one of them.")
        thread, known = thread or current_thread().name, kernel_progress.compilations
        compiled = compiled_within(thread.removeprefix(ON_GPU), start, end) if known and start < known[-1].end else ()
        self._add((batch, name, thread, start, end), times, compiled)

    def stalled(self, seconds: float) -> None:
        """Record that the user's stream waited for batches while its host continued: a part of the step was waiting."""
        if seconds <= 0:
            return
        self.take_handed()
        with self._lock:
            waited = min(seconds, self._seconds["step"])
            self._seconds["step"] -= waited
            self._seconds["wait"] += waited

    def count(self, **contents: int) -> None:
        """Add the contents of a batch: numbers by the names of :data:`CONTENTS`."""
        with self._lock:
            for name, number in contents.items():
                self._contents[name] += number

    def waited(self, batch: int, start: float, end: float) -> None:
        """Record that the user waited for a batch."""
        if self._batches == 0:
            self._first_wait = end - start
        self._batches += 1
        self._add((batch, "wait", "user", start, end))

    def take_handed(self) -> None:
        """Add the batches that :attr:`handed` has collected."""
        with contextlib.suppress(IndexError):  # until there are no more
            while True:
                last, step_start, batch, start, end, contents = self._handed.popleft()
                if step_start is not None:
                    self.stepped(last, step_start, start)
                self.waited(batch, start, end)
                if contents:
                    self.count(**contents)

    def stepped(self, batch: int, start: float, end: float) -> None:
        """Record the user's step on a batch, which ends with the next request."""
        self._add((batch, "step", "user", start, end))

    def _add(
        self, interval: tuple[int, Stage, str, float, float], times: int = 1, compiled: Sequence[Compilation] = ()
    ) -> None:
        _, stage, _, start, end = interval
        seconds = end - start
        for each in compiled:
            seconds -= min(end, each.end) - max(start, each.start)
        with self._lock:
            self._seconds[stage] += times * seconds
            self._compilations.update(compiled)  # on a GPU, a stage of the host may have the same ones
            self._intervals.append(interval)

    def intervals(self) -> list[Interval]:
        """Return the intervals of the latest batches (about 64), oldest first, and then those of compilations."""
        self.take_handed()
        with self._lock:
            found = [Interval(*interval) for interval in self._intervals]
            return found + [
                i._replace(stage="compile", start=max(i.start, c.start), end=min(i.end, c.end))
                for c in self._compilations
                for i in found
                if c.thread == i.thread and c.start < i.end and i.start < c.end
            ]

    def begin_epoch(self) -> None:
        """Record the beginning of an epoch, for reports since then."""
        self._before_epoch = self.report()

    def report(self, since: StatsReport | Literal["epoch"] | None = None) -> StatsReport:
        """Return the statistics so far, since an earlier report, or since the last epoch began.

        Raises:
            InputError: ``since`` is neither, or a report of a different loader.
        """
        if since == "epoch":
            since = self._before_epoch
        elif since is not None and not isinstance(since, StatsReport):
            raise InputError(f'Expected since="epoch" or an earlier report, got {since!r:.60}. Use one of them.')
        elif since is not None and since.source is not self._source:
            raise InputError("Expected an earlier report of this loader, got one of another. Keep one per loader.")
        self.take_handed()
        with self._lock:
            now: dict[str, float] = {
                **self._seconds,
                "compile": sum(c.end - c.start for c in self._compilations),
                "first_wait": self._first_wait,
                "batches": self._batches,
                **self._contents,
            }
        before = {} if since is None else since.totals
        # Seconds can move from "step" to "wait" after an earlier report.
        s = {name: max(0, value - before.get(name, 0)) for name, value in now.items()}
        total, batches = s["wait"] - s["first_wait"] + s["step"], int(s["batches"])
        sums: dict[str, Any] = {name: int(s[name]) for name in _COUNTS}
        sums |= {f"{name}_s": s[name] for name in (*STAGES, "compile", "first_wait", "step")}
        return StatsReport(
            **sums,
            cache_hit_rate=s["cached_rows"] / s["other_rows"] if s["other_rows"] else 0.0,
            pad_fit_rate=s["fit"] / s["padded"] if s["padded"] else None,
            seeds_per_s=s["seeds"] / total if total else 0.0,
            edges_per_s=s["edges"] / total if total else 0.0,
            waited_s=s["wait"],
            num_workers=self.num_workers,
            advice=advise(
                batches=batches,
                making={"sampling": s["sample"], "gathering": s["gather"], "assembling": s["assemble"]},
                waited=s["wait"] - s["first_wait"],
                step=s["step"],
                num_workers=self.num_workers,
                cores=available_cores(),
                on_gpu=self.on_gpu,
            ),
            totals=now,
            source=self._source,
        )

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return partial(Stats, on_gpu=self.on_gpu), (self.num_workers,)


def _si(x: float) -> str:
    """Return a number with three digits and a unit prefix: ``12.3 M``."""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= limit:
            return f"{x / limit:.3g} {prefix}"
    return f"{x:.3g} "
