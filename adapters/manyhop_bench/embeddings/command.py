"""``manyhop bench embeddings``: the command."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

import manyhop
from manyhop import optim
from manyhop.errors import InputError
from manyhop.system import triton_compiler
from manyhop.system.units import in_units
from manyhop_bench.common.machine import describe

_WIDTH = 128  # float32: rows of 512 bytes
_ROW_BYTES = 4 * _WIDTH
_PASSES = 7  # of Adam over a row: reads the gradient, reads and writes the row and two moments
_MANYHOP, _TORCH = "manyhop.Embedding, optim.Adam", "torch.nn.Embedding(sparse=True), SparseAdam"
_UPDATE, _STEP = "update", "forward, backward, update"

Work = Callable[[], object]
Name = TypeVar("Name")


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``manyhop bench embeddings`` say; print, save."""
    if options.ids > options.rows:
        raise InputError(f"Expected at most {options.rows} ids, got {options.ids}. Raise --rows.")
    torch.set_num_threads(options.threads)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() and triton_compiler.usable() else ["cpu"]
    text = "".join(
        [
            "# Updates of embeddings\n\n",
            *(f"- {label}: {value}\n" for label, value in describe(["embeddings", *argv])),
            *(f"- GPU: {torch.cuda.get_device_name()}\n" for device in devices if device == "cuda"),
            f"\n{options.ids:,} distinct random rows of {_ROW_BYTES} bytes (float32) of a table of {options.rows:,}; "
            f"Adam. On the CPU, {options.threads} threads.\nThe update moves "
            f"{in_units(_PASSES * _ROW_BYTES * options.ids)}; its share of the limit is beside a copy of a long tensor "
            f"in the same run.\nMedians of {options.rounds} rounds in turns (least and most).\n",
            *(_section(device, options.rows, options.ids, options.rounds) for device in devices),
        ]
    )
    print(text, end="")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "embeddings.md").write_text(text)
    return 0


def _section(device: str, num_rows: int, num_ids: int, rounds: int) -> str:
    """Return the table of a device."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(num_rows, generator=generator)[:num_ids].to(device)
    grads = torch.randn(num_ids, _WIDTH, generator=generator).to(device)
    found = _measure(_contenders(device, num_rows, ids, grads), device, rounds)
    copied = torch.empty_like(grads)
    (copies,) = _measure({"copy": lambda: copied.copy_(grads)}, device, rounds).values()
    limit = 2 * grads.nbytes / float(np.median(copies))
    lines = [
        "",
        f"On {'the CPU' if device == 'cpu' else 'the GPU'}; a copy moves {in_units(int(limit))}/s:",
        "",
        "| work | by | ms | beside manyhop | of the limit |",
        "|---|---|---|---|---|",
    ]
    for (work, name), seconds in found.items():
        median = float(np.median(seconds))
        ratio = float(np.median(np.divide(seconds, found[work, _MANYHOP])))
        share = f"{_PASSES * _ROW_BYTES * num_ids / median / limit:.0%}" if work == _UPDATE else "-"
        span = f"{1e3 * median:,.2f} ({1e3 * min(seconds):,.2f}-{1e3 * max(seconds):,.2f})"
        lines.append(f"| {work} | {name} | {span} | {ratio:.2f} x | {share} |")
    return "\n".join(lines) + "\n"


def _contenders(device: str, num_rows: int, ids: Tensor, grads: Tensor) -> dict[tuple[str, str], Work]:
    """Return what is measured: work and name -> a call."""
    ours = manyhop.Embedding(num_rows, _WIDTH, placement="device" if device == "cuda" else "process")
    ours_adam = optim.Adam(ours)
    theirs = torch.nn.Embedding(num_rows, _WIDTH, sparse=True, device=device)
    theirs_adam = torch.optim.SparseAdam(theirs.parameters())

    def our_update() -> None:
        ours.add_gradients(0, ids, grads)
        ours_adam.step()

    def our_step() -> None:
        ours(ids).backward(grads)
        ours_adam.step()

    def their_update() -> None:
        theirs.weight.grad = torch.sparse_coo_tensor(ids[None], grads, theirs.weight.shape, check_invariants=False)
        theirs_adam.step()  # type: ignore[no-untyped-call]

    def their_step() -> None:
        theirs_adam.zero_grad()
        theirs(ids).backward(grads)
        theirs_adam.step()  # type: ignore[no-untyped-call]

    return {
        (_UPDATE, _MANYHOP): our_update,
        (_UPDATE, _TORCH): their_update,
        (_STEP, _MANYHOP): our_step,
        (_STEP, _TORCH): their_step,
    }


def _measure(contenders: dict[Name, Work], device: str, rounds: int) -> dict[Name, list[float]]:
    """Return seconds of each round, after one that does not count; all take turns."""
    found: dict[Name, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            _settle(device)
            began = time.perf_counter()
            work()
            _settle(device)
            if number > 0:
                found[name].append(time.perf_counter() - began)
    return found


def _settle(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
