"""Rows of features: gathers from one GPU's memory, the host's and that of all GPUs, and exchanges between GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common import import_quietly
from benchmarks.gpu.graphs import draw_features
from benchmarks.gpu.hardware import COPY, PCIE, PEER, PeakMemory, Ranks, tidy
from benchmarks.gpu.job import Job, Missing, Row, Sink, reason_of
from benchmarks.gpu.peers import start_wholegraph, whole_tensor

Gather: TypeAlias = Callable[[Tensor], Tensor]
"""``gather(ids)``: rows of the table of some ids, on the GPU."""


def _nothing() -> None:
    """Close what needs no closing."""


@dataclass(frozen=True)
class Made:
    """A table, and how its rows can be gathered."""

    calls: Mapping[str, Gather]
    """Setting -> gather; usually there is but one setting, ``""``."""
    close: Callable[[], None] = _nothing
    """Gives memory back that does not go by itself."""


CACHE = 0.1
"""Share of the rows that manyhop keeps on the GPU where there is a cache."""

CALLS = 16
"""Calls in a round: the GPU is waited for once."""


def gather(job: Job, ranks: Ranks, memory: PeakMemory, sink: Sink) -> None:
    """Measure the job's contender at all memories and sizes."""
    make = {"manyhop": _manyhop, "torch": _torch, "WholeGraph": _wholegraph}[job.contender]
    for where in job.memories:
        for row_bytes in job.row_bytes[::2] if where == "pinned" else job.row_bytes:
            workload = f"{where}, {row_bytes} B"
            try:
                made = make(job, ranks, where, row_bytes)
                for setting, call in made.calls.items():
                    sink.add(_measure(job, ranks, memory, where, row_bytes, setting, call))
                del call
                made.close()
                del made
            except NotImplementedError as error:
                sink.missing("gather", str(error), where)
                break
            except Exception as error:  # one contender's failure is a line in the table
                sink.missing("gather", reason_of(error), workload)
            tidy(ranks)


def num_rows(job: Job, ranks: Ranks, where: str, row_bytes: int) -> int:
    """Rows of the table: on the host there are fewer, and what is spread over the GPUs has as many on each."""
    rows = job.gather_table // row_bytes
    return {"pinned": rows // 4, "device": rows}.get(where, rows * ranks.size)


def _measure(job: Job, ranks: Ranks, memory: PeakMemory, where: str, row_bytes: int, setting: str, call: Gather) -> Row:
    rows = num_rows(job, ranks, where, row_bytes)
    count = job.gather_bytes // row_bytes
    draw = torch.Generator(ranks.device).manual_seed(3 + ranks.rank)
    skewed = "skewed" in setting
    ids = [draw_ids(rows, count, skewed, draw, ranks.device) for _ in range(2)]
    check_rows(call, ids[0][:1000], row_bytes)

    def run() -> None:
        for number in range(CALLS):
            call(ids[number % 2])

    seconds = [s / CALLS for s in ranks.rounds(run, job.rounds)]
    return job.row(
        "gather",
        f"{where}, {row_bytes} B{', skewed' if skewed else ''}",
        seconds,
        setting=setting.replace("skewed", "").strip(", "),
        work=_work(where, count * row_bytes, ranks.size),
        extra={"bytes": count * row_bytes, "peak_bytes": memory.peak(run)},
    )


def _work(where: str, size: int, gpus: int) -> dict[str, float]:
    if where == "pinned":
        return {PCIE: size}
    if where == "device" or gpus == 1:
        return {COPY: size}
    return {PEER: size * (gpus - 1) / gpus}


def draw_ids(rows: int, count: int, skewed: bool, draw: torch.Generator, device: torch.device) -> Tensor:
    """``[count] int64``; skewed as the ends of an R-MAT graph's edges are."""
    if not skewed:
        return torch.randint(rows, (count,), generator=draw, device=device)
    ids = torch.zeros(count, dtype=torch.int64, device=device)
    for _ in range((rows - 1).bit_length()):
        ids.mul_(2).add_(torch.rand(count, generator=draw, device=device) >= 0.76)
    return ids * 2654435761 % rows  # ids do not depend on how often nodes are asked for


def fill_rows(part: Tensor, first: int) -> None:
    """Entry ``[i, j]`` of the whole table is ``(first + i) % 1009 / 1009``."""
    part.copy_(_expected(torch.arange(first, first + part.shape[0], device=part.device))[:, None].expand_as(part))


def _expected(ids: Tensor) -> Tensor:
    return (ids % 1009).to(torch.float32) / 1009


def check_rows(call: Gather, ids: Tensor, row_bytes: int) -> None:
    got = call(ids)
    if got.shape != (ids.numel(), row_bytes // 4) or not bool((got == _expected(ids)[:, None].to(got.device)).all()):
        raise RuntimeError("the rows that came are not those that were asked for")


def _torch(job: Job, ranks: Ranks, where: str, row_bytes: int) -> Made:
    table = draw_features(num_rows(job, ranks, where, row_bytes), row_bytes // 4, torch.float32, ranks.device)
    return Made({"": lambda ids: torch.index_select(table, 0, ids)})


def _wholegraph(job: Job, ranks: Ranks, where: str, row_bytes: int) -> Made:
    if where == "sharded" and ranks.size == 1:
        raise NotImplementedError("there is one GPU")
    wgth = import_quietly("pylibwholegraph.torch")
    if not dist.is_initialized():
        start_wholegraph(ranks)
    kinds = {"device": ("continuous",), "sharded": ("continuous", "chunked")}.get(where, (where,))
    shape = [num_rows(job, ranks, where, row_bytes), row_bytes // 4]
    if where == "device" and ranks.size > 1:
        raise NotImplementedError("WholeGraph spreads its tables over the GPUs: see 'sharded'")
    tensors = {kind: whole_tensor(wgth, kind, shape, torch.float32, fill_rows) for kind in kinds}
    calls: dict[str, Gather] = {}
    for kind, tensor in tensors.items():
        name = kind if len(kinds) > 1 else ""
        calls[name] = tensor.gather
        if where != "device":
            calls[f"{name}, skewed".strip(", ")] = tensor.gather

    def close() -> None:
        for tensor in tensors.values():
            wgth.destroy_wholememory_tensor(tensor)

    return Made(calls, close)


def _manyhop(job: Job, ranks: Ranks, where: str, row_bytes: int) -> Made:
    from manyhop.features import CachedRows, RowRequest, Visits, gather, keep_hot

    rows, width = num_rows(job, ranks, where, row_bytes), row_bytes // 4
    source: object = None
    close, near = _nothing, None
    if where == "sharded":
        from manyhop.features import WholeMemory

        memory = WholeMemory([rows, width], torch.float32, kind="continuous")
        fill_rows(memory.local, memory.local_rows.start)
        ranks.meet()
        source, close, near = memory.whole, memory.close, memory.local_rows
    else:
        source = draw_features(rows, width, torch.float32, ranks.device)
        if where == "pinned" and ranks.on_gpu:
            source = torch.empty(rows, width, pin_memory=True).copy_(source)

    def plain(ids: Tensor) -> Tensor:
        found: Tensor = gather([RowRequest(source, ids, bound=rows)])[0]
        return found

    if where == "device":
        return Made({"": plain})
    visits = Visits(ranks.device)
    draw = torch.Generator(ranks.device).manual_seed(99 + ranks.rank)  # other ids than those that are measured
    for _ in range(8):
        visits.add([RowRequest(source, draw_ids(rows, job.gather_bytes // row_bytes // 8, True, draw, ranks.device))])
    (cached,) = keep_hot(visits.hottest(CACHE, near=near), ranks.device).values()
    assert isinstance(cached, CachedRows)

    def with_cache(ids: Tensor) -> Tensor:
        found: Tensor = gather([RowRequest(cached, ids, bound=rows)])[0]
        return found

    return Made({"": plain, "skewed": plain, f"cache of {CACHE:.0%}, skewed": with_cache}, close)


ROWS = (150_000, 1_000_000)
"""How many each GPU asks for at once."""

ROW_BYTES = (64, 128, 512, 2048)
"""Bytes of each of them."""

TURNS = 3
"""How much more often than other things it is measured: the host has a large part in it, and its speed varies."""

_WARM_UP = 40  # calls: the exchange learns from those before, and looks for repeated ids again after 32
_ROUND_BYTES = 2 << 30  # of a round, at most


def exchange(job: Job, ranks: Ranks, sink: Sink) -> None:
    """Measure both at all sizes; without WholeGraph, manyhop alone."""
    from manyhop.features import DistributedRows, GPUExchange, RowRequest
    from manyhop.ranks.world import init

    exchanging, number = GPUExchange("benchmarks gpu"), itertools.count()
    for row_bytes in ROW_BYTES:
        per_rank = job.gather_table // 4 // row_bytes
        rows, width = per_rank * ranks.size, row_bytes // 4
        try:
            part, theirs, close = _distributed_table(rows, width)
        except Exception as error:  # a line in the table
            sink.add(Missing(name="WholeGraph", reason=reason_of(error), part="exchange", gpus=job.gpus))
            part, theirs, close = torch.empty(per_rank, width, device=ranks.device), None, None
        fill_rows(part, per_rank * ranks.rank)
        ranks.meet()
        source = DistributedRows(part, rows, init())

        def ours(ids: Tensor, source: DistributedRows = source) -> Tensor:
            return exchanging.gather([RowRequest(source, ids)], (0, next(number)))[0]

        calls: dict[str, Gather] = {"manyhop": ours} | ({} if theirs is None else {"WholeGraph": theirs})
        for skewed, count in itertools.product((False, True), ROWS):
            _take_turns(job, ranks, sink, calls, rows, count, row_bytes, skewed)
        del calls, ours, theirs, source, part
        if close is not None:
            close()
        tidy(ranks)
    exchanging.close()


def _take_turns(
    job: Job, ranks: Ranks, sink: Sink, calls: dict[str, Gather], rows: int, count: int, row_bytes: int, skewed: bool
) -> None:
    draw = torch.Generator(ranks.device).manual_seed(3 + ranks.rank)
    ids = [draw_ids(rows, count, skewed, draw, ranks.device) for _ in range(2)]
    size = count * row_bytes
    repeats = max(2, min(10, _ROUND_BYTES // size))

    def run(call: Gather, times: int) -> None:
        for k in range(times):
            call(ids[k % 2])

    for call in calls.values():
        check_rows(call, ids[0], row_bytes)
        run(call, _WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS * job.rounds):
        for name, call in calls.items():
            seconds[name].append(ranks.seconds(partial(run, call, repeats)) / repeats)
    for name, measured in seconds.items():
        sink.add(
            job.row(
                "exchange",
                f"{count:,} rows of {row_bytes} B{', skewed' if skewed else ''}",
                measured,
                name=name,
                work={PEER: size * (ranks.size - 1) / ranks.size},
                extra={"bytes": size},
            )
        )


def _distributed_table(rows: int, width: int) -> tuple[Tensor, Gather, Callable[[], None]]:
    """This rank's part of a table in WholeGraph's distributed memory, its gather from all parts, and the end of it."""
    from manyhop.features.whole_memory.communicators import communicator

    tensors = import_quietly("pylibwholegraph.torch.tensor")
    comm = import_quietly("pylibwholegraph.torch.comm").WholeMemoryCommunicator(communicator("all", timeout=60).handle)
    table = tensors.create_wholememory_tensor(comm, "distributed", "cuda", [rows, width], torch.float32, [width, 1])
    return table.get_local_tensor()[0], table.gather, lambda: tensors.destroy_wholememory_tensor(table)
