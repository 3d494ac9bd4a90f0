"""Rows that other GPUs have: manyhop's exchange and WholeGraph's distributed gather, in turns in the same processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.common.machine import import_quietly
from benchmarks.gpu.gather import Gather, check_rows, draw_ids, fill_rows
from benchmarks.gpu.job import Job, Missing, Row, Sink, reason_of
from benchmarks.gpu.limits import PEER
from benchmarks.gpu.timing import Ranks, tidy

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
            part, theirs, close = _wholegraph(rows, width)
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
            _measure(job, ranks, sink, calls, rows, count, row_bytes, skewed)
        del calls, ours, theirs, source, part
        if close is not None:
            close()
        tidy(ranks)
    exchanging.close()


def _measure(
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
            Row(
                part="exchange",
                workload=f"{count:,} rows of {row_bytes} B{', skewed' if skewed else ''}",
                name=name,
                gpus=job.gpus,
                seconds=measured,
                work={PEER: size * (ranks.size - 1) / ranks.size},
                extra={"bytes": size},
            )
        )


def _wholegraph(rows: int, width: int) -> tuple[Tensor, Gather, Callable[[], None]]:
    """This rank's part of a table in WholeGraph's distributed memory, its gather from all parts, and the end of it."""
    from manyhop.features.whole_memory.communicators import communicator

    tensors = import_quietly("pylibwholegraph.torch.tensor")
    comm = import_quietly("pylibwholegraph.torch.comm").WholeMemoryCommunicator(communicator("all", timeout=60).handle)
    table = tensors.create_wholememory_tensor(comm, "distributed", "cuda", [rows, width], torch.float32, [width, 1])
    return table.get_local_tensor()[0], table.gather, lambda: tensors.destroy_wholememory_tensor(table)
