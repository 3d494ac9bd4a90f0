"""Updates of trainable rows by Adam: manyhop, torch and WholeGraph. Under torchrun, over all ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import manyhop
from benchmarks.common import import_quietly, opening, print_and_save, table
from benchmarks.gpu.hardware import Ranks, tidy
from benchmarks.gpu.job import reason_of
from manyhop import optim
from manyhop.errors import InputError
from manyhop.memory.places import Place
from manyhop.system import triton_compiler
from manyhop.system.units import in_units

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Contender:
    forward: Callable[[], Tensor]
    """``[count, width]``: the rows of the batch, with a graph for ``backward``."""
    step: Callable[[], object]
    """Applies the gradients of ``backward``, and forgets them; also after several forwards."""
    close: Callable[[], object] = lambda: None
    """Gives memory back that does not go by itself."""


Make = Callable[[int, int, Tensor], Contender]
"""``make(num_rows, width, ids)``: a table ``[num_rows, width]``, for batches of ``[count]`` ids. All ranks call it."""


def contenders(ranks: Ranks) -> Iterator[tuple[str, Make]]:
    """Return names and what makes them: the first is manyhop's; none of them may be installed."""
    ours = "manyhop.Embedding, optim.Adam"
    if not ranks.on_gpu:
        yield ours, partial(_manyhop, "process")
    elif ranks.size == 1:
        yield ours, partial(_manyhop, "device")
    else:
        yield f"{ours}: distributed", partial(_manyhop, "distributed")
        yield f"{ours}: sharded", partial(_manyhop, "sharded")
    if ranks.size == 1:
        yield "torch.nn.Embedding(sparse=True), SparseAdam", _torch
    if ranks.on_gpu:
        yield "WholeGraph, continuous", partial(_wholegraph, "continuous")
        if ranks.size > 1:
            yield "WholeGraph, distributed", partial(_wholegraph, "distributed")


def _manyhop(placement: Place, num_rows: int, width: int, ids: Tensor) -> Contender:
    device = "cuda" if placement == "sharded" else None
    table = manyhop.Embedding(num_rows, width, placement=placement, device=device)
    return Contender(lambda: table(ids), optim.Adam(table, lr=LEARNING_RATE).step)


def _torch(num_rows: int, width: int, ids: Tensor) -> Contender:
    table = torch.nn.Embedding(num_rows, width, sparse=True, device=ids.device)
    adam = torch.optim.SparseAdam(table.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        adam.step()  # type: ignore[no-untyped-call]  # of torch
        adam.zero_grad()

    return Contender(lambda: table(ids), step)


def _wholegraph(memory: str, num_rows: int, width: int, ids: Tensor) -> Contender:
    embeddings = import_quietly("pylibwholegraph.torch.embedding")
    _share_communicator()
    comm = import_quietly("pylibwholegraph.torch.comm").get_global_communicator()
    shape = [num_rows, width]
    table = embeddings.create_embedding(comm, memory, "cuda", torch.float32, shape, random_init=True)
    adam = embeddings.create_wholememory_optimizer(table, "adam", {})
    module = embeddings.WholeMemoryEmbeddingModule(table)

    def step() -> None:
        table.need_apply = True  # which forward sets: here, several come before the first step
        adam.step(LEARNING_RATE)

    def close() -> None:
        embeddings.destroy_embedding(table)
        embeddings.destroy_wholememory_optimizer(adam)

    return Contender(lambda: module(ids), step, close)


def _share_communicator() -> None:
    """Have WholeGraph's Python use manyhop's communicator of all ranks: WholeGraph can be started only once."""
    from manyhop.features.whole_memory.communicators import communicator

    comm = import_quietly("pylibwholegraph.torch.comm")
    if not comm.global_communicators:
        comm.global_communicators["nccl"] = comm.WholeMemoryCommunicator(communicator("all", timeout=60).handle)


_WIDTH = 128  # float32: rows of 512 bytes
_ROW_BYTES = 4 * _WIDTH
_PASSES = 7  # of Adam over a row: reads the gradient, reads and writes the row and two moments
_CALLS = (1, 4)  # before the GPU is waited for: of several, the host runs ahead of it, as in training
_UPDATE, _STEP = "backward, update", "forward, backward, update"

Name = TypeVar("Name")
Prepare = Callable[[], object]
Work = Callable[[Any], object]
"""What is measured, with what was prepared."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=int, default=2_000_000, help="of the table, per rank")
    add("--ids", type=int, default=1_000_000, help="distinct rows of a batch")
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=2, help="of all on the CPU")
    add("--only", choices=("cpu", "gpu"))


def main(options: argparse.Namespace, argv: list[str]) -> None:
    """Measure what the arguments specify. All ranks call it."""
    if options.ids > options.rows:
        raise InputError(f"Expected at most {options.rows} ids, got {options.ids}. Raise --rows.")
    torch.set_num_threads(options.threads)
    ours = manyhop.init()
    has_gpu = torch.cuda.is_available() and triton_compiler.usable()
    if not (ours.is_alone or has_gpu):
        raise InputError(f"Expected one process where there is no GPU, got {ours.world_size} ranks.")
    devices = {"cpu": "cpu"} if ours.is_alone else {}
    if has_gpu:
        devices["gpu"] = f"cuda:{torch.cuda.current_device()}"
    if options.only is not None and options.only not in devices:
        raise InputError(f"Expected --only to be one of {', '.join(devices)} here, got {options.only}.")
    with ExitStack() as closing:
        sections = [
            _section(Ranks(ours.rank, ours.world_size, torch.device(device)), options, closing)
            for name, device in devices.items()
            if options.only in (None, name)
        ]
        text = _head(options, argv, has_gpu, ours.world_size) + "".join(sections)
        if ours.rank == 0:
            print_and_save(text, options.output, "embeddings.md")


def _head(options: argparse.Namespace, argv: list[str], has_gpu: bool, gpus: int) -> str:
    moved = in_units(_PASSES * _ROW_BYTES * options.ids)
    lines = [
        *opening("Updates of embeddings", argv),
        *([f"- GPU: {gpus} x {torch.cuda.get_device_name()}"] if has_gpu else []),
        "",
        f"{options.ids:,} distinct random rows of {_ROW_BYTES} bytes (float32) of a table of {options.rows:,}"
        f"{'' if gpus == 1 else ', for each rank'}; Adam.",
        f"On the CPU, {options.threads} threads." if gpus == 1 else "Ranks draw their rows independently.",
        f"The update moves {moved}: gradients are read, rows and two moments read and written. Its limit is the speed",
        "of a copy of a long tensor in the same run"
        + (";" if gpus == 1 else ", and of an all-to-all of the gradients before it;")
        + " ids, and sorting them, are not in it.",
        f"Medians of {options.rounds} rounds in turns (least and most), of the slowest rank, per call; calls: how many "
        "before the\nGPU is waited for.",
    ]
    return "\n".join(lines) + "\n"


def _section(ranks: Ranks, options: argparse.Namespace, closing: ExitStack) -> str:
    """Return the table of a device; ``closing`` gives its memory back."""
    num_rows, num_ids = options.rows * ranks.size, options.ids
    generator = torch.Generator().manual_seed(ranks.rank)
    ids = torch.randperm(num_rows, generator=generator)[:num_ids].to(ranks.device)
    grads = torch.randn(num_ids, _WIDTH, generator=generator).to(ranks.device)
    made, missing = _make_all(ranks, num_rows, ids, grads)
    works: dict[tuple[str, str], tuple[Prepare, Work]] = {}
    for name, each in made.items():
        closing.callback(each.close)
        works[_UPDATE, name] = each.forward, partial(_update, each, grads)
    for name, each in made.items():
        works[_STEP, name] = _nothing, partial(_step, each, grads)
    found = _measure(works, ranks, options.rounds, _CALLS if ranks.on_gpu else _CALLS[:1])
    per_s, limit = _limit(ranks, grads, options.rounds)
    first = next(iter(made))
    lines = [
        "",
        f"On {f'{ranks.size} GPUs' if ranks.size > 1 else 'the GPU' if ranks.on_gpu else 'the CPU'}; a copy moves "
        f"{in_units(int(per_s))}/s:",
        "",
        *table(("work", "by", "calls", "ms", "beside manyhop", "of the limit")),
    ]
    for ((work, name), calls), seconds in found.items():
        median = float(np.median(seconds))
        ratio = float(np.median(np.divide(seconds, found[(work, first), calls])))
        share = f"{limit / median:.0%}" if work == _UPDATE else "-"
        span = f"{1e3 * median:,.2f} ({1e3 * min(seconds):,.2f}-{1e3 * max(seconds):,.2f})"
        lines.append(f"| {work} | {name} | {calls} | {span} | {ratio:.2f} x | {share} |")
    lines += [f"\nNot measured: {name}: {reason}" for name, reason in missing.items()]
    return "\n".join(lines) + "\n"


def _make_all(ranks: Ranks, num_rows: int, ids: Tensor, grads: Tensor) -> tuple[dict[str, Contender], dict[str, str]]:
    """Return the contenders that update their rows, and why the others are missing."""
    made: dict[str, Contender] = {}
    missing: dict[str, str] = {}
    for name, make in contenders(ranks):
        try:
            one = make(num_rows, grads.shape[1], ids)
            _check(one, grads, ranks)
            made[name] = one
        except Exception as error:  # the failure of a peer is a line below the table
            if not made:
                raise
            missing[name] = reason_of(error)
        tidy(ranks)
    return made, missing


def _update(contender: Contender, grads: Tensor, rows: Tensor) -> None:
    rows.backward(grads)  # type: ignore[no-untyped-call]  # of torch
    contender.step()


def _step(contender: Contender, grads: Tensor, prepared: object) -> None:
    _update(contender, grads, contender.forward())


def _nothing() -> None:
    """Prepare what needs no preparation."""


def _check(contender: Contender, grads: Tensor, ranks: Ranks) -> None:
    """Apply gradients once: the first step of Adam moves numbers by the learning rate."""
    rows = contender.forward()
    before = rows.detach().clone()
    _update(contender, grads, rows)
    moved = (contender.forward().detach() - before).abs()
    share = ranks.mean(float(((moved - LEARNING_RATE).abs() < 0.01 * LEARNING_RATE).float().mean()))
    if share < 0.99:
        raise RuntimeError(f"Expected a step of Adam to move rows by {LEARNING_RATE}, got it for {share:.0%} of them.")


def _limit(ranks: Ranks, grads: Tensor, rounds: int) -> tuple[float, float]:
    """Return bytes per second of a copy, and the seconds that an update takes at least."""
    other, even = torch.empty_like(grads), len(grads) // ranks.size * ranks.size
    works: dict[str, tuple[Prepare, Work]] = {"copy": (_nothing, lambda _: other.copy_(grads))}
    if ranks.size > 1:
        works["exchange"] = _nothing, lambda _: dist.all_to_all_single(other[:even], grads[:even])
    found = _measure(works, ranks, rounds, _CALLS[-1:])
    medians = {name: float(np.median(seconds)) for (name, _), seconds in found.items()}
    per_s = 2 * grads.nbytes / medians["copy"]
    return per_s, _PASSES * grads.nbytes / per_s + medians.get("exchange", 0.0)


def _measure(
    works: dict[Name, tuple[Prepare, Work]], ranks: Ranks, rounds: int, numbers: Sequence[int]
) -> dict[tuple[Name, int], list[float]]:
    """Return seconds per call of each round, after one that does not count; all take turns.

    Args:
        works: what is measured.
        ranks: all of them measure.
        rounds: how often.
        numbers: of calls before the GPU is waited for; each is measured.
    """
    found: dict[tuple[Name, int], list[float]] = {(name, calls): [] for name in works for calls in numbers}
    for number in range(rounds + 1):
        for (name, calls), of_rounds in found.items():
            prepare, work = works[name]
            prepared = [prepare() for _ in range(calls)]
            seconds = ranks.seconds(partial(_each, work, prepared))
            if number > 0:
                of_rounds.append(seconds / calls)
    return found


def _each(work: Work, prepared: list[object]) -> None:
    for one in prepared:
        work(one)
