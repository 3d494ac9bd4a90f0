"""Gathering rows of features: manyhop, torch, and WholeGraph, by size of the rows and by where the table lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common.machine import import_quietly
from benchmarks.gpu.graphs import draw_features
from benchmarks.gpu.job import Job, Row, Sink, reason_of
from benchmarks.gpu.limits import COPY, PCIE, PEER
from benchmarks.gpu.peers import start_wholegraph, whole_tensor
from benchmarks.gpu.timing import PeakMemory, Ranks, tidy

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

CALLS = 4
"""Calls in a round."""


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
    return Row(
        part="gather",
        workload=f"{where}, {row_bytes} B{', skewed' if skewed else ''}",
        setting=setting.replace("skewed", "").strip(", "),
        name=job.contender,
        gpus=job.gpus,
        seconds=seconds,
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
    if where not in ("device", "pinned"):
        raise NotImplementedError("torch's index_select reads the memory of one device")
    table = draw_features(num_rows(job, ranks, where, row_bytes), row_bytes // 4, torch.float32, ranks.device)
    if where == "device":
        return Made({"": lambda ids: torch.index_select(table, 0, ids)})
    host = table.cpu()
    staging = torch.empty(job.gather_bytes // row_bytes, row_bytes // 4, pin_memory=ranks.on_gpu)

    def through_the_host(ids: Tensor) -> Tensor:
        part = staging[: ids.numel()]
        torch.index_select(host, 0, ids.cpu(), out=part)
        return part.to(ranks.device, non_blocking=True)

    return Made({"gathered on the CPU": through_the_host})


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
    from manyhop.features import CachedRows, GPUVisits, RowRequest, gather, keep_hot

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
    visits = GPUVisits(ranks.device)
    draw = torch.Generator(ranks.device).manual_seed(99 + ranks.rank)  # other ids than those that are measured
    for _ in range(8):
        visits.add([RowRequest(source, draw_ids(rows, job.gather_bytes // row_bytes // 8, True, draw, ranks.device))])
    (cached,) = keep_hot(visits.hottest(CACHE, near=near), ranks.device).values()
    assert isinstance(cached, CachedRows)

    def with_cache(ids: Tensor) -> Tensor:
        found: Tensor = gather([RowRequest(cached, ids, bound=rows)])[0]
        return found

    return Made({"": plain, "skewed": plain, f"cache of {CACHE:.0%}, skewed": with_cache}, close)
